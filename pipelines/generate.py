"""Sampling and grading against the store: what is recorded is not paid for again, what is paid for is not lost.

A generation's key names everything that decides it: the model's fingerprint, the prompt's token ids, the sampling
parameters, the problem, the sample index and the seed. Its seed is derived from the same, so a run that was cut short
and completed holds exactly the rows of an uninterrupted one, whatever the batches were.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from assay.pipelines.engines import Completion, Engine, Request, Sampling
from assay.pipelines.prompts import render
from assay.pipelines.store import SCHEMAS, Store

if TYPE_CHECKING:
    from assay.pipelines.verify import Policy, Verifier

__all__ = ["Plan", "Progress", "generation_key", "grade", "plan", "sample", "sample_seed", "verdict_name"]

Progress = Callable[[int, int], None]
"""Called with (done, total) completions."""

FLUSH_SECONDS = 1.0


def sample_seed(seed: int, problem_id: str, mode: str, index: int) -> int:
    """63-bit seed of one sample, independent of every other sample's."""
    text = f"{seed}\0{problem_id}\0{mode}\0{index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def generation_key(
    fingerprint: str, prompt_ids: Sequence[int], sampling: Sampling, problem_id: str, mode: str, index: int, seed: int
) -> str:
    """Hash that names one generation; two problems with the same text keep samples of their own."""
    text = json.dumps([fingerprint, list(prompt_ids), sampling.json(), problem_id, mode, index, seed])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class _Wanted:
    request: Request
    problem_id: str
    index: int


@dataclass(frozen=True)
class Plan:
    """What a call to `sample` will do: all the wanted samples, and those that the store lacks."""

    mode: str
    wanted: list[_Wanted]
    missing: list[_Wanted] = field(repr=False)

    @property
    def keys(self) -> list[str]:
        """Keys of all wanted samples, in order."""
        return [w.request.key for w in self.wanted]

    def describe(self) -> str:
        """One line for a person, with an upper bound of the tokens."""
        most = sum(w.request.sampling.max_tokens for w in self.missing)
        prompt = sum(len(w.request.prompt_ids) for w in self.missing)
        return (
            f"{self.mode}: {len(self.wanted)} samples wanted, {len(self.wanted) - len(self.missing)} recorded, "
            f"{len(self.missing)} to sample ({prompt:,} prompt tokens, at most {most:,} new ones)"
        )


def plan(
    store: Store,
    engine: Engine,
    problems: pl.DataFrame,
    *,
    mode: str,
    samples: int,
    sampling: Sampling,
    seed: int = 0,
    instruction: str | None = None,
) -> Plan:
    """Which samples 0 to `samples - 1` of every problem are wanted, and which of them the store lacks.

    A problem whose prompt leaves no room for a token gets no samples, and so an unknown pass rate.

    Args:
        problems: columns `id`, `problem`.
    """
    wanted = []
    for problem_id, text in problems.select("id", "problem").iter_rows():
        prompt = render(engine.tokenizer, text, mode, instruction)
        if len(prompt) >= engine.max_model_len:
            continue
        for index in range(samples):
            one = sample_seed(seed, problem_id, mode, index)
            key = generation_key(engine.fingerprint, prompt, sampling, problem_id, mode, index, one)
            wanted.append(_Wanted(Request(key, prompt, sampling, one), problem_id, index))
    recorded = _recorded(store, [w.request.key for w in wanted]).select("key").collect()["key"]
    known = set(recorded)
    return Plan(mode, wanted, [w for w in wanted if w.request.key not in known])


def _recorded(store: Store, keys: list[str]) -> pl.LazyFrame:
    wanted = pl.LazyFrame({"key": keys}, schema={"key": pl.String})
    return store.scan("generations").join(wanted, on="key", how="semi").unique("key", maintain_order=True)


