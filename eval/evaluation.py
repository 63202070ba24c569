"""Evaluation of a model on a benchmark: n samples an item, graded; pass@k and maj@k with intervals by item.

Samples and verdicts go through the store, so an evaluation that was cut off goes on, and one that was done costs
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.eval.comparison import compare_pass_at_k, four_way
from assay.eval.intervals import share_mean
from assay.eval.pass_at_k import pass_at_k_curve
from assay.eval.voting import majority_at_k, merge_correct
from assay.pipelines import generate

if TYPE_CHECKING:
    from assay.pipelines.engines import Engine, Sampling
    from assay.pipelines.store import Store
    from assay.pipelines.verify import Policy, Verifier

__all__ = ["Comparison", "Evaluation", "compare", "evaluate", "powers_of_two"]


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4, ... up to n."""
    return [2**i for i in range(n.bit_length())]


@dataclass(frozen=True)
class Evaluation:
    """Graded samples of one model on one benchmark.

    `samples` holds a row a sample in order of items and sample index: `problem_id, sample, status, extracted, reason,
    text, tokens`, and `answer_class`, equal for equivalent answers and null where there is none.
    """

    model: str
    samples: pl.DataFrame

    @property
    def correct(self) -> list[list[bool | None]]:
        """Per item its samples: True, False, or None where nothing was scored (truncated, unverifiable, timeout)."""
        scored = pl.when(pl.col("status").is_in(["correct", "wrong"])).then(pl.col("status") == "correct")
        return self._by_item(scored.alias("flag"))["flag"].to_list()

    def pass_at_k(self, ks: Sequence[int]) -> pl.DataFrame:
        """`model, k, estimate, low, high`; items with fewer than k scored samples are left out of that k."""
        counted = [(sum(f is not None for f in item), sum(f is True for f in item)) for item in self.correct]
        parts = []
        for k in ks:
            held = [(n, c) for n, c in counted if n >= k]
            if held:
                n, c = zip(*held)
                parts.append(pass_at_k_curve(n, c, [k]))
        return pl.concat(parts).select(pl.lit(self.model).alias("model"), "k", "estimate", "low", "high")

    def majority_at_k(self, ks: Sequence[int]) -> pl.DataFrame:
        """`model, k, estimate, low, high` of the exact vote; a sample without an answer is drawn but never wins."""
        items = self._by_item("answer_class", (pl.col("status") == "correct").alias("right")).rows(named=True)
        rows = []
        for k in ks:
            votes = [majority_at_k(merge_correct(i["answer_class"], i["right"]), i["right"], k) for i in items]
            found = share_mean(np.array(votes))
            rows.append({"model": self.model, "k": k, "estimate": found.estimate, "low": found.low, "high": found.high})
        return pl.DataFrame(rows)

    def headline(self, k: int) -> dict[str, dict[str, float]]:
        """pass@1, pass@k and maj@k, each with `value`, `low` and `high`."""
        passes, votes = self.pass_at_k([1, k]), self.majority_at_k([k])
        named = zip(("pass@1", f"pass@{k}", f"maj@{k}"), [*passes.to_dicts(), *votes.to_dicts()])
        return {name: {"value": r["estimate"], "low": r["low"], "high": r["high"]} for name, r in named}

    def rates(self, task: str) -> pl.DataFrame:
        """`task, item, n, c, tokens` for `distillation.table`."""
        scored = pl.col("status").is_in(["correct", "wrong"])
        return (
            self.samples.group_by("problem_id", maintain_order=True)
            .agg(n=scored.sum(), c=(pl.col("status") == "correct").sum(), tokens=pl.col("tokens").mean())
            .select(pl.lit(task).alias("task"), pl.col("problem_id").alias("item"), "n", "c", "tokens")
        )

    def _by_item(self, *columns: Any) -> pl.DataFrame:
        return self.samples.group_by("problem_id", maintain_order=True).agg(*columns)


def evaluate(
    store: Store,
    engine: Engine,
    verifier: Verifier,
    problems: pl.DataFrame,
    *,
    model: str,
    n: int,
    sampling: Sampling,
    mode: str = "think",
    instruction: str | None = None,
    seed: int = 0,
    policy: Policy | None = None,
    progress: generate.Progress | None = None,
) -> Evaluation:
    """n samples of every item, graded.

    Args:
        problems: columns `id`, `problem`, `answer`; the benchmark.
        model: the name in reports.
    """
    rows = generate.sample(
        store,
        engine,
        problems,
        mode=mode,
        samples=n,
        sampling=sampling,
        seed=seed,
        instruction=instruction,
        progress=progress,
    )
    verdicts = generate.grade(store, verifier, problems, rows, policy)
    joined = rows.select("key", "problem_id", "sample", "text", tokens=pl.col("token_ids").list.len()).join(
        verdicts.select("key", "status", "extracted", "reason"), on="key", how="left", maintain_order="left"
    )
    return Evaluation(model, _with_classes(joined.drop("key"), verifier))


def _with_classes(samples: pl.DataFrame, verifier: Verifier) -> pl.DataFrame:
    """Cluster equivalent answers item by item; what was not scored or has no answer is in no class."""
    parts = []
    for _, item in samples.group_by("problem_id", maintain_order=True):
        classes = verifier.equivalence_classes(item["extracted"].to_list())
        labels = [c if c >= 0 and s in ("correct", "wrong") else None for c, s in zip(classes, item["status"])]
        parts.append(item.with_columns(pl.Series("answer_class", labels, pl.Int64)))
    return pl.concat(parts)


@dataclass(frozen=True)
class Comparison:
    """Trained against base on the same items; frames as `comparison` and the report define them."""

    difference: pl.DataFrame
    four_way: pl.DataFrame


def compare(trained: Evaluation, base: Evaluation, ks: Sequence[int]) -> Comparison:
    """Paired differences trained - base at every k, and the four-way table at the largest k.

    Raises:
        ValueError: the two were not evaluated on the same items.
    """
    items = [e.samples["problem_id"].unique(maintain_order=True).to_list() for e in (trained, base)]
    if items[0] != items[1]:
        raise ValueError(
            f"{trained.model} has {len(items[0])} items and {base.model} {len(items[1])}: a paired "
            "comparison needs the same items in the same order."
        )
    return Comparison(compare_pass_at_k(trained.correct, base.correct, ks), four_way(trained.correct, base.correct))
