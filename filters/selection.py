"""The last choice: so many problems, balanced over groups, unlike one another, the same ones for the same seed."""

import hashlib
from collections.abc import Sequence

import numpy as np
import polars as pl

from assay.filters.text import fold, window_hashes

__all__ = ["decide", "sketches"]

DIMENSIONS, WINDOW = 256, 5


def decide(
    problems: pl.DataFrame,
    size: int,
    seed: int,
    by: str | Sequence[str] | None = "domain",
    vectors: np.ndarray | None = None,
) -> pl.DataFrame:
    """Keep `size` problems with the groups as equal as their numbers allow; the rest is over_target.

    Every group gives its first, then every group its second, and so on (max-min fairness): a small group is
    taken whole and its unused share goes to the others. The order inside a group is a hash of seed and id, so
    that the choice does not hang on the order of rows, and a refresh that adds problems changes few others.
    With `vectors` it is farthest-first instead (Gonzalez 1985, 2-approximate k-centre): after the first by the hash,
    always the one whose most similar chosen problem is the least similar.

    Args:
        problems: `id` and the columns `by`; a null group is a group of its own. Without `by`, no groups.
        size: problems to keep; all are kept when there are no more.
        by: a column, or several: each of their combinations is a group.
        vectors: one for each problem, [n, d], of length 1, from `sketches` or an embedding model.

    Raises:
        ValueError: a negative size, no column `by`, or vectors of another number.
    """
    names = [by] if isinstance(by, str) else list(by or ())
    _refuse(problems, size, names, vectors)
    parts = [pl.col(name).cast(pl.String).fill_null(f"no {name}") for name in names]
    group = pl.concat_str(parts, separator=", ") if parts else pl.lit("all")
    draws = pl.Series("draw", [_draw(seed, name) for name in problems["id"]], pl.UInt64)
    rows = problems.select("id", group=group).with_columns(draws)
    place = pl.col("draw").rank("ordinal").over("group").alias("place")
    rows = rows.with_columns(place if vectors is None else _spread(rows, vectors, size))
    rows = rows.with_columns(keep=pl.struct("place", "draw").rank("ordinal") <= size)
    kept, of = pl.col("keep").sum().over("group"), pl.len().over("group")
    taken = pl.format("{} of {} taken from {}", kept, of, "group")
    reason = pl.when(~pl.col("keep")).then(pl.lit("over_target"))
    return rows.select("id", "keep", reason=reason, evidence=taken)


def _refuse(problems: pl.DataFrame, size: int, by: list[str], vectors: np.ndarray | None) -> None:
    if size < 0:
        raise ValueError(f"size is {size}; it counts problems and cannot be negative")
    if missing := [name for name in by if name not in problems.columns]:
        raise ValueError(f"no column {missing[0]!r} to balance; columns: {', '.join(problems.columns)}")
    if vectors is not None and len(vectors) != len(problems):
        raise ValueError(f"{len(vectors)} vectors for {len(problems)} problems; give one for each")


def _draw(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8])


def _spread(rows: pl.DataFrame, vectors: np.ndarray, size: int) -> pl.Series:
    """Each row's place in its group's farthest-first order; those after the `size`-th share the last place."""
    place = np.zeros(len(rows), np.int64)
    ordered = rows.with_row_index("row").sort("draw")
    for _, part in ordered.group_by("group", maintain_order=True):
        members = part["row"].to_numpy()
        place[members] = _farthest_first(vectors[members], size)
    return pl.Series("place", place)


def _farthest_first(vectors: np.ndarray, size: int) -> np.ndarray:
    """Places from 1, [n]; row 0 is the first, a tie goes to the earlier row."""
    count = min(size, len(vectors))
    place, nearest = np.full(len(vectors), count + 1), np.full(len(vectors), -np.inf)
    chosen = 0
    for turn in range(1, count + 1):
        place[chosen] = turn
        nearest = np.maximum(nearest, vectors @ vectors[chosen])
        nearest[chosen] = np.inf
        chosen = int(nearest.argmin())
    return place


def sketches(texts: pl.Series) -> np.ndarray:
    """A vector of length 1 for each text, float32 [n, 256]: signed counts of its hashed windows of five symbols.

    Texts are folded without their stock words (`filters/text.py`), so that the cosine of two vectors is about that of
    what the texts are made of (feature hashing, Weinberger et al. 2009). A text without symbols is null.
    """
    folded = fold(texts)
    hashes, at = window_hashes(folded.core, folded.core_at, WINDOW, True)
    mixed = hashes * np.uint64(0x9E3779B97F4A7C15)
    column, sign = mixed >> np.uint64(56), np.where(mixed >> np.uint64(55) & np.uint64(1), 1.0, -1.0)
    cell = np.repeat(np.arange(len(texts)), np.diff(at)) * DIMENSIONS + column.astype(np.int64)
    counts = np.bincount(cell, sign, len(texts) * DIMENSIONS).reshape(len(texts), DIMENSIONS)
    return (counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-12)).astype(np.float32)
