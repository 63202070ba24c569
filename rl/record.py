"""What a run writes down: its configuration, every step's metrics and every trained sample."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import torch

from assay.pipelines.store import SCHEMAS, Store
from assay.rl.curriculum import Tally
from assay.rl.recipe import TrainRecipe
from assay.rl.rollouts import Group
from assay.rl.rows import Estimate

__all__ = ["Batch", "Recorder", "rollout_metrics"]

PARTS = ("accuracy", "format", "length", "overlong", "repetition", "language")


@dataclass(frozen=True)
class Batch:
    """What a step trains on, what filling it cost (`tokens` sampled), and what was dropped on the way."""

    groups: list[Group]
    tally: Tally
    tokens: int

    def json(self) -> dict[str, Any]:
        """For a checkpoint; `Batch.of` reads it back."""
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Batch:
        """The batch that `json` wrote."""
        return cls([Group.of(g) for g in data["groups"]], Tally(**data["tally"]), data["tokens"])


class Recorder:
    """Rows of one run for the store, handed over every ten steps and at `flush`."""

    def __init__(self, store: Store, folder: Path, recipe: TrainRecipe, texts: list[str]) -> None:
        self.store, self.folder, self.recipe, self.texts, self.run = store, folder, recipe, texts, folder.name
        self._steps, self._rollouts = list[pl.DataFrame](), list[pl.DataFrame]()

    def begin(self) -> None:
        """A row of `runs`, and `config.json` in the run's folder."""
        config = self.recipe.model_dump_json()
        time = datetime.now(UTC).replace(tzinfo=None)
        row = {"run": self.run, "kind": "train", "config": config, "model": self.recipe.model, "time": time}
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.json").write_text(json.dumps(json.loads(config), indent=1))
        self.store.append("runs", pl.DataFrame([row], schema=SCHEMAS["runs"]))

    def step(self, step: int, groups: list[Group], estimate: Estimate, metrics: dict[str, float]) -> None:
        """The rows of one step."""
        about = {"run": self.run, "step": step}
        values = {"metric": list(metrics), "value": list(map(float, metrics.values()))}
        self._steps.append(pl.DataFrame({**about, **values}, schema=SCHEMAS["steps"]))
        samples = [(g, i) for g in groups for i in range(len(g.samples))]
        rows = [about | self._sample(g, i, a) for (g, i), a in zip(samples, estimate.completion.tolist())]
        self._rollouts.append(pl.DataFrame(rows, schema=SCHEMAS["rollouts"]))
        if step % 10 == 0:
            self.flush()

    def _sample(self, group: Group, i: int, advantage: float) -> dict[str, Any]:
        s = group.samples[i]
        return {
            "problem_id": group.problem_id,
            "sample": i,
            "prompt": self.texts[group.index],
            "completion": s.text,
            "reward": s.reward,
            "advantage": advantage,
            "status": s.status,
            "tokens": len(s.token_ids),
            "truncated": s.truncated,
            "weights_version": group.version,
        }

    def flush(self) -> None:
        """Into the store."""
        for table, frames in (("steps", self._steps), ("rollouts", self._rollouts)):
            if frames:
                self.store.append(table, pl.concat(frames))
            frames.clear()


def _mean(values: list[float]) -> float:
    """Of those that are known."""
    known = [value for value in values if value == value]
    return sum(known) / max(1, len(known))


def rollout_metrics(batch: Batch, estimate: Estimate, step: int) -> dict[str, float]:
    """Shares and means over the samples of the batch that optimizer step `step` (from 0) trains on."""
    groups, tally, samples = batch.groups, batch.tally, [s for g in batch.groups for s in g.samples]
    n = max(1, len(samples))
    lengths = {status: [len(s.token_ids) for s in samples if s.status == status] for status in ("correct", "wrong")}
    verdicts = [s.status == "correct" for s in samples if s.status in ("correct", "wrong")]
    spread = [torch.tensor(own).std(correction=0) for g in groups
              if (own := [s.reward for s in g.samples if s.reward == s.reward])]  # fmt: skip
    live = float(estimate.live.float().mean()) if groups else 0.0
    return {
        "reward": _mean([s.reward for s in samples]),
        "success": sum(verdicts) / max(1, len(verdicts)),
        "group_std": float(torch.stack(spread).mean()) if spread else 0.0,
        "zero_std_share": tally.constant / max(1, tally.offered) if tally.constant else 1 - live,
        "truncated_share": sum(s.truncated for s in samples) / n,
        "unverifiable_share": sum(s.status in ("unverifiable", "timeout") for s in samples) / n,
        "length": sum(len(s.token_ids) for s in samples) / n,
        **{f"length_{k}": sum(v) / len(v) for k, v in lengths.items() if v},
        **{f"reward_{part}": _mean([s.parts[part] for s in samples]) for part in PARTS if samples},
        "groups": len(groups),
        "groups_dropped": tally.constant + tally.unverified,
        "refills": tally.refills,
        "sampled_tokens": batch.tokens,
        "trained_tokens": sum(g.tokens for g in groups),
        "wasted_tokens": tally.wasted_tokens,
        "stale_groups": tally.stale,
        "stale_tokens": tally.stale_tokens,
        "staleness": sum(step - g.version for g in groups) / max(1, len(groups)),
    }
