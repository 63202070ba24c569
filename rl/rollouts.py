"""Rollouts: groups of completions of one prompt, graded and rewarded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from assay.pipelines.engines import Completion, Engine, Request, Sampling
from assay.pipelines.generate import sample_seed
from assay.pipelines.golds import golds
from assay.pipelines.prompts import render
from assay.pipelines.verify import Verdict, Verifier
from assay.rl import rewards as parts_of
from assay.rl.batches import Example
from assay.rl.presets import Preset
from assay.rl.recipe import TrainRecipe

__all__ = ["Group", "RolloutMaker", "Sample"]


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


class RolloutMaker:
    """Samples, grades and rewards groups.

    Args:
        problems: columns `id`, `problem`, and what `golds` reads.
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
        s = recipe.sampling
        self.prompts = [render(engine.tokenizer, p, s.mode, s.instruction) for p in problems["problem"]]
        self.sampling = Sampling(temperature=s.temperature, max_tokens=s.max_tokens)
        self._tokens, self.known_ids = 0, len(engine.tokenizer)
        self.opened = engine.tokenizer.decode(self.prompts[0]).rstrip().endswith("<think>")

    def groups(self, indices: Sequence[int], step: int, round_: int) -> list[Group]:
        """One group for every position in `indices` (positions may repeat).

        Seeds follow from the run's seed, the step, the round and the place in it, so a resumed run samples the same.
        """
        size = self.recipe.sampling.group_size
        with self.timed("generate"):
            completions = self.engine.generate(self._requests(indices, step, round_))
        self._tokens += sum(len(c.token_ids) for c in completions)
        with self.timed("grade"):
            verdicts = self._verdicts(indices, completions)
            rewards = self._rewards(completions, verdicts, step, round_)
            samples = [self._sample(c, v, i, rewards) for i, (c, v) in enumerate(zip(completions, verdicts))]
        return [
            Group(index, self.ids[index], self.prompts[index], samples[k * size : (k + 1) * size], step)
            for k, index in enumerate(indices)
        ]

    def take_tokens(self) -> int:
        """Tokens sampled since this was last asked."""
        tokens, self._tokens = self._tokens, 0
        return tokens

    def _requests(self, indices: Sequence[int], step: int, round_: int) -> list[Request]:
        size = self.recipe.sampling.group_size
        return [
            Request(
                f"{k}.{j}",
                self.prompts[index],
                self.sampling,
                sample_seed(self.recipe.seed, self.ids[index], f"step={step}.{round_}.{k}", j),
            )
            for k, index in enumerate(indices)
            for j in range(size)
        ]

    def _verdicts(self, indices: Sequence[int], completions: list[Completion]) -> list[Verdict]:
        """A completion with an id beyond the tokenizer (padding of the vocabulary) has no verdict: its text is cut."""
        asked = [self.golds[index] for index in indices for _ in range(self.recipe.sampling.group_size)]
        verdicts = self.verifier.grade_many(
            [(gold.text, c.text) for gold, c in zip(asked, completions)], [gold.policy for gold in asked],
            [c.finish_reason for c in completions], self.opened,
        )
        unknown = [max(c.token_ids, default=0) >= self.known_ids for c in completions]
        return [Verdict("unverifiable", None, "unknown token") if u else v for u, v in zip(unknown, verdicts)]

    def _rewards(
        self, completions: list[Completion], verdicts: list[Verdict], step: int, round_: int
    ) -> parts_of.Rewards:
        r, s = self.recipe.rewards, self.recipe.sampling
        statuses = [v.status for v in verdicts]
        lengths = [len(c.token_ids) for c in completions]
        keep_truncated = not self.preset.mask_truncated
        accuracy = parts_of.accuracy(statuses, truncated=0.0 if keep_truncated else np.nan)
        weights = {
            "accuracy": 1.0,
            "format": r.format,
            "length": self._default(r.length, "length_reward", 0.1),
            "overlong": self._default(r.overlong, "overlong_reward", 1.0),
            "repetition": r.repetition,
        }
        parts = {
            "accuracy": accuracy,
            "format": parts_of.format_bonus([c.text for c in completions], opened_in_prompt=self.opened),
            "length": parts_of.kimi_length(
                lengths, [x == "correct" for x in statuses], s.group_size, step=step, warmup_steps=r.length_warmup_steps
            ),
            "overlong": parts_of.overlong(lengths, s.max_tokens, min(r.overlong_buffer, s.max_tokens)),
            "repetition": parts_of.repetition([c.token_ids for c in completions])
            if r.repetition
            else np.zeros(len(completions)),
        }
        return self._controlled(parts_of.combine(parts, weights), step, round_)

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
