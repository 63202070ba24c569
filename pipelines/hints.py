"""Suggestions for error messages: the nearest valid name, and the files that lie near a missing one."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

__all__ = ["did_you_mean", "nearby_files"]


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The end of a sentence: `"; did you mean 'band'?"` for the nearest of `valid`, else `"."`."""
    folded = {v.lower(): v for v in valid}
    near = get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    return f"; did you mean '{folded[near[0]]}'?" if near else "."


def nearby_files(path: Path, limit: int = 5) -> str:
    """What lies near the missing `path`: files of like names, or which folder is missing too."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    beside = sorted(p.name for p in islice(path.parent.iterdir(), 10_000) if not p.name.startswith("."))
    stems = {p.split(".")[0]: p for p in reversed(beside)}
    near = get_close_matches(path.name, beside, n=limit, cutoff=0.5)
    near += [stems[s] for s in get_close_matches(path.name.split(".")[0], list(stems), n=limit, cutoff=0.6)]
    names = list(dict.fromkeys(near or beside))[:limit]
    return f"near it: {', '.join(names)}" if names else f"the folder {path.parent} is empty"
