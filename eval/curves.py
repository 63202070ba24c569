"""pass@k, maj@k and best-of-k of items that were graded here or recorded elsewhere, and two models on their items.

A frame of items has one row a benchmark, model and item: `benchmark, model, item`; of `taken` samples `n` are scored
and `c` correct; lists of one entry a sample, each null where unknown: `correct` (null in it: unscored), `answers`
(equal ones are one class, null: none) and `scores`. Samples without a verdict are in no estimate.
"""

from collections.abc import Callable, Collection, Iterable
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from assay.eval.comparison import Correctness, compare_pass_at_k, four_way
from assay.eval.intervals import caution, share_mean
from assay.eval.pass_at_k import pass_at_k
from assay.eval.voting import best_of_k, majority_at_k, merge_correct

__all__ = ["ITEMS", "Comparison", "NothingInCommon", "compare", "curves", "doubling", "few", "headline", "partial",
           "reach"]  # fmt: skip

ITEMS: dict[str, Any] = {
    "benchmark": pl.String, "model": pl.String, "item": pl.String, "taken": pl.Int64, "n": pl.Int64, "c": pl.Int64,
    "correct": pl.List(pl.Boolean), "answers": pl.List(pl.String), "scores": pl.List(pl.Float64)}  # fmt: skip
CURVES: dict[str, Any] = {
    "benchmark": pl.String, "model": pl.String, "metric": pl.String, "k": pl.Int64, "estimate": pl.Float64,
    "low": pl.Float64, "high": pl.Float64, "items": pl.Int64, "of": pl.Int64, "drawn_error": pl.Float64}  # fmt: skip
NEARLY = 0.95  # of the items must have k scored samples: hard items lack some first, and without them pass@k flatters
WHOLE = pl.col("items") >= NEARLY * pl.col("of")


def doubling(n: int) -> list[int]:
    """1, 2, 4, ... up to n, and n."""
    return sorted({*(2**i for i in range(n.bit_length())), n})


def reach(n: pl.Series) -> int:
    """The largest k that nearly all items with a scored sample allow; 0 where none has one."""
    scored = n.filter(n > 0).sort(descending=True)
    return int(scored[ceil(NEARLY * len(scored)) - 1]) if len(scored) else 0


def curves(items: pl.DataFrame, ks: Iterable[int], confidence: float = 0.95) -> pl.DataFrame:
    """The three estimates at every k, with their intervals over items.

    All are over items with k scored samples, which alone count. Correct answers vote together; an item with an answer
    both right and wrong has no vote. A scored sample without an answer takes a place in the vote and never wins.

    Returns:
        `benchmark, model, metric (pass@k, maj@k, best-of-k), k, estimate, low, high, items, of, drawn_error`: `items`
        of the `of` that have a value at k = 1; a k that no item allows is left out. `drawn_error` is the Monte-Carlo
        standard error of the estimate, 0 where it is exact: of maj@k over more than `EXACT_UP_TO` samples it is not.
    """
    rows, ks = [], list(ks)
    for names, part in items.group_by(["benchmark", "model"], maintain_order=True):
        for metric, values in METRICS.items():
            of = len(values(part, 1))
            for k, found in ((k, values(part, k)) for k in ks):
                if found:
                    mean = share_mean(found, confidence)
                    drawn = np.linalg.norm([getattr(v, "standard_error", 0.0) for v in found]) / len(found)
                    rows.append((*names, metric, k, *mean[:3], mean.items, of, drawn))
    return pl.DataFrame(rows, schema=CURVES, orient="row").with_columns(pl.col("low", "high").fill_nan(None))


def headline(found: pl.DataFrame) -> pl.DataFrame:
    """pass@1, and pass@k and maj@k at the largest k that nearly all items of every model allow, of rows of `curves`.

    A power of two where there is one, as k is reported elsewhere: of 10 samples pass@8.

    Returns:
        `metric, model, value, low, high`; metrics are named by benchmark where there are several.
    """
    of, models = ["benchmark", "metric"], pl.col("model").n_unique()
    rows = found.with_columns(every=models.over(of)).filter(pl.col("metric") != "best-of-k")
    rows = rows.filter(WHOLE) if "of" in found.columns else rows  # results of earlier versions lack it
    rows = rows.filter(models.over(*of, "k") == pl.col("every"))
    usual = pl.when((pl.col("k") > 1) & (pl.col("k") & (pl.col("k") - 1) == 0)).then("k")
    last = pl.col("k") == pl.coalesce(usual.max().over(of), pl.col("k").max().over(of))
    rows = rows.filter((pl.col("k") == 1) & (pl.col("metric") == "pass@k") | last)
    several = pl.format("{} ", "benchmark") if found["benchmark"].n_unique() > 1 else pl.lit("")
    metric = pl.concat_str(several, pl.col("metric").str.head(-1), pl.col("k"))
    return rows.select(metric.alias("metric"), "model", "low", "high", value="estimate")


