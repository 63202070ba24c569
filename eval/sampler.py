"""Completions of an engine through the store: what is recorded is not sampled again, what finished is not lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.pipelines import generate
from assay.pipelines.engines import Completion, Engine, OnDone, Sampling
from assay.pipelines.errors import EngineError

if TYPE_CHECKING:
    from assay.pipelines.store import Store

__all__ = ["Sampler", "Wanted"]


@dataclass(frozen=True)
class Wanted:
    """One completion: of which sample of which problem, in which mode, after which ids, at most how many tokens.

    `told` is whatever else decides the completion and is told to the engine elsewhere.
    """

    problem: str
    sample: int
    mode: str
    prompt: list[int]
    sampling: Sampling
    told: str = ""


class Sampler:
    """Samples from `engine`, each completion with a seed of its own made of `seed`, problem, mode and sample.

    Args:
        store: where completions are recorded and looked up; None keeps nothing.
        on_done: sees every completion, the recorded ones too.
    """

    def __init__(self, engine: Engine, store: Store | None, seed: int, on_done: OnDone | None = None) -> None:
        self.engine, self.store, self.seed, self.on_done = engine, store, seed, on_done
        self.tokens = 0
        """Of all completions given out so far."""

    def complete(self, wanted: Sequence[Wanted]) -> list[Completion]:
        """The completions, in order.

        Raises:
            EngineError: the engine counts other tokens than it handed out, or ignored a limit.
        """
        ready = [generate.Wanted.of(self.engine, self.seed, w.problem, w.mode, w.sample, w.prompt, w.sampling, w.told)
                 for w in wanted]  # fmt: skip
        keys = [w.request.key for w in ready]
        done = self._recorded(keys)
        for completion in done.values():
            self._tell(completion)
        done |= {c.key: c for c in self._sample({w.request.key: w for w in ready if w.request.key not in done})}
        self.tokens += sum(len(done[key].token_ids) for key in keys)
        return [done[key] for key in keys]

    def _sample(self, about: dict[str, generate.Wanted]) -> list[Completion]:
        counted = self.engine.sampled_tokens
        with self.store.journal("generations") if self.store else nullcontext() as journal:

            def done(completion: Completion) -> None:
                if journal is not None:
                    journal.add(about[completion.key].row(completion, self.engine.fingerprint))
                self._tell(completion)

            fresh = self.engine.generate([w.request for w in about.values()], done) if about else []
        self._audit(fresh, about, self.engine.sampled_tokens - counted)
        return fresh

    def _audit(self, fresh: list[Completion], about: dict[str, generate.Wanted], counted: int) -> None:
        """What was handed out against the engine's own count, and every completion against its limit."""
        handed_out = sum(len(c.token_ids) for c in fresh)
        if counted != handed_out:
            raise EngineError(f"the engine counts {counted:,} sampled tokens and handed out {handed_out:,}; its "
                              "figures of cost cannot be trusted, update or report it.")  # fmt: skip
        for c in fresh:
            limit = about[c.key].request.sampling.max_tokens
            if len(c.token_ids) > limit:
                raise EngineError(f"{about[c.key].problem_id}: {len(c.token_ids)} tokens for a limit of {limit}; the "
                                  "engine ignores max_tokens.")  # fmt: skip

    def _tell(self, completion: Completion) -> None:
        if self.on_done:
            self.on_done(completion)

    def _recorded(self, keys: list[str]) -> dict[str, Completion]:
        if self.store is None:
            return {}
        self.store.recover()
        names = ("key", "token_ids", "logprobs", "text", "finish_reason", "seconds")
        rows = generate.recorded(self.store, keys).select(names).collect()
        return {row["key"]: Completion(**row) for row in rows.iter_rows(named=True)}
