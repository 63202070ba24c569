"""The last choice: so many problems, balanced over a group, the same ones for the same seed."""

import hashlib

import polars as pl

__all__ = ["decide"]


def decide(problems: pl.DataFrame, size: int, seed: int, by: str | None = "domain") -> pl.DataFrame:
    """Keep `size` problems with the groups as equal as their numbers allow; the rest is over_target.

    Every group gives its first, then every group its second, and so on (max-min fairness): a small group is
    taken whole and its unused share goes to the others. The order inside a group is a hash of seed and id, so
    that the choice does not hang on the order of rows, and a refresh that adds problems changes few others.

    Args:
        problems: `id` and the column `by`; a null group is a group of its own. Without `by`, no groups.
        size: problems to keep; all are kept when there are no more.

    Raises:
        ValueError: a negative size, or no column `by`.
    """
    if size < 0:
        raise ValueError(f"size is {size}; it counts problems and cannot be negative")
    if by is not None and by not in problems.columns:
        raise ValueError(f"no column {by!r} to balance; columns: {', '.join(problems.columns)}")
    group = pl.col(by).cast(pl.String) if by is not None else pl.lit("all")
    draws = pl.Series("draw", [_draw(seed, name) for name in problems["id"]], pl.UInt64)
    rows = problems.select("id", group=group).with_columns(draws)
    place = pl.col("draw").rank("ordinal").over("group").alias("place")
    rows = rows.with_columns(keep=pl.struct(place, "draw").rank("ordinal") <= size)
    kept, of = pl.col("keep").sum().over("group"), pl.len().over("group")
    taken = pl.format("{} of {} taken from {}", kept, of, pl.col("group").fill_null("no group"))
    reason = pl.when(~pl.col("keep")).then(pl.lit("over_target"))
    return rows.select("id", "keep", reason=reason, evidence=taken)


def _draw(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8])
