"""Evaluation of a model on benchmarks: n samples an item, graded; pass@k, maj@k and best-of-k with intervals by item.

Samples and verdicts go through the store, so an evaluation that was cut off goes on, and one that was done costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.eval.comparison import compare_pass_at_k, four_way
from assay.eval.intervals import share_mean
from assay.eval.pass_at_k import counts, pass_at_k
from assay.eval.voting import best_of_k, majority_at_k, merge_correct
from assay.pipelines import generate

if TYPE_CHECKING:
    from assay.pipelines.engines import Engine, Sampling
    from assay.pipelines.store import Store
    from assay.pipelines.verify import Policy, Verifier

__all__ = ["Comparison", "Evaluation", "compare", "evaluate", "powers_of_two"]

STATUSES = ("correct", "wrong", "truncated", "unverifiable", "timeout")
SCORED = pl.col("status").is_in(["correct", "wrong"])
CURVE = {"benchmark": pl.String, "model": pl.String, "k": pl.Int64, "estimate": pl.Float64, "low": pl.Float64,
         "high": pl.Float64, "items": pl.Int64}  # fmt: skip


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4, ... up to n."""
    return [2**i for i in range(n.bit_length())]


@dataclass(frozen=True)
class Evaluation:
    """Graded samples of one model on one or several benchmarks.

    `samples` holds a row a sample in order of items and sample index: `benchmark, problem_id, sample, status,
    extracted, reason, text, tokens`; `answer_class`, equal for equivalent answers and null where there is none;
    `score`, the mean log-probability of its tokens, nats.
    """

    model: str
    samples: pl.DataFrame

    @property
    def benchmarks(self) -> list[str]:
        """In order of appearance."""
        return self.samples["benchmark"].unique(maintain_order=True).to_list()

    def on(self, benchmark: str) -> Evaluation:
        """The part on one benchmark."""
        return Evaluation(self.model, self.samples.filter(pl.col("benchmark") == benchmark))

    @property
    def correct(self) -> list[list[bool | None]]:
        """Per item its samples: True, False, or None where nothing was scored (truncated, unverifiable, timeout)."""
        scored = pl.when(SCORED).then(pl.col("status") == "correct")
        return self._by_item(scored.alias("flag"))["flag"].to_list()

    @property
    def largest_k(self) -> int:
        """The largest k that some item has scored samples for; 0 when nothing was scored."""
        return max((sum(f is not None for f in item) for item in self.correct), default=0)

    def pass_at_k(self, ks: Sequence[int]) -> pl.DataFrame:
        """`benchmark, model, k, estimate, low, high, items`, as maj@k and best-of-k too.

        `items` have k scored samples; a k that no item has is left out.
        """
        return self._curves(ks, lambda part, k: part._passes(k))

    def majority_at_k(self, ks: Sequence[int]) -> pl.DataFrame:
        """The exact vote; a sample without an answer is drawn but never wins. Nothing where no answer has a class."""
        return self._curves(ks, lambda part, k: part._votes(k))

    def best_of_k(self, ks: Sequence[int]) -> pl.DataFrame:
        """The sample of the highest mean log-probability among k scored ones."""
        return self._curves(ks, lambda part, k: part._bests(k))

    def outcomes(self) -> pl.DataFrame:
        """`benchmark, model, items, samples`, counts of every status, and `unscored`: samples that count nowhere."""
        counted = [(pl.col("status") == s).sum().alias(s) for s in STATUSES]
        found = self.samples.group_by("benchmark", maintain_order=True).agg(
            pl.lit(self.model).alias("model"), pl.col("problem_id").n_unique().alias("items"),
            pl.len().alias("samples"), *counted, (~SCORED).sum().alias("unscored"))  # fmt: skip
        return found.with_columns(pl.selectors.unsigned_integer().cast(pl.Int64))

    def headline(self, k: int) -> dict[str, dict[str, float]]:
        """pass@1, pass@k and maj@k, each with `value`, `low` and `high`; named by benchmark where there are several."""
        several, named = len(self.benchmarks) > 1, dict[str, dict[str, float]]()
        for part in map(self.on, self.benchmarks):
            top = min(k, part.largest_k)
            found = [*part.pass_at_k(sorted({1, top})).to_dicts(), *part.majority_at_k([top]).to_dicts()]
            names = [*(f"pass@{i}" for i in sorted({1, top})), f"maj@{top}"]
            prefix = f"{part.benchmarks[0]} " if several else ""
            named |= {prefix + name: _share(row) for name, row in zip(names, found)}
        return named

    def rates(self, task: str | None = None) -> pl.DataFrame:
        """`task, item, n, c, tokens` for `distillation.table`; the task is the benchmark when not given."""
        name = pl.col("benchmark") if task is None else pl.lit(task)
        return (
            self.samples.group_by("benchmark", "problem_id", maintain_order=True)
            .agg(n=SCORED.sum(), c=(pl.col("status") == "correct").sum(), tokens=pl.col("tokens").mean())
            .select(name.alias("task"), pl.col("problem_id").alias("item"), "n", "c", "tokens")
        )

    def _curves(self, ks: Sequence[int], values: Callable[[Evaluation, int], list[float]]) -> pl.DataFrame:
        rows: list[tuple[Any, ...]] = []
        for part in map(self.on, self.benchmarks):
            for k in ks:
                if found := values(part, k):
                    mean = share_mean(np.array(found))
                    rows.append((part.benchmarks[0], self.model, k, mean.estimate, mean.low, mean.high, mean.items))
        return pl.DataFrame(rows, schema=CURVE, orient="row").with_columns(pl.col("low", "high").fill_nan(None))

    def _passes(self, k: int) -> list[float]:
        n, c = counts(self.correct)
        return np.atleast_1d(np.asarray(pass_at_k(n[n >= k], c[n >= k], k))).tolist()

    def _votes(self, k: int) -> list[float]:
        if self.samples["answer_class"].is_null().all():
            return []
        items = self._by_item("answer_class", (pl.col("status") == "correct").alias("right"))
        rows = [(merge_correct(c, r), r) for c, r in items.select("answer_class", "right").iter_rows() if len(r) >= k]
        return [majority_at_k(classes, right, k) for classes, right in rows]

    def _bests(self, k: int) -> list[float]:
        scored = Evaluation(self.model, self.samples.filter(SCORED))
        items = scored._by_item("score", (pl.col("status") == "correct").alias("right"))
        return [best_of_k(s, r, k) for s, r in items.select("score", "right").iter_rows() if len(r) >= k]

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
    """n samples of every item of one benchmark, graded.

    Args:
        problems: columns `id`, `problem`, `answer`, `source` (the benchmark's name).
        model: the name in reports.
        verifier: one without `equivalence_classes` grades programs, and there is no vote over these.
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
    columns = {"tokens": pl.col("token_ids").list.len(), "score": pl.col("logprobs").list.mean().cast(pl.Float64)}
    joined = (
        rows.select("key", "problem_id", "sample", "text", **columns)
        .join(verdicts.select("key", "status", "extracted", "reason"), on="key", how="left", maintain_order="left")
        .join(problems.select(problem_id="id", benchmark="source"), on="problem_id", how="left", maintain_order="left")
    )
    return Evaluation(model, pl.concat(_classed(joined.drop("key"), verifier, policy)))


def _classed(samples: pl.DataFrame, verifier: Verifier, policy: Policy | None) -> Iterator[pl.DataFrame]:
    """Cluster equivalent answers item by item; what was not scored or has no answer is in no class."""
    for _, item in samples.group_by("problem_id", maintain_order=True):
        votes = hasattr(verifier, "equivalence_classes")
        classes = verifier.equivalence_classes(item["extracted"].to_list(), policy) if votes else [-1] * len(item)
        labels = [c if c >= 0 and s in ("correct", "wrong") else None for c, s in zip(classes, item["status"])]
        yield item.with_columns(pl.Series("answer_class", labels, pl.Int64))


def _share(row: dict[str, float]) -> dict[str, float]:
    return {"value": row["estimate"], "low": row["low"], "high": row["high"]}


@dataclass(frozen=True)
class Comparison:
    """`model` against `base` on the same items: frames of `comparison`, with `benchmark, model, base` in front."""

    difference: pl.DataFrame
    four_way: pl.DataFrame


def compare(model: Evaluation, base: Evaluation, ks: Sequence[int]) -> Comparison:
    """Paired differences model - base at every k, and the four-way table at the largest k, by benchmark.

    A k is left out where no item has so many scored samples in both.

    Raises:
        ValueError: the two were not evaluated on the same items.
    """
    items = [e.samples["problem_id"].unique(maintain_order=True).to_list() for e in (model, base)]
    if items[0] != items[1]:
        raise ValueError(
            f"{model.model} has {len(items[0])} items and {base.model} {len(items[1])}: a paired "
            "comparison needs the same items in the same order."
        )
    differences, tables = [], []
    for name in model.benchmarks:
        left, right = model.on(name).correct, base.on(name).correct
        largest = max(min(map(_scored, pair)) for pair in zip(left, right))
        if fitting := [k for k in ks if k <= largest]:
            who = [pl.lit(text).alias(key) for key, text in
                   (("benchmark", name), ("model", model.model), ("base", base.model))]  # fmt: skip
            differences.append(compare_pass_at_k(left, right, fitting).select(*who, pl.all()))
            tables.append(four_way(left, right).select(*who, pl.all()))
    if not differences:
        raise ValueError(f"{model.model} and {base.model}: no item has a scored sample in both; nothing to compare.")
    return Comparison(pl.concat(differences), pl.concat(tables))


def _scored(item: list[bool | None]) -> int:
    return sum(flag is not None for flag in item)
