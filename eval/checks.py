"""What a report's numbers support or refute, in words and with the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.eval.comparison import PAIR, points
from assay.eval.intervals import caution

if TYPE_CHECKING:
    from assay.eval.report import ReportData

__all__ = ["Check", "checks"]

RATIO_LIMIT = 1e-4  # the first step of an on-policy run must have ratio 1 up to this
TRUNCATED_LIMIT = 0.05  # beyond it, an accuracy says as much about the room for answers as about the model


@dataclass(frozen=True)
class Check:
    """One reason to believe the result or to doubt it; `verdict` is good, open or bad."""

    verdict: str
    claim: str
    evidence: str


def checks(data: ReportData) -> list[Check]:
    """The claims that the data can support or refute, each with its evidence."""
    found = [_agreement(data.summary), *_changes(data), _contamination(data.funnel), _seen(data.benchmarks)]
    return [check for check in [*found, _unscored(data.outcomes), _truncation(data.budgets)] if check]


def _agreement(summary: Mapping[str, Any] | None) -> Check | None:
    error = ((summary or {}).get("training") or {}).get("ratio_error_first_step")
    if error is None:
        return None
    good = abs(error) <= RATIO_LIMIT
    claim = "Sampler and trainer agree" if good else "Sampler and trainer disagree: the updates were biased"
    return Check("good" if good else "bad", claim, f"ratio error {error:.2g} at the first step, limit {RATIO_LIMIT:g}")


def _changes(data: ReportData) -> Iterator[Check]:
    """Of every comparison: the change of pass@1 and of the largest k, and of a control whether it explains the gain."""
    if data.difference is None:
        return
    evaluation = (data.summary or {}).get("evaluation") or {}
    controls = set(evaluation.get("controls") or ())
    of_two = _of_training if evaluation.get("trained") or controls else _of_strangers
    several = data.difference["benchmark"].n_unique() > 1
    for (benchmark, model, base), rows in data.difference.group_by(PAIR, maintain_order=True):
        where = f"{benchmark}, {model}: " if several else ""
        judge = _beyond_control if base in controls else _of_control if model in controls else of_two
        for check in judge(rows.sort("k")):
            yield Check(check.verdict, where + check.claim, check.evidence)


def _of_training(rows: pl.DataFrame) -> Iterator[Check]:
    first, last = rows.row(0, named=True), rows.row(-1, named=True)
    if first["k"] == 1:
        yield _judged(first, "pass@1 rose by more than chance explains",
                      "No change of pass@1 is shown: the interval includes 0",
                      "pass@1 fell by more than chance explains")  # fmt: skip
    if last["k"] > 1:
        k = last["k"]
        yield _judged(last, f"The trained model also solves more at k = {k:,}: new problems, not only surer ones",
                      f"No difference at k = {k:,} is shown: the gain may be sharpening alone",
                      f"The base solves more at k = {k:,}: training narrowed what the model reaches")  # fmt: skip


def _of_strangers(rows: pl.DataFrame) -> Iterator[Check]:
    """Two models of which nobody said that one was trained from the other."""
    for row in rows.filter((pl.col("k") == pl.col("k").min()) | (pl.col("k") == pl.col("k").max())).to_dicts():
        at, verdict = f"at k = {row['k']:,}", _sign(row["low"], row["high"])
        more, less = (row["base"], row["model"]) if verdict == "bad" else (row["model"], row["base"])
        if verdict == "open":
            yield Check("open", f"No difference between {more} and {less} {at} is shown", _evidence(row))
        else:
            yield Check("good", f"{more} solves more than {less} {at}", _evidence(row))


def _of_control(rows: pl.DataFrame) -> Iterator[Check]:
    """Random rewards against the base: a rise is spurious."""
    first = rows.row(0, named=True)
    rose = _sign(first["low"], first["high"]) == "good"
    claim = "Random rewards raise pass@1 too: part of any gain is spurious" if rose else "Random rewards do not help"
    yield Check("bad" if rose else "good", claim, _evidence(first))


def _beyond_control(rows: pl.DataFrame) -> Iterator[Check]:
    yield _judged(rows.row(0, named=True), "The gain is beyond that of random rewards",
                  "The gain is not shown to exceed that of random rewards",
                  "Random rewards gained more than the training")  # fmt: skip


def _judged(row: Mapping[str, Any], good: str, unclear: str, bad: str) -> Check:
    verdict = _sign(row["low"], row["high"])
    return Check(verdict, {"good": good, "open": unclear, "bad": bad}[verdict], _evidence(row))


def _evidence(row: Mapping[str, Any]) -> str:
    """The difference, what could have been seen, and a warning of few items."""
    seen = "" if row["mdd"] is None else f"; detectable: {100 * row['mdd']:.2f}"
    few = caution(row["items"])
    change = points(row["difference"], row["low"], row["high"])
    return f"{change} points, paired{seen}" + (f". {few}" if few else "")


def _seen(benchmarks: pl.DataFrame | None) -> Check | None:
    """Benchmark items in the training set."""
    if benchmarks is None or benchmarks["contaminated"].null_count():
        return None
    rows = benchmarks.filter(pl.col("contaminated") > 0)
    if rows.is_empty():
        return Check("good", "No benchmark item was found in the training set", f"{benchmarks['items'].sum():,} items")
    told = "; ".join(f"{r['benchmark']} {r['contaminated']:,} of {r['items']:,}" for r in rows.to_dicts())
    return Check("bad", "Benchmark items stand in the training set: their accuracy is too high", told)


def _unscored(outcomes: pl.DataFrame | None) -> Check | None:
    if outcomes is None:
        return None
    worst = outcomes.with_columns(share=pl.col("unscored") / pl.col("samples")).sort("share").row(-1, named=True)
    return _few(worst["share"], worst["model"], "Few samples have no verdict",
                "Many samples have no verdict and count nowhere")  # fmt: skip


def _contamination(funnel: pl.DataFrame | None) -> Check | None:
    if funnel is None:
        return None
    rows = funnel.filter(pl.col("filter").str.contains("contamination"))
    if rows.is_empty():
        return Check("bad", "Nothing looked for benchmark items in the training set", "the funnel has no such filter")
    removed = int((rows["rows_in"] - rows["rows_out"]).sum())
    return Check("good", "Benchmark items were looked for and removed", f"{removed:,} rows removed")


def _truncation(budgets: pl.DataFrame | None) -> Check | None:
    if budgets is None:
        return None
    total = pl.max_horizontal(pl.sum_horizontal("natural", "forced", "truncated"), pl.lit(1.0))
    worst = budgets.select("model", "budget", share=pl.col("truncated") / total).sort("share").row(-1, named=True)
    return _few(worst["share"], f"{worst['model']}, budget {worst['budget']:,}", "Few answers were cut short",
                "Many answers were cut short: they have no verdict")  # fmt: skip


def _few(share: float, where: str, good: str, unclear: str) -> Check:
    few = share <= TRUNCATED_LIMIT
    return Check("good" if few else "open", good if few else unclear, f"at most {share:.1%} ({where})")


def _sign(low: float, high: float) -> str:
    return "good" if low > 0 else "bad" if high < 0 else "open"
