"""Rollouts: groups of completions of one prompt, graded and rewarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import polars as pl

from assay.pipelines.engines import Completion, Engine, Request, Sampling
from assay.pipelines.generate import sample_seed
from assay.pipelines.golds import golds
from assay.pipelines.prompts import opens_thinking, render
from assay.pipelines.verify import Verdict, Verifier
from assay.rl import rewards as parts_of
from assay.rl.batches import Example
from assay.rl.presets import Preset
from assay.rl.recipe import TrainRecipe

__all__ = ["Draft", "Group", "RolloutMaker", "Sample"]

NOTHING = Completion("", [], [], "", "length", 0.0)


@dataclass(frozen=True)
class Sample:
    """One graded completion; `logprobs` are the sampler's own, nats, one a token."""

    token_ids: list[int]
    logprobs: list[float]
    text: str
    truncated: bool
    status: str
    reward: float
    parts: dict[str, float]


@dataclass(frozen=True)
class Group:
    """`group_size` samples of one prompt, made by the weights of step `version`."""

    index: int
    problem_id: str
    prompt_ids: list[int]
    samples: list[Sample]
    version: int

    @property
    def success(self) -> float:
        """Share of the verdicts that are correct; NaN without a verdict."""
        verdicts = [s.status == "correct" for s in self.samples if s.status in ("correct", "wrong")]
        return float(np.mean(verdicts)) if verdicts else float("nan")

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(len(s.token_ids) for s in self.samples)

    def examples(self) -> list[Example]:
        """The samples as sequences to train on."""
        return [Example(self.prompt_ids, s.token_ids) for s in self.samples]

    def json(self) -> dict[str, Any]:
        """For a checkpoint; `Group.of` reads it back."""
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Group:
        """The group that `json` wrote."""
        return cls(**{**data, "samples": [Sample(**s) for s in data["samples"]]})


@dataclass(frozen=True)
class Draft:
    """A group in the making: its completions so far, the first tokens by the weights of step `version`."""

    index: int
    version: int
    parts: list[Completion]

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(len(part.token_ids) for part in self.parts)

    def json(self) -> dict[str, Any]:
        """For a checkpoint; `Draft.of` reads it back."""
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Draft:
        """The draft that `json` wrote."""
        return cls(**{**data, "parts": [Completion(**part) for part in data["parts"]]})


