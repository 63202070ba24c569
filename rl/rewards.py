"""Rewards of completions, one float a completion, as plain numpy arrays; NaN means *no verdict*.

Completions come in groups of one prompt in a row, as in `advantages`. `combine` adds parts under weights
and keeps each part for the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Rewards", "accuracy", "combine", "format_bonus", "inverted", "kimi_length",
           "language_consistency", "overlong", "random_control", "repetition"]  # fmt: skip

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rewards:
    """`total` [N], and every part before its weight."""

    total: Array
    parts: dict[str, Array]


def combine(parts: Mapping[str, ArrayLike], weights: Mapping[str, float]) -> Rewards:
    """Weighted sum of the parts named in `weights`; a part of weight 0 is kept for the log and adds nothing.

    A NaN in any part of non-zero weight makes the total NaN: such a completion is left out of its group's
    baseline. Raises ValueError for a weight without a part and for parts of different lengths.
    """
    arrays = {name: np.asarray(part, dtype=np.float64) for name, part in parts.items()}
    missing, lengths = sorted(set(weights) - set(arrays)), {len(part) for part in arrays.values()}
    if missing or len(lengths) != 1:
        raise ValueError(
            f"rewards: parts {sorted(arrays)} of lengths {sorted(lengths)}; no part for {sorted(missing)}."
        )
    total = np.zeros(lengths.pop())
    for name, weight in weights.items():
        if weight:
            total += weight * arrays[name]
    return Rewards(total, arrays)


def accuracy(
    statuses: Sequence[str], *, unverifiable: float = np.nan, truncated: float = np.nan, wrong: float = 0.0
) -> Array:
    """1 for `correct`, `wrong` for wrong; `unverifiable` also stands for `timeout`. DeepSeek-R1, section
    2.2.2.

    By default a completion without a verdict is NaN. `truncated` matters only where truncated completions
    are trained on (DAPO's overlong reward); otherwise they are masked out of the loss.
    """
    table = {"correct": 1.0, "wrong": wrong, "unverifiable": unverifiable, "timeout": unverifiable,
             "truncated": truncated}  # fmt: skip
    unknown = sorted(set(statuses) - set(table))
    if unknown:
        raise ValueError(f"accuracy: no verdict status {unknown}; statuses: {', '.join(table)}.")
    return np.array([table[status] for status in statuses], dtype=np.float64)


_THOUGHT = re.compile(r"\s*<think>((?:(?!</?think>).)*)</think>((?:(?!</?think>).)*)\s*", re.DOTALL)


def format_bonus(texts: Sequence[str], *, bonus: float = 1.0, opened_in_prompt: bool = False) -> Array:
    """`bonus` where a completion is exactly one `<think>...</think>` followed by an answer, else 0.

    `opened_in_prompt`: the chat template has already written `<think>`, the completion begins inside.
    """
    return np.array([0.0 if _thought(text, opened_in_prompt) is None else bonus for text in texts], dtype=np.float64)


def _thought(text: str, opened_in_prompt: bool) -> str | None:
    """The chain of thought of a well-formed completion, or None."""
    match = _THOUGHT.fullmatch("<think>" + text if opened_in_prompt else text)
    return match[1] if match and match[2].strip() else None


def kimi_length(
    lengths: ArrayLike, correct: ArrayLike, group_size: int, *, step: int = 0, warmup_steps: int = 0
) -> Array:
    """Shorter is better, within a group: lam = 0.5 - (len - min)/(max - min); Kimi k1.5, section 2.3.3.

    A correct completion gets lam, any other min(0, lam); 0 where all lengths are equal, and in the first
    `warmup_steps` steps. min and max are over the whole group. lengths [B*G] in tokens, correct [B*G] bool.
    """
    size, right = np.asarray(lengths, dtype=np.float64), np.asarray(correct, dtype=bool)
    if size.shape != right.shape or size.ndim != 1 or group_size < 1 or len(size) % group_size:
        raise ValueError(f"kimi_length: shapes {size.shape}, {right.shape} are not whole groups of {group_size}.")
    if step < warmup_steps:
        return np.zeros(len(size))
    groups = size.reshape(-1, group_size)
    low, span = groups.min(1, keepdims=True), np.ptp(groups, axis=1)[:, None]
    lam = np.where(span > 0, 0.5 - (groups - low) / np.where(span > 0, span, 1), 0.0).reshape(-1)
    return np.where(right, lam, np.minimum(0.0, lam))


def overlong(lengths: ArrayLike, max_length: int, buffer: int) -> Array:
    """DAPO, equation 13: 0 up to L - c tokens, then down to -1 at L, and -1 beyond. L max_length, c
    buffer."""
    if not 0 < buffer <= max_length:
        raise ValueError(f"overlong: buffer {buffer} must be above 0 and at most max_length {max_length}.")
    size = np.asarray(lengths, dtype=np.float64)
    return np.clip((max_length - buffer - size) / buffer, -1.0, 0.0)


def repetition(tokens: Sequence[Sequence[Any]], n: int = 4) -> Array:
    """-(share of n-grams that occurred before in the same completion), 0 where there is no n-gram.

    `tokens`: per completion its token ids, or its words.
    """
    if n < 1:
        raise ValueError(f"repetition: n must be at least 1, got {n}.")
    return np.array([_repeated(list(one), n) for one in tokens], dtype=np.float64)


def _repeated(tokens: list[Any], n: int) -> float:
    total = len(tokens) - n + 1
    if total < 1:
        return 0.0
    distinct = len({tuple(tokens[i : i + n]) for i in range(total)})
    return distinct / total - 1


def random_control(count: int, seed: int, step: int, p: float = 0.5) -> Array:
    """1 with probability p, else 0, whatever the completion says: a gain under it is spurious."""
    return (np.random.default_rng([seed, step]).random(count) < p).astype(np.float64)


def inverted(rewards: ArrayLike) -> Array:
    """1 - reward: training on it must not help; NaN stays."""
    return 1.0 - np.asarray(rewards, dtype=np.float64)


_NOT_PROSE = re.compile(
    r"```.*?```|\$\$.*?\$\$|\$[^$\n]*\$|\\\(.*?\\\)|\\\[.*?\\\]|\\[A-Za-z]+|https?://\S+", re.DOTALL
)
_SCRIPTS = {
    "Han": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff",
    "Kana": "\u3040-\u30ff",
    "Hangul": "\u1100-\u11ff\uac00-\ud7af",
    "Cyrillic": "\u0400-\u052f",
    "Greek": "\u0370-\u03ff",
    "Arabic": "\u0600-\u06ff",
    "Hebrew": "\u0590-\u05ff",
    "Devanagari": "\u0900-\u097f",
    "Thai": "\u0e00-\u0e7f",
    "Latin": "A-Za-z\u00c0-\u024f\u1e00-\u1eff",
}
_UNSPACED = ("Han", "Kana", "Thai")  # written without spaces: each character counts as a word
_LANGUAGE_SCRIPTS = {
    "zh": ("Han",), "ja": ("Han", "Kana"), "ko": ("Hangul",), "ru": ("Cyrillic",), "uk": ("Cyrillic",),
    "bg": ("Cyrillic",), "el": ("Greek",), "ar": ("Arabic",), "fa": ("Arabic",), "he": ("Hebrew",),
    "hi": ("Devanagari",), "th": ("Thai",),
}  # fmt: skip


def language_consistency(
    texts: Sequence[str],
    languages: Sequence[str],
    *,
    detector: str = "script",
    opened_in_prompt: bool = False,
) -> Array:
    """Share of the chain of thought's words that are in the prompt's language (ISO 639-1), 0 to 1.

    DeepSeek-R1, section 2.3.2. Formulas, code and commands are not words; without any word the share is 1.
    Text that is not one well-formed thought is judged whole. `script` tells languages apart by their
    letters only (English and French look alike); `lingua` detects the language line by line and tells those
    apart, at a cost.
    """
    if detector not in ("script", "lingua"):
        raise ValueError(f"language_consistency: no detector {detector!r}; use script or lingua.")
    share = _script_share if detector == "script" else _lingua_share
    thoughts = [_thought(text, opened_in_prompt) for text in texts]
    judged = [text if thought is None else thought for text, thought in zip(texts, thoughts)]
    prose = [re.sub(r"</?think>", " ", _NOT_PROSE.sub(" ", text)) for text in judged]
    return np.array([share(text, language) for text, language in zip(prose, languages, strict=True)])


@lru_cache
def _word_pattern() -> re.Pattern[str]:
    parts = [f"(?P<{name}>[{span}]{'' if name in _UNSPACED else '+'})" for name, span in _SCRIPTS.items()]
    return re.compile("|".join(parts))


def _script_share(text: str, language: str) -> float:
    scripts = [match.lastgroup for match in _word_pattern().finditer(text)]
    wanted = _LANGUAGE_SCRIPTS.get(language.lower()[:2], ("Latin",))
    return sum(script in wanted for script in scripts) / len(scripts) if scripts else 1.0


def _lingua_share(text: str, language: str) -> float:
    detector, matching, total = _lingua_detector(), 0, 0
    for line, words in _joined(text):
        found = detector.detect_language_of(line)
        total += words
        matching += words if found and found.iso_code_639_1.name.lower() == language.lower()[:2] else 0
    return matching / total if total else 1.0


def _joined(text: str, least: int = 4) -> Iterator[tuple[str, int]]:
    """Sentences and their word counts, short ones joined to the next: on two words a detector guesses."""
    held, words = "", 0
    for sentence in re.split(r"(?<=[\n.!?。！？])", text):
        held, words = held + sentence, words + sum(1 for _ in _word_pattern().finditer(sentence))
        if words >= least:
            yield held, words
            held, words = "", 0
    if words:
        yield held, words


@lru_cache
def _lingua_detector() -> Any:
    """All of lingua's languages at full accuracy: about ten seconds and 0.9 GB, once a process."""
    from lingua import LanguageDetectorBuilder

    return LanguageDetectorBuilder.from_all_languages().build()
