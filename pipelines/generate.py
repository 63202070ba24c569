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
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.pipelines.engines import Completion, Engine, Request, Sampling
from assay.pipelines.golds import Gold, golds
from assay.pipelines.locking import in_words
from assay.pipelines.prompts import render
from assay.pipelines.store import SCHEMAS, Store

if TYPE_CHECKING:
    from assay.pipelines.verify import Policy, Verifier

__all__ = ["Plan", "Progress", "Wanted", "begun_in_prompt", "generation_key", "grade", "plan", "recorded", "sample",
           "sample_seed", "verdict_name"]  # fmt: skip

Progress = Callable[[int, int, str], None]
"""Called with (done, total, note): before the first completion with the plan, then with the rate."""

BURST = 64, 16  # requests and tokens each, to measure a speed with
OPENED = ":opened"  # behind the name of a verdict on a completion that starts in thinking


def sample_seed(seed: int, problem_id: str, mode: str, index: int) -> int:
    """63-bit seed of one sample, independent of every other sample's."""
    text = f"{seed}\0{problem_id}\0{mode}\0{index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def generation_key(
    fingerprint: str, prompt_ids: Sequence[int], sampling: Sampling, problem_id: str, mode: str, index: int, seed: int
) -> str:
    """Hash that names one generation; two problems with the same text keep samples of their own."""
    digest = _of_problem(fingerprint, tuple(prompt_ids), sampling, problem_id, mode).copy()
    digest.update(f", {index}, {seed}]".encode())
    return digest.hexdigest()[:32]


@lru_cache(maxsize=64)
def _of_problem(fingerprint: str, prompt_ids: tuple[int, ...], sampling: Sampling, problem_id: str, mode: str) -> Any:
    """What the keys of a problem's samples share: a JSON list, open for index and seed."""
    text = json.dumps([fingerprint, prompt_ids, sampling.json(), problem_id, mode])
    return hashlib.sha256(text[:-1].encode())


