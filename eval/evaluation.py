"""Evaluation of a model on benchmarks: n samples an item, graded.

Samples and verdicts go through the store, so an evaluation that was cut off goes on, and one that was done costs
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from assay.eval.curves import ITEMS, curves
from assay.pipelines import generate
from assay.pipelines.prompts import opens_thinking

if TYPE_CHECKING:
    from assay.pipelines.engines import Engine, Sampling
    from assay.pipelines.store import Store
    from assay.pipelines.verify import Policy, Verifier

__all__ = ["Evaluation", "evaluate"]

STATUSES = ("correct", "wrong", "truncated", "unverifiable", "timeout")
SCORED, RIGHT = pl.col("status").is_in(["correct", "wrong"]), pl.col("status") == "correct"


@dataclass(frozen=True)
class Evaluation:
    """Graded samples of one model on one or several benchmarks.

    `samples` holds a row a sample in order of items and sample index: `benchmark, problem_id, sample, status,
    extracted, reason, text, tokens`; `answer_class`, equal for equivalent answers and null where there is none;
    `score`, the mean log-probability of its tokens, nats.
    """

    model: str
    samples: pl.DataFrame

    @cached_property
    def items(self) -> pl.DataFrame:
        """As `curves` takes them, and the mean `tokens` of a sample.

        The score is the mean log-probability; there are no answers where no sample of the benchmark has a class.
        """
        votes = pl.col("answer_class").is_not_null().any().over("benchmark")
        rows = self.samples.with_columns(pl.lit(self.model).alias("model"), votes=votes)
        found = rows.group_by("benchmark", "model", pl.col("problem_id").alias("item"), maintain_order=True).agg(
            taken=pl.len(), n=SCORED.sum(), c=RIGHT.sum(), correct=pl.when(SCORED).then(RIGHT), answers="answer_class",
            scores="score", tokens=pl.col("tokens").mean(), votes=pl.col("votes").first())  # fmt: skip
        answers = pl.when("votes").then("answers")
        return found.with_columns(answers=answers).select(*ITEMS, "tokens").cast(ITEMS)  # type: ignore[arg-type]

    def pass_at_k(self, ks: Sequence[int]) -> pl.DataFrame:
        """The rows of `curves.curves` of pass@k."""
        return curves(self.items, ks).filter(metric="pass@k")

    def outcomes(self) -> pl.DataFrame:
        """`benchmark, model, items, samples`, counts of every status, and `unscored`: samples that count nowhere."""
        counted = [(pl.col("status") == s).sum().alias(s) for s in STATUSES]
        found = self.samples.group_by("benchmark", maintain_order=True).agg(
            pl.lit(self.model).alias("model"), pl.col("problem_id").n_unique().alias("items"),
            pl.len().alias("samples"), *counted, (~SCORED).sum().alias("unscored"))  # fmt: skip
        return found.with_columns(pl.selectors.unsigned_integer().cast(pl.Int64))


def evaluate(store: Store, engine: Engine, verifier: Verifier, problems: pl.DataFrame, *, model: str, n: int,
             sampling: Sampling, mode: str = "think", instruction: str | None = None, seed: int = 0,
             policy: Policy | None = None, progress: generate.Progress | None = None) -> Evaluation:  # fmt: skip
    """n samples of every item of one benchmark, graded.

    Args:
        problems: columns `id`, `problem`, `answer`, `source` (the benchmark's name).
        model: the name in reports.
        verifier: one without `equivalence_classes` grades programs, and there is no vote over these.
    """
    rows = generate.sample(store, engine, problems, mode=mode, samples=n, sampling=sampling, seed=seed,
                           instruction=instruction, progress=progress)  # fmt: skip
    opened = opens_thinking(engine.tokenizer, mode)
    verdicts = generate.grade(store, verifier, problems, rows, policy, opened)
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
