"""What distillation gave a student: by task, beside its teacher and beside itself before.

Pure statistics over correctness frames `task, item, n, c` (scored samples and correct ones an item),
optionally with `tokens` (mean an item). The student before training is always asked for: without it, losses
do not show.
"""

from collections.abc import Collection

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.eval.intervals import (
    bootstrap_means,
    clustered_mean,
    mcnemar_exact,
    minimum_detectable_difference,
    percentiles,
)
from assay.eval.pass_at_k import pass_at_k

__all__ = ["changes", "scored", "table"]

Floats = NDArray[np.float64]
KEY = ["task", "item"]


def table(teacher: pl.DataFrame, before: pl.DataFrame, after: pl.DataFrame, *, trained: Collection[str] = (),
          k: int = 1, confidence: float = 0.95, replicates: int = 10_000, seed: int = 0) -> pl.DataFrame:
    """One row a task: pass@k of the three, the gain and the share of the gap recovered, paired over items.

    Args:
        teacher: may lack items; their task's teacher and gap are then null.
        before, after: the student; both must hold the same items.
        trained: the tasks that were trained on. A loss on any other is called forgetting.

    Returns:
        `task, trained, items, teacher, before, after, gain, gain_low, gain_high, mdd, gap_recovered, gap_low,
        gap_high, gap_mdd, gained, lost, p, forgotten`, and `teacher_tokens, before_tokens, after_tokens` where
        recorded. gain = after - before; gap_recovered = gain / (teacher - before), null unless the teacher is
        ahead, its interval null unless the teacher is ahead in all of the resamples but the interval's lower
        tail: a ratio over a gap that may be zero has no finite interval. `mdd` is the true gain that these items
        would show in four cases of five, null without spread; `gap_mdd` its share of the gap as it was estimated.
        `gained` and `lost` count items whose rate rose or fell, `p` is their exact sign test (McNemar's for one
        draw an item). `forgotten`: not trained on, and the whole interval of the gain is below 0.

    Raises:
        ValueError: columns or items are missing, an item appears twice, k exceeds an item's samples, or no items.
    """
    joined = _joined(before, after, k).join(_rates(teacher, "teacher", k), on=KEY, how="left")
    if joined.is_empty():
        raise ValueError("before and after have no item: there is nothing to compare.")
    rows = []
    for (task,), part in joined.group_by(["task"], maintain_order=True):
        row = {"task": task, "trained": task in trained, "items": part.height}
        rows.append({**row, **_student(part, confidence, replicates, seed),
                     **_gap(part, confidence, replicates, seed), **_tokens(part)})
    forgotten, gap = ~pl.col("trained") & (pl.col("gain_high") < 0), pl.col("teacher") - pl.col("before")
    found = pl.DataFrame(rows, schema_overrides={"mdd": pl.Float64}, infer_schema_length=None)
    return found.with_columns(forgotten=forgotten, gap_mdd=pl.when(gap > 0).then(pl.col("mdd") / gap))


def changes(teacher: pl.DataFrame, before: pl.DataFrame, after: pl.DataFrame, k: int = 1) -> pl.DataFrame:
    """Per item `task, item, teacher, before, after, change (gained, lost, same)`, the greatest changes first.

    With several samples an item, part of these changes is sampling noise: judge them by `table`'s `p`.
    """
    gain = pl.col("after") - pl.col("before")
    moved = pl.when(gain > 0).then(pl.lit("gained")).when(gain < 0).then(pl.lit("lost"))
    joined = _joined(before, after, k).join(_rates(teacher, "teacher", k), on=KEY, how="left", maintain_order="left")
    found = joined.sort(gain.abs(), descending=True, maintain_order=True)
    return found.select(*KEY, "teacher", "before", "after", change=moved.otherwise(pl.lit("same")))


def scored(*frames: pl.DataFrame, k: int = 1) -> list[pl.DataFrame]:
    """The frames without the items that lack k scored samples in one of those that hold them."""
    short = pl.concat([frame.filter(pl.col("n") < k).select(KEY) for frame in frames]).unique()
    return [frame.join(short, on=KEY, how="anti", maintain_order="left") for frame in frames]


def _student(part: pl.DataFrame, confidence: float, replicates: int, seed: int) -> dict[str, float | None]:
    before, after = part["before"].to_numpy(), part["after"].to_numpy()
    low, high = percentiles(bootstrap_means(after - before, replicates, seed)[:, 0], confidence)
    rose, fell = after > before, after < before
    error = clustered_mean(after - before, None, confidence).standard_error
    mdd = minimum_detectable_difference(error, len(after), confidence) if error > 0 else None
    return {"before": before.mean(), "after": after.mean(), "gain": (after - before).mean(),
            "gain_low": float(low), "gain_high": float(high), "mdd": mdd, "gained": int(rose.sum()),
            "lost": int(fell.sum()), "p": mcnemar_exact(rose, fell)}


def _gap(part: pl.DataFrame, confidence: float, replicates: int, seed: int) -> dict[str, float | None]:
    """The share of teacher - before that the student made up, both means from the same resampled items."""
    if part["teacher"].null_count():
        return dict.fromkeys(("teacher", "gap_recovered", "gap_low", "gap_high"))
    gain = (part["after"] - part["before"]).to_numpy()
    gap = (part["teacher"] - part["before"]).to_numpy()
    means = bootstrap_means(np.stack([gain, gap], axis=1), replicates, seed)
    low, high = None, None
    if np.mean(means[:, 1] <= 0) < (1 - confidence) / 2:
        ahead = means[means[:, 1] > 0]
        low, high = (float(end) for end in percentiles(ahead[:, 0] / ahead[:, 1], confidence))
    recovered = gain.mean() / gap.mean() if gap.mean() > 0 else None
    return {"teacher": part["teacher"].to_numpy().mean(), "gap_recovered": recovered, "gap_low": low,
            "gap_high": high}


def _tokens(part: pl.DataFrame) -> dict[str, float | None]:
    names = ("teacher_tokens", "before_tokens", "after_tokens")
    means = {name: part[name].drop_nulls().to_numpy() for name in names}
    return {name: float(values.mean()) if len(values) else None for name, values in means.items()}


def _joined(before: pl.DataFrame, after: pl.DataFrame, k: int) -> pl.DataFrame:
    left, right = _rates(before, "before", k), _rates(after, "after", k)
    joined = left.join(right, on=KEY, how="inner", maintain_order="left")
    if not len(joined) == len(left) == len(right):
        raise ValueError(f"before has {len(left)} items, after {len(right)}, {len(joined)} are in both; "
                         "score the student before and after on the same items.")
    return joined


def _rates(frame: pl.DataFrame, name: str, k: int) -> pl.DataFrame:
    """`task, item`, pass@k as `name`, and `name_tokens`."""
    missing = [column for column in (*KEY, "n", "c") if column not in frame.columns]
    if missing:
        raise ValueError(f"{name}: no column {', '.join(missing)}; it has {', '.join(frame.columns)}.")
    if frame.select(KEY).is_duplicated().any():
        raise ValueError(f"{name}: a task holds the same item twice; add its samples up first.")
    rate = np.atleast_1d(np.asarray(pass_at_k(frame["n"], frame["c"], k))) + 0.0  # no -0%
    tokens = pl.col("tokens").cast(pl.Float64) if "tokens" in frame.columns else pl.lit(None, pl.Float64)
    return frame.select(*KEY, pl.Series(name, rate), tokens.alias(f"{name}_tokens"))