@dataclass(frozen=True)
class Wanted:
    """One sample of one problem in one mode, and the request that makes it."""

    request: Request
    problem_id: str
    mode: str
    index: int

    @classmethod
    def of(
        cls, engine: Engine, seed: int, problem_id: str, mode: str, index: int, prompt: list[int], sampling: Sampling,
        told: str = "",
    ) -> Wanted:  # fmt: skip
        """With its own seed and its key; `told` is what else decides the completion, told to the engine elsewhere."""
        own = sample_seed(seed, problem_id, mode, index)
        key = generation_key(engine.fingerprint, prompt, sampling, problem_id, mode + told, index, own)
        return cls(Request(key, prompt, sampling, own), problem_id, mode, index)

    def row(self, completion: Completion, model: str) -> dict[str, Any]:
        """The row of `generations`."""
        named = {name: value for name, value in vars(completion).items() if name != "key"}
        return {"key": completion.key, "problem_id": self.problem_id, "model": model, "mode": self.mode,
                "sample": self.index, "seed": self.request.seed, "prompt_tokens": len(self.request.prompt_ids),
                **named}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What a call to `sample` will do: all the wanted samples, and those that the store lacks."""

    mode: str
    wanted: list[Wanted]
    missing: list[Wanted] = field(repr=False)
    usual_tokens: float | None = None
    """Mean length of what the store has of this model and mode; None where it has nothing."""

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

    def forecast(self, engine: Engine) -> str:
        """`describe`, the new tokens that are to be expected, the time that they take, and the engine's memory.

        The speed is the engine's own in this process so far. One that has hardly run is measured with a burst of the
        first requests, 64 x 16 tokens at most, unless that is a good part of the work itself.
        """
        requests = [w.request for w in self.missing]
        most = sum(r.sampling.max_tokens for r in requests)
        tokens = round(min(most, len(requests) * (self.usual_tokens or most)))
        said = f"about {tokens:,} by the lengths so far; " if self.usual_tokens else ""
        speed = _speed(engine, requests, tokens)
        time = f"{in_words(tokens / speed)} at {speed:,.0f} tokens/s; " if speed else ""
        return f"{self.describe()}; {said}{time and ('' if self.usual_tokens else 'at most ') + time}{engine.memory()}"


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
            wanted.append(Wanted.of(engine, seed, problem_id, mode, index, prompt, sampling))
    store.recover()
    known = set(recorded(store, [w.request.key for w in wanted]).select("key").collect()["key"])
    missing = [w for w in wanted if w.request.key not in known]
    return Plan(mode, wanted, missing, _usual_tokens(store, engine.fingerprint, mode) if missing else None)


def _usual_tokens(store: Store, model: str, mode: str) -> float | None:
    """Mean length of the latest completions."""
    latest = store.scan("generations").tail(10_000).filter(pl.col("model") == model, pl.col("mode") == mode)
    return latest.select(pl.col("token_ids").list.len().mean()).collect().item()


def _speed(engine: Engine, requests: Sequence[Request], tokens: int) -> float | None:
    """Tokens a second; None where it cannot be told or the answer would cost too much."""
    count, length = BURST
    if engine.busy_seconds < 1 and tokens > 20 * count * length and engine.name != "replay":
        engine.generate([replace(r, sampling=replace(r.sampling, max_tokens=length)) for r in requests[:count]])
    return engine.sampled_tokens / engine.busy_seconds if engine.sampled_tokens else None


def recorded(store: Store, keys: Sequence[str]) -> pl.LazyFrame:
    """The rows of `generations` with one of these keys, each key once."""
    wanted = pl.LazyFrame({"key": keys}, schema={"key": pl.String})
    return store.scan("generations").join(wanted, on="key", how="semi").unique("key", maintain_order=True)


def sample(
    store: Store, engine: Engine, problems: pl.DataFrame, *, progress: Progress | None = None, **asked: Any
) -> pl.DataFrame:
    """Rows of `generations` for all the samples of a `plan`, in order; samples only what is missing.

    A completion is in the store's journal before `progress` sees it, so a killed run loses what was in flight and
    nothing else.

    Args:
        progress: sees (0, missing, the plan), then (done, missing, the rate).
        asked: as for `plan`.
    """
    work = plan(store, engine, problems, **asked)
    if work.missing:
        _sample_missing(store, engine, work, progress)
    order, rows = pl.LazyFrame({"key": work.keys}, schema={"key": pl.String}), recorded(store, work.keys)
    joined = order.join(rows, on="key", how="left", maintain_order="left")
    return joined.select(SCHEMAS["generations"].names()).collect()


def _sample_missing(store: Store, engine: Engine, work: Plan, progress: Progress | None) -> None:
    about, tokens = {w.request.key: w for w in work.missing}, 0
    if progress:
        progress(0, len(about), work.forecast(engine))
    stream, began = engine.stream([w.request for w in work.missing]), time.monotonic()
    with store.journal("generations") as journal, closing(stream):
        for done, completion in enumerate(stream, 1):
            journal.add(about[completion.key].row(completion, engine.fingerprint))
            tokens += len(completion.token_ids)
            if progress:
                progress(done, len(about), f"{tokens / (time.monotonic() - began):,.0f} tokens/s")


def verdict_name(verifier: Verifier, gold: Gold) -> str:
    """The verdict's `verifier`: its name and version, and a hash of gold and policy, so that a repaired gold or a
    changed policy is graded anew while every other verdict stays valid."""
    return f"{verifier.name_for(gold.policy)}:{hashlib.sha256(f'{gold.text}|{gold.policy}'.encode()).hexdigest()[:8]}"


def begun_in_prompt() -> pl.Expr:
    """Whether the prompts of generations opened the thinking, where no tokenizer is there to ask: most of the texts
    that ended end a thinking that they did not begin."""
    text = pl.col("text").filter(finish_reason="stop").str
    unbegun = text.contains("</think>", literal=True) & ~text.contains("<think>", literal=True)
    return unbegun.mean().fill_null(0.0) > 0.5


def grade(
    store: Store, verifier: Verifier, problems: pl.DataFrame, generations: pl.DataFrame, policy: Policy | None = None,
    starts_in_thinking: bool | None = None,
) -> pl.DataFrame:  # fmt: skip
    """`key, problem_id, verifier, status, extracted, reason` of every generation, in order; grades what has no verdict.

    Args:
        problems: `id`, and what `golds` reads.
        generations: rows of the table `generations`.
        policy: where problems have none of their own.
        starts_in_thinking: what `opens_thinking` says of all the prompts; None: what `begun_in_prompt` says of each
            model and mode. Where it is true, the verdict's name says so: one that was made without it is not taken.
    """
    known = dict(zip(problems["id"], golds(problems, policy)))
    names = {i: verdict_name(verifier, gold) for i, gold in known.items()}
    inside = begun_in_prompt().over("model", "mode") if starts_in_thinking is None else pl.lit(starts_in_thinking)
    named = pl.col("problem_id").replace_strict(names, return_dtype=pl.String)
    wanted = generations.select("key", "problem_id", verifier=pl.when(inside).then(named + OPENED).otherwise(named))
    graded = store.scan("verdicts").join(wanted.lazy(), on=["key", "verifier"], how="semi")
    found = graded.unique(["key", "verifier"]).collect()
    missing = wanted.join(found, on=["key", "verifier"], how="anti", maintain_order="left")
    parts = {opened: missing.filter(pl.col("verifier").str.ends_with(OPENED) == opened) for opened in (False, True)}
    fresh = pl.concat(_grade_missing(verifier, known, generations, rows, opened) for opened, rows in parts.items())
    store.append("verdicts", fresh)
    return wanted.join(pl.concat([found, fresh]), on=["key", "verifier"], how="left", maintain_order="left")


def _grade_missing(
    verifier: Verifier, known: dict[str, Gold], generations: pl.DataFrame, missing: pl.DataFrame, opened: bool
) -> pl.DataFrame:
    texts = generations.select("key", "text", "finish_reason").unique("key")
    rows = missing.join(texts, on="key", how="left", maintain_order="left")
    asked = [known[problem] for problem in rows["problem_id"]]
    items = [(gold.text, text) for gold, text in zip(asked, rows["text"])]
    verdicts = verifier.grade_many(items, [gold.policy for gold in asked], rows["finish_reason"].to_list(), opened)
    found = {name: pl.Series([getattr(v, name) for v in verdicts], dtype=pl.String)
             for name in ("status", "extracted", "reason")}  # fmt: skip
    return rows.select("key", "verifier").with_columns(**found).select(SCHEMAS["verdicts"].names())
