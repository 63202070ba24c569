"""A recipe's files, looked at every few seconds: has one of them changed since the last refresh?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from assay.pipelines.errors import AssayError
from assay.pipelines.recipe import RefreshRecipe
from assay.pipelines.store import Store

__all__ = ["Watch", "files_of", "newest_refresh"]

Seen = dict[Path, tuple[int, int]]


def files_of(recipe: RefreshRecipe) -> Iterator[Path]:
    """Files of the sources and benchmarks; what lies on the Hub has none."""
    for path in (table.path for table in (*recipe.sources, *recipe.benchmarks) if table.path is not None):
        yield from sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else (path,)


def newest_refresh(recipe: RefreshRecipe) -> datetime:
    """UTC time of the last snapshot in the recipe's store; the year 1 where there is none."""
    never = datetime.min.replace(tzinfo=UTC)
    if not (recipe.store / "store.json").exists():
        return never
    time = Store.open(recipe.store).scan("snapshots").select(pl.col("time").max()).collect().item()
    return time.replace(tzinfo=UTC) if time else never


class Watch:
    """Calls `changed` when a file of the recipe, or the recipe itself, has changed and is no longer being written.

    What changed while nobody watched is told at the first look: a file newer than the last refresh.

    Args:
        file: the recipe's.
        read: reads the recipe; while it fails (somebody edits it) nothing is told.
        changed: called in the watching thread; when it raises, it is called again at the next look.
    """

    def __init__(self, file: Path, read: Callable[[], RefreshRecipe], changed: Callable[[], object]) -> None:
        self.file, self.read, self.changed = file, read, changed
        self._told: Seen | None = None
        self._last: Seen | None = None

    def look(self) -> bool:
        """One look; whether `changed` was called. A change is told when two looks in a row see the same."""
        try:
            recipe = self.read()
            now = {path: (s.st_mtime_ns, s.st_size) for path in (self.file, *files_of(recipe)) for s in (path.stat(),)}
        except (AssayError, OSError):
            return False
        if self._last is None and self._is_old(now, recipe):
            self._told = now
        steady, self._last = now == self._last, now
        if not steady or now == self._told:
            return False
        self.changed()
        self._told = now
        return True

    def _is_old(self, now: Seen, recipe: RefreshRecipe) -> bool:
        newest = max(mtime for mtime, _ in now.values()) / 1e9
        return datetime.fromtimestamp(newest, UTC) < newest_refresh(recipe)

    def forever(self, every: float, stop: threading.Event, failed: Callable[[Exception], object]) -> None:
        """Looks every so many seconds until `stop`; a failure of `changed` is told and tried again."""
        while not stop.is_set():
            try:
                self.look()
            except Exception as error:
                failed(error)
            stop.wait(every)