class RolloutMaker:
    """Samples, grades and rewards groups. `drafts` are those that a step's token limit cut.

    Args:
        problems: columns `id`, `problem`, and what `golds` reads, and `language` where it is not English throughout.
    """

    def __init__(
        self,
        engine: Engine,
        verifier: Verifier,
        problems: pl.DataFrame,
        recipe: TrainRecipe,
        preset: Preset,
        timed: Callable[[str], Any],
    ) -> None:
        self.engine, self.verifier, self.recipe, self.preset, self.timed = engine, verifier, recipe, preset, timed
        self.ids, self.golds = problems["id"].to_list(), golds(problems)
        self.texts = problems["problem"].to_list()
        known = "language" in problems.columns
        self.languages = problems["language"].fill_null("en").to_list() if known else ["en"] * len(problems)
        s = recipe.sampling
        self.prompts = [render(engine.tokenizer, p, s.mode, s.instruction) for p in problems["problem"]]
        self.sampling = Sampling(temperature=s.temperature, max_tokens=s.max_tokens)
        self._tokens, self.known_ids = 0, len(engine.tokenizer)
        self.drafts: list[Draft] = []
        self.step_tokens = s.step_tokens
        self.opened = opens_thinking(engine.tokenizer, s.mode)

    def groups(self, indices: Sequence[int], step: int, round_: int, version: int | None = None) -> list[Group]:
        """One group for every position in `indices` (positions may repeat), by the weights of `version` (the step's).

        The first round of a step goes on with the drafts before it; what reaches no end becomes one. Seeds follow from
        the run's seed, the step, the round and the place in it, so a resumed run samples the same.
        """
        size, version = self.recipe.sampling.group_size, step if version is None else version
        begun, waiting = ([], self.drafts) if round_ else (self.drafts, [])
        drafts = [*begun, *(Draft(index, version, [NOTHING] * size) for index in indices)]
        with self.timed("generate"):
            drafts = self._continued(drafts, f"step={step}.{round_}")
        with self.timed("grade"):
            whole = [all(self._over(draft, part) for part in draft.parts) for draft in drafts]
            self.drafts = [*waiting, *(draft for draft, ended in zip(drafts, whole) if not ended)]
            return self._graded([draft for draft, ended in zip(drafts, whole) if ended], step, round_)

    def _graded(self, drafts: list[Draft], step: int, round_: int) -> list[Group]:
        indices, completions = [d.index for d in drafts], [part for d in drafts for part in d.parts]
        verdicts = self._verdicts(indices, completions)
        rewards = self._rewards(indices, completions, verdicts, step, round_)
        samples = iter([self._sample(c, v, i, rewards) for i, (c, v) in enumerate(zip(completions, verdicts))])
        return [
            Group(d.index, self.ids[d.index], self.prompts[d.index], list(islice(samples, len(d.parts))), d.version)
            for d in drafts
        ]

    def drop_drafts(self, version: int) -> list[Draft]:
        """Give up the drafts begun by weights older than `version`."""
        old = [draft for draft in self.drafts if draft.version < version]
        self.drafts = [draft for draft in self.drafts if draft.version >= version]
        return old

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, completions are sampled to their ends and the drafts are left alone."""
        kept, self.drafts, limit, self.step_tokens = self.drafts, [], self.step_tokens, None
        try:
            yield
        finally:
            self.drafts, self.step_tokens = kept, limit

    def take_tokens(self) -> int:
        """Tokens sampled since this was last asked."""
        tokens, self._tokens = self._tokens, 0
        return tokens

    def _over(self, draft: Draft, part: Completion) -> bool:
        """Whether a completion is at its end, or at the limit of its length; without a step's limit, once it is."""
        if self.step_tokens is None or part.finish_reason != "length":
            return part is not NOTHING
        length, prompt = len(part.token_ids), len(self.prompts[draft.index])
        return length >= min(self.sampling.max_tokens, self.engine.max_model_len - prompt)

    def _continued(self, drafts: list[Draft], mode: str) -> list[Draft]:
        """Sample on what is not over."""
        asked = [
            self._request(
                draft, part, f"{k}.{j}", sample_seed(self.recipe.seed, self.ids[draft.index], f"{mode}.{k}", j)
            )
            for k, draft in enumerate(drafts)
            for j, part in enumerate(draft.parts)
            if not self._over(draft, part)
        ]
        done = {c.key: c for c in self.engine.generate(asked)}
        self._tokens += sum(len(c.token_ids) for c in done.values())
        return [
            replace(draft, parts=[self._joined(part, done.get(f"{k}.{j}")) for j, part in enumerate(draft.parts)])
            for k, draft in enumerate(drafts)
        ]

    def _request(self, draft: Draft, part: Completion, key: str, seed: int) -> Request:
        left = self.sampling.max_tokens - len(part.token_ids)
        sampling = replace(self.sampling, max_tokens=min(left, self.step_tokens or left))
        return Request(key, [*self.prompts[draft.index], *part.token_ids], sampling, seed)

    def _joined(self, before: Completion, more: Completion | None) -> Completion:
        if more is None or not before.token_ids:
            return more or before
        ids = [*before.token_ids, *more.token_ids]
        text = self.engine.tokenizer.decode(ids, skip_special_tokens=True)
        return replace(more, token_ids=ids, logprobs=[*before.logprobs, *more.logprobs], text=text)

    def _verdicts(self, indices: Sequence[int], completions: list[Completion]) -> list[Verdict]:
        """A completion with an id beyond the tokenizer (padding of the vocabulary) has no verdict: its text is cut."""
        asked = [self.golds[index] for index in indices for _ in range(self.recipe.sampling.group_size)]
        verdicts = self.verifier.grade_many(
            [(gold.text, c.text) for gold, c in zip(asked, completions)],
            [gold.policy for gold in asked],
            [c.finish_reason for c in completions],
            self.opened,
        )
        unknown = [max(c.token_ids, default=0) >= self.known_ids for c in completions]
        return [Verdict("unverifiable", None, "unknown token") if u else v for u, v in zip(unknown, verdicts)]

    def _rewards(
        self, indices: Sequence[int], completions: list[Completion], verdicts: list[Verdict], step: int, round_: int
    ) -> parts_of.Rewards:
        r, s = self.recipe.rewards, self.recipe.sampling
        statuses, texts = [v.status for v in verdicts], [c.text for c in completions]
        lengths, ids = [len(c.token_ids) for c in completions], [c.token_ids for c in completions]
        right = [status == "correct" for status in statuses]
        weights = {
            "accuracy": 1.0,
            "format": r.format,
            "length": self._default(r.length, "length_reward", 0.1),
            "overlong": self._default(r.overlong, "overlong_reward", 1.0),
            "repetition": r.repetition,
            "language": r.language,
        }
        parts = {
            "accuracy": parts_of.accuracy(
                statuses,
                unverifiable=0.0 if r.unverifiable == "wrong" else np.nan,
                truncated=np.nan if self.preset.mask_truncated else 0.0,
            ),
            "format": parts_of.format_bonus(texts, opened_in_prompt=self.opened),
            "length": parts_of.kimi_length(lengths, right, s.group_size, step=step, warmup_steps=r.length_warmup_steps),
            "overlong": parts_of.overlong(lengths, s.max_tokens, min(r.overlong_buffer, s.max_tokens)),
            "repetition": parts_of.repetition(ids) if r.repetition else np.zeros(len(texts)),
            "language": self._consistency(indices, texts) if r.language else np.zeros(len(texts)),
        }
        return self._controlled(parts_of.combine(parts, weights), step, round_)

    def _consistency(self, indices: Sequence[int], texts: list[str]) -> parts_of.Array:
        languages = [self.languages[i] for i in indices for _ in range(self.recipe.sampling.group_size)]
        detector = self.recipe.rewards.language_detector
        return parts_of.language_consistency(texts, languages, detector=detector, opened_in_prompt=self.opened)

    def _default(self, weight: float | None, flag: str, usual: float) -> float:
        return weight if weight is not None else usual * bool(getattr(self.preset, flag))

    def _controlled(self, rewards: parts_of.Rewards, step: int, round_: int) -> parts_of.Rewards:
        control = self.recipe.rewards.control
        if control == "random":
            seed = sample_seed(self.recipe.seed, "control", "random", round_)
            return parts_of.Rewards(parts_of.random_control(len(rewards.total), seed, step), rewards.parts)
        if control == "inverted":
            return parts_of.Rewards(parts_of.inverted(rewards.total), rewards.parts)
        return rewards

    @staticmethod
    def _sample(c: Completion, v: Verdict, position: int, rewards: parts_of.Rewards) -> Sample:
        return Sample(
            c.token_ids,
            c.logprobs,
            c.text,
            c.finish_reason == "length",
            v.status,
            float(rewards.total[position]),
            {k: float(p[position]) for k, p in rewards.parts.items()},
        )
