"""pass@k, maj@k and best-of-k of items that were graded here or recorded elsewhere, and two models on their items.

A frame of items has one row a benchmark, model and item: `benchmark, model, item`; of `taken` samples `n` are scored
and `c` correct; lists of one entry a sample, each null where unknown: `correct` (null in it: unscored), `answers`
(equal ones are one class, null: none) and `scores`.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from assay.eval.comparison import Correctness, compare_pass_at_k, four_way
from assay.eval.intervals import share_mean
from assay.eval.pass_at_k import pass_at_k
from assay.eval.voting import best_of_k, majority_at_k, merge_correct

__all__ = ["ITEMS", "Comparison", "compare", "curves", "headline"]

ITEMS: dict[str, Any] = {
    "benchmark": pl.String, "model": pl.String, "item": pl.String, "taken": pl.Int64, "n": pl.Int64, "c": pl.Int64,
    "correct": pl.List(pl.Boolean), "answers": pl.List(pl.String), "scores": pl.List(pl.Float64)}  # fmt: skip
CURVES: dict[str, Any] = {
    "benchmark": pl.String, "model": pl.String, "metric": pl.String, "k": pl.Int64, "estimate": pl.Float64,
    "low": pl.Float64, "high": pl.Float64, "items": pl.Int64}  # fmt: skip
KIND = ["benchmark", "model", "metric"]


def curves(items: pl.DataFrame, ks: Iterable[int], confidence: float = 0.95) -> pl.DataFrame:
    """The three estimates at every k, with their intervals over items.

    pass@k and best-of-k are over items with k scored samples, which alone count; a vote is over items with k samples of
    which every answered one is scored. Correct answers vote together; an answer both right and wrong has no vote.

    Returns:
        `benchmark, model, metric (pass@k, maj@k, best-of-k), k, estimate, low, high, items`; a k that no item allows is
        left out.
    """
    rows, ks = [], list(ks)
    for names, part in items.group_by(["benchmark", "model"], maintain_order=True):
        for metric, values in METRICS.items():
            for k, found in ((k, values(part, k)) for k in ks):
                if found:
                    mean = share_mean(found, confidence)
                    rows.append((*names, metric, k, mean.estimate, mean.low, mean.high, mean.items))
    return pl.DataFrame(rows, schema=CURVES, orient="row").with_columns(pl.col("low", "high").fill_nan(None))


def headline(found: pl.DataFrame) -> pl.DataFrame:
    """pass@1, and pass@k and maj@k at the largest k: `metric, model, value, low, high`, of rows of `curves`.

    Metrics are named by benchmark where there are several.
    """
    first, last = (pl.col("k") == 1) & (pl.col("metric") == "pass@k"), pl.col("k") == pl.col("k").max().over(KIND)
    rows = found.filter(pl.col("metric") != "best-of-k").filter(first | last)
    several = pl.format("{} ", "benchmark") if rows["benchmark"].n_unique() > 1 else pl.lit("")
    metric = pl.concat_str(several, pl.col("metric").str.head(-1), pl.col("k"))
    return rows.select(metric.alias("metric"), "model", "low", "high", value="estimate")


class Comparison(NamedTuple):
    """`model` against `base` on their common items: frames of `comparison`, `benchmark, model, base` in front."""

    difference: pl.DataFrame
    four_way: pl.DataFrame


def compare(items: pl.DataFrame, model: str, base: str, ks: Iterable[int]) -> Comparison:
    """Paired differences model - base at every k, and the four-way table (`cell` names it), by benchmark.

    A k is left out where an item has fewer samples, or none has so many scored in both.

    Raises:
        ValueError: no common items with scored samples in both, or no k that they allow.
    """
    key, named = ["benchmark", "item"], {"model": model, "base": base}
    joined = items.filter(model=model).join(items.filter(model=base), on=key, suffix="_b", maintain_order="left")
    differences, tables = [], []
    for (benchmark,), part in joined.group_by(["benchmark"], maintain_order=True):
        most = np.minimum(part["n"], part["n_b"]).max(), part["taken"].min(), part["taken_b"].min()
        if fitting := [k for k in ks if k <= min(most)]:
            left, right = _correctness(part, ""), _correctness(part, "_b")
            who = [pl.lit(text).alias(name) for name, text in {"benchmark": benchmark, **named}.items()]
            differences.append(compare_pass_at_k(left, right, fitting).select(*who, pl.all()))
            cell = pl.col("solved_by").replace({"a_only": f"{model} only", "b_only": f"{base} only"})
            tables.append(four_way(left, right).select(*who, cell.alias("cell"), pl.all()))
    if not differences:
        raise ValueError(f"{model} and {base}: no item in common that has the samples; nothing to compare.")
    return Comparison(pl.concat(differences), pl.concat(tables))


def _correctness(part: pl.DataFrame, suffix: str) -> Correctness:
    """The verdicts, or the counts where only these are known."""
    lists = part["correct" + suffix]
    return (part["n" + suffix], part["c" + suffix]) if lists.null_count() else lists.to_list()


def _passes(part: pl.DataFrame, k: int) -> list[float]:
    scored = part.filter(pl.col("n") >= k)
    return np.atleast_1d(np.asarray(pass_at_k(scored["n"], scored["c"], k))).tolist()


def _votes(part: pl.DataFrame, k: int) -> list[float]:
    found: list[float] = []
    for answers, correct in part.filter(pl.col("taken") >= k).select("answers", "correct").drop_nulls().iter_rows():
        labels = merge_correct([a or None for a in answers], correct)
        verdicts = {(label, flag) for label, flag in zip(labels, correct) if label is not None}
        if len(verdicts) == len(dict(verdicts)) and None not in dict(verdicts).values():
            found.append(majority_at_k(labels, [bool(f) for f in correct], k))
    return found


def _bests(part: pl.DataFrame, k: int) -> list[float]:
    found: list[float] = []
    for scores, correct in part.select("scores", "correct").drop_nulls().iter_rows():
        scored = [(s, f) for s, f in zip(scores, correct) if f is not None]
        if len(scored) >= k and all(s is not None for s, _ in scored):
            found.append(best_of_k([s for s, _ in scored], [f for _, f in scored], k))
    return found


METRICS: dict[str, Callable[[pl.DataFrame, int], list[float]]] = {
    "pass@k": _passes, "maj@k": _votes, "best-of-k": _bests}  # fmt: skip