def sample(
    store: Store,
    engine: Engine,
    problems: pl.DataFrame,
    *,
    mode: str,
    samples: int,
    sampling: Sampling,
    seed: int = 0,
    instruction: str | None = None,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """Rows of `generations` for `samples` samples of every problem, in order; samples only what is missing.

    Completions are written to the store about once a second, so a killed run loses what was in flight and at most the
    completions of the last second. Arguments as for `plan`; `progress` sees (done, missing).
    """
    work = plan(
        store,
        engine,
        problems,
        mode=mode,
        samples=samples,
        sampling=sampling,
        seed=seed,
        instruction=instruction,
    )
    writer = _Writer(store, engine.fingerprint, work, progress)
    try:
        engine.generate([w.request for w in work.missing], writer)
    finally:
        writer.flush()
    order = pl.LazyFrame({"key": work.keys}, schema={"key": pl.String})
    return (
        order.join(_recorded(store, work.keys), on="key", how="left", maintain_order="left")
        .select(SCHEMAS["generations"].names())
        .collect()
    )


class _Writer:
    """Collects finished completions and appends them to the store about once a second."""

    def __init__(self, store: Store, model: str, work: Plan, progress: Progress | None) -> None:
        self.store, self.model, self.mode, self.progress = store, model, work.mode, progress
        self.about = {w.request.key: w for w in work.missing}
        self.buffer: list[Completion] = []
        self.done, self.flushed = 0, time.monotonic()

    def __call__(self, completion: Completion) -> None:
        self.buffer.append(completion)
        self.done += 1
        if self.progress:
            self.progress(self.done, len(self.about))
        if time.monotonic() - self.flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self.buffer:
            self.store.append(
                "generations", pl.DataFrame([self._row(c) for c in self.buffer], schema=SCHEMAS["generations"])
            )
        self.buffer, self.flushed = [], time.monotonic()

    def _row(self, c: Completion) -> dict[str, object]:
        w = self.about[c.key]
        return {
            "key": c.key,
            "problem_id": w.problem_id,
            "model": self.model,
            "mode": self.mode,
            "sample": w.index,
            "seed": w.request.seed,
            "prompt_tokens": len(w.request.prompt_ids),
            "token_ids": c.token_ids,
            "logprobs": c.logprobs,
            "text": c.text,
            "finish_reason": c.finish_reason,
            "seconds": c.seconds,
        }


def verdict_name(verifier: Verifier, gold: str | None, policy: Policy) -> str:
    """The verdict's `verifier`: its name and version, and a hash of gold and policy, so that a repaired gold or a
    changed policy is graded anew while every other verdict stays valid."""
    return f"{verifier.name}:{hashlib.sha256(f'{gold}|{policy}'.encode()).hexdigest()[:8]}"


def grade(
    store: Store, verifier: Verifier, problems: pl.DataFrame, generations: pl.DataFrame, policy: Policy | None = None
) -> pl.DataFrame:
    """`key, problem_id, verifier, status, extracted, reason` of every generation, in order; grades what has no verdict.

    Args:
        problems: columns `id`, `answer`.
        generations: rows of the table `generations`.
    """
    from assay.pipelines.verify import Policy

    policy = policy or Policy()
    names = {i: verdict_name(verifier, a, policy) for i, a in problems.select("id", "answer").iter_rows()}
    wanted = generations.select("key", "problem_id").with_columns(
        verifier=pl.col("problem_id").replace_strict(names, return_dtype=pl.String)
    )
    known = (
        store.scan("verdicts")
        .join(wanted.lazy(), on=["key", "verifier"], how="semi")
        .unique(["key", "verifier"])
        .collect()
    )
    missing = wanted.join(known, on=["key", "verifier"], how="anti", maintain_order="left")
    fresh = _grade_missing(verifier, problems, generations, missing, policy)
    store.append("verdicts", fresh)
    return wanted.join(pl.concat([known, fresh]), on=["key", "verifier"], how="left", maintain_order="left")


def _grade_missing(
    verifier: Verifier, problems: pl.DataFrame, generations: pl.DataFrame, missing: pl.DataFrame, policy: Policy
) -> pl.DataFrame:
    rows = missing.join(
        generations.select("key", "text", "finish_reason").unique("key"), on="key", how="left", maintain_order="left"
    ).join(problems.select(problem_id="id", answer="answer"), on="problem_id", how="left", maintain_order="left")
    verdicts = verifier.grade_many(
        list(zip(rows["answer"].fill_null(""), rows["text"])), policy, rows["finish_reason"].to_list()
    )
    return (
        rows.select("key", "verifier")
        .with_columns(
            pl.Series("status", [v.status for v in verdicts], pl.String),
            pl.Series("extracted", [v.extracted for v in verdicts], pl.String),
            pl.Series("reason", [v.reason for v in verdicts], pl.String),
        )
        .select(SCHEMAS["verdicts"].names())
    )
