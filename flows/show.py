"""A training run's rollouts for a person to read: the best, the worst and the odd ones."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from assay.pipelines.errors import StoreError
from assay.pipelines.store import Store
from assay.rl.audit import second_opinion

__all__ = ["find_run", "pick", "show"]


@dataclass(frozen=True)
class _Kind:
    """Which rollouts to look for, the most telling first."""

    title: str
    rows: pl.Expr
    by: pl.Expr


KINDS = (
    _Kind("best", pl.col("status") == "correct", pl.col("reward")),
    _Kind("worst", pl.col("status") == "wrong", -pl.col("reward")),
    _Kind("right, but not by another reading", pl.col("doubtful"), pl.col("reward")),
    _Kind("wrong, and paid", (pl.col("status") == "wrong") & (pl.col("reward") > pl.col("usual")), pl.col("reward")),
    _Kind("no verdict", pl.col("status").is_in(["unverifiable", "timeout"]), pl.col("tokens")),
    _Kind("cut by the limit", pl.col("truncated"), pl.col("step")),
    _Kind("much longer than usual", pl.col("tokens") > 3 * pl.col("usual_tokens"), pl.col("tokens")),
)


def find_run(store: Store, name: str) -> str:
    """The run of that name, or the only one that begins with it; the newest of all for `latest`.

    Raises:
        StoreError: none, or several.
    """
    runs = store.scan("runs").sort("time").collect()["run"].unique(maintain_order=True).to_list()
    found = runs[-1:] if name == "latest" else [r for r in runs if r == name] or [r for r in runs if r.startswith(name)]
    if len(found) != 1:
        raise StoreError(f"{store.path}: {len(found)} runs begin with {name!r}; runs: {', '.join(runs) or 'none'}.")
    return found[0]


def pick(rollouts: pl.DataFrame, golds: dict[str, str], each: int = 2) -> dict[str, pl.DataFrame]:
    """The `each` most telling rollouts of every kind that occurs, by its title; no two of one problem in a kind.

    Args:
        rollouts: rows of the table `rollouts` of one run; `golds` by problem id.
    """
    rows = rollouts.filter(pl.col("reward").is_not_nan() | (pl.col("status") != "correct"))
    opinions = [
        status == "correct" and second_opinion(golds.get(problem, ""), text) is False
        for problem, text, status in rows.select("problem_id", "completion", "status").iter_rows()
    ]
    rows = rows.with_columns(
        doubtful=pl.Series(opinions, dtype=pl.Boolean),
        usual=pl.col("reward").fill_nan(None).mean(),
        usual_tokens=pl.col("tokens").median(),
    )
    found = {k.title: _first_of_problems(rows.filter(k.rows), k.by) for k in KINDS}
    return {title: frame.head(each) for title, frame in found.items() if frame.height}


def _first_of_problems(rows: pl.DataFrame, by: pl.Expr) -> pl.DataFrame:
    ranked = rows.sort(by, "step", descending=True, nulls_last=True)
    return ranked.unique("problem_id", keep="first", maintain_order=True)


def show(store: Store, name: str, each: int = 2, step: int | None = None) -> str:
    """The run's figures and its telling rollouts, as text; of one step where `step` is given."""
    run = find_run(store, name)
    rows = store.scan("rollouts").filter(pl.col("run") == run)
    rollouts = (rows if step is None else rows.filter(pl.col("step") == step)).collect()
    if rollouts.is_empty():
        raise StoreError(f"{store.path}: run {run} has no rollouts{'' if step is None else f' at step {step}'}.")
    rollouts = rollouts.unique(["step", "problem_id", "sample", "completion"], maintain_order=True)
    golds: dict[str, str] = dict(store.scan("problems").select("id", "answer").unique("id").collect().iter_rows())
    counted = rollouts["status"].value_counts(sort=True)
    shares = [f"{s} {n / rollouts.height:.1%}" for s, n in zip(counted["status"].to_list(), counted["count"].to_list())]
    steps = f"steps {rollouts['step'].min()!s} to {rollouts['step'].max()!s}"
    head = f"{run}: {rollouts.height:,} rollouts of {steps}; {', '.join(shares)}"
    picked = pick(rollouts, golds, each).items()
    told = [_told(title, row, golds) for title, frame in picked for row in frame.iter_rows(named=True)]
    return "\n\n".join([head, *told])


def _told(title: str, row: dict[str, object], golds: dict[str, str]) -> str:
    return (
        f"--- {title} (step {row['step']}, {row['problem_id']}) {row['status']}, reward {row['reward']:.3g}, "
        f"advantage {row['advantage']:.3g}, {row['tokens']} tokens\n"
        f"{row['prompt']}   [gold {golds.get(str(row['problem_id']), 'unknown')}]\n{row['completion']}"
    )