def partial(found: pl.DataFrame) -> list[str]:
    """What of rows of `curves` is over a part of the items only, or was drawn, in words."""
    worst = found.group_by("benchmark", "model", "metric", maintain_order=True).agg(pl.col("drawn_error").max())
    drawn = [f"{benchmark}, {model}: {metric} is drawn, not exact; Monte-Carlo standard error up to "
             f"{100 * error:.2f} points" for benchmark, model, metric, error in worst.iter_rows() if error]  # fmt: skip
    return [f"{benchmark}, {model}: pass@{k:,} is over the {items:,} of {of:,} items that have so many scored samples, "
            "and no headline figure"
            for benchmark, model, k, items, of in found.filter(~WHOLE, metric="pass@k").select(
                "benchmark", "model", "k", "items", "of").iter_rows()] + drawn  # fmt: skip


def few(found: pl.DataFrame, compared: Collection[str] = (), what: str = "") -> list[str]:
    """Benchmarks with a figure over too few items to tell much, but those `compared`: there the comparison says so.

    Args:
        found: rows of `curves`, or of a sweep with `benchmark` in front.
    """
    rows = found.filter(pl.col("items") > 0, ~pl.col("benchmark").is_in(list(compared)))
    least = rows.group_by("benchmark", maintain_order=True).agg(pl.col("items").min())
    said = [(name, caution(items)) for name, items in least.iter_rows()]
    return [f"few items: {name}{what}: {words}" for name, words in said if words]


class NothingInCommon(ValueError):
    """Two models have no item whose samples can be compared."""


class Comparison(NamedTuple):
    """`model` against `base` on their common items: frames of `comparison`, `benchmark, model, base` in front."""

    difference: pl.DataFrame
    four_way: pl.DataFrame


def compare(items: pl.DataFrame, model: str, base: str, ks: Iterable[int]) -> Comparison:
    """Paired differences model - base at every k, and the four-way table (`cell` names it), by benchmark.

    A k is left out where an item has fewer samples, or more than a few have fewer scored in both. The crossing is
    looked for at every k up to the largest that is not, whichever are asked.

    Raises:
        NothingInCommon: no common items with scored samples in both, or no k that they allow.
    """
    key, named = ["benchmark", "item"], {"model": model, "base": base}
    joined = items.filter(model=model).join(items.filter(model=base), on=key, suffix="_b", maintain_order="left")
    joined = joined.filter(pl.col("n") > 0, pl.col("n_b") > 0)
    differences, tables = [], []
    for (benchmark,), part in joined.group_by(["benchmark"], maintain_order=True):
        taken = part.select(pl.min_horizontal("taken", "taken_b").min()).item()
        most = min(taken, reach(part.select(pl.min_horizontal("n", "n_b")).to_series()))
        if fitting := [k for k in ks if k <= most]:
            left, right = _correctness(part, ""), _correctness(part, "_b")
            who = [pl.lit(text).alias(name) for name, text in {"benchmark": benchmark, **named}.items()]
            differences.append(compare_pass_at_k(left, right, fitting, up_to=most).select(*who, pl.all()))
            cell = pl.col("solved_by").replace({"a_only": f"{model} only", "b_only": f"{base} only"})
            tables.append(four_way(left, right).select(*who, cell.alias("cell"), pl.all()))
    if not differences:
        raise NothingInCommon(f"{model} and {base}: no item in common that has the samples; nothing to compare.")
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
    for seed, row in enumerate(part.select("answers", "correct").drop_nulls().iter_rows()):
        scored = [(answer or None, flag) for answer, flag in zip(*row) if flag is not None]
        if len(scored) >= k:
            answers, flags = zip(*scored)
            labels = merge_correct(answers, flags)
            verdicts = {(label, flag) for label, flag in zip(labels, flags) if label is not None}
            if len(verdicts) == len(dict(verdicts)):
                found.append(majority_at_k(labels, flags, k, seed=seed))  # of its own: errors must not add up
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
