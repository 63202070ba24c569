"""The update: from groups and advantages to optimizer steps, the same whatever the micro-batch size."""

from __future__ import annotations

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from assay.rl.aggregation import Denominator, combine_metrics
from assay.rl.batches import Example, MicroBatch, completion_logprobs, micro_batches
from assay.rl.clock import Clock
from assay.rl.correction import correct
from assay.rl.losses import policy_loss
from assay.rl.memory import keep_large_blocks
from assay.rl.presets import Preset
from assay.rl.recipe import TrainRecipe
from assay.rl.rollouts import Group

__all__ = ["Updater"]


class Updater:
    """Owns the optimizer and, where there is a KL term, the reference model (a frozen copy of the start)."""

    def __init__(self, model: Any, recipe: TrainRecipe, preset: Preset, clock: Clock) -> None:
        keep_large_blocks()
        self.model, self.recipe, self.preset, self.clock = model, recipe, preset, clock
        self.device = next(model.parameters()).device
        self.optimizer = self._new_optimizer()
        self.reference = copy.deepcopy(model).eval().requires_grad_(False) if preset.kl_place != "none" else None

    def _new_optimizer(self) -> torch.optim.AdamW:
        o = self.recipe.optimizer
        return torch.optim.AdamW(
            self.model.parameters(), lr=o.learning_rate, betas=o.betas, weight_decay=o.weight_decay
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "reference": self.reference.state_dict() if self.reference is not None else None,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.reference is not None:
            self.reference.load_state_dict(state["reference"])

    def update(self, groups: list[Group], advantage: Tensor, step: int) -> dict[str, float]:
        """Train on `groups` with `advantage` [groups x group_size]; returns the step's metrics.

        The batch is cut into `updates_per_step` parts of whole groups, one optimizer step each.
        """
        o = self.recipe.optimizer
        if self.preset.reset_optimizer:
            self.optimizer = self._new_optimizer()
        for group in self.optimizer.param_groups:
            group["lr"] = o.learning_rate * min(1.0, (step + 1) / max(1, o.warmup_steps))
        size = self.recipe.sampling.group_size
        per_update = max(1, math.ceil(len(groups) / o.updates_per_step))
        rows = _Rows(groups, advantage, self.preset.mask_truncated, step)
        trainer_old = self._logprobs(self.model, rows.examples) if o.updates_per_step > 1 else None
        metrics: list[dict[str, float]] = []
        for start in range(0, len(groups), per_update):
            own = range(start * size, min(len(groups), start + per_update) * size)
            metrics.append(self._optimizer_step(rows, list(own), trainer_old))
        return _merge(metrics)

    def _optimizer_step(self, rows: _Rows, own: list[int], trainer_old: list[Tensor] | None) -> dict[str, float]:
        denominator = rows.denominator(own)
        self.optimizer.zero_grad(set_to_none=True)
        parts = []
        for batch in micro_batches(
            [rows.examples[i] for i in own], self.recipe.optimizer.micro_batch_tokens, self.device
        ):
            parts.append(self._micro_step(rows, [own[i] for i in batch.rows], batch, denominator, trainer_old))
        with self.clock("torch"):
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.max_grad_norm)
            self.optimizer.step()
        return {k: float(v) for k, v in combine_metrics(parts).items()} | {"grad_norm": float(norm)}

    def _micro_step(
        self, rows: _Rows, own: list[int], batch: MicroBatch, denominator: Denominator, trainer_old: list[Tensor] | None
    ) -> dict[str, Tensor]:
        p, s = self.preset, self.recipe.sampling
        sampler = rows.sampler_logprobs(own, batch)
        mask = batch.mask & rows.trained[own].to(self.device)[:, None]
        with self.clock("torch"):
            with self._autocast():
                logp, entropy = completion_logprobs(self.model, batch, s.temperature)
            now = logp.detach()
            old = _stack(trainer_old, own, batch) if trainer_old is not None else now
            correction = (
                None
                if p.correction == "none"
                else correct(
                    old,
                    sampler,
                    mask,
                    level=p.correction,
                    mode=p.correction_mode,
                    cap=p.correction_cap,
                    denominator=denominator,
                )
            )
            loss = policy_loss(
                p.loss,
                logp,
                sampler if correction is None else old,
                rows.advantage[own].to(self.device),
                mask,
                clip_low=p.clip_low,
                clip_high=p.clip_high,
                aggregation=p.aggregation,
                max_length=s.max_tokens,
                denominator=denominator,
                dual_clip=p.dual_clip,
                tau=p.tau,
                weights=None if correction is None else correction.weights,
                **self._kl(batch),
            )
            loss.value.backward()
            fresh = batch.mask & rows.fresh[own].to(self.device)[:, None]
            error = torch.where(fresh, (old - sampler).expm1().abs(), 0.0).amax()
            spread = torch.where(mask, entropy.detach(), 0.0).sum() / max(1, int(denominator.tokens))
        own_metrics = {"sampler_ratio_error_max": error, "entropy": spread}
        return {**loss.metrics, **(correction.metrics if correction else {}), **own_metrics}

    def _kl(self, batch: MicroBatch) -> dict[str, Any]:
        if self.reference is None or self.preset.kl_place != "loss":
            return {}
        with torch.no_grad(), self._autocast():
            reference, _ = completion_logprobs(self.reference, batch, self.recipe.sampling.temperature)
        return {"logp_ref": reference, "beta": self.preset.beta, "kl": self.preset.kl}

    def penalised(self, groups: list[Group], rewards: Tensor) -> Tensor:
        """Rewards [N] less beta times the KL to the reference (k1), where the preset puts it into the reward."""
        if self.reference is None or self.preset.kl_place != "reward":
            return rewards
        samples = [s for g in groups for s in g.samples]
        reference = self._logprobs(self.reference, [e for g in groups for e in g.examples()])
        k1 = torch.stack([torch.tensor(s.logprobs).sum() - r.sum().cpu() for s, r in zip(samples, reference)])
        return rewards - self.preset.beta * k1

    @torch.no_grad()
    def _logprobs(self, model: Any, examples: list[Example]) -> list[Tensor]:
        """Log-probabilities of every completion under the weights of `model` now."""
        found: list[Tensor] = [torch.empty(0)] * len(examples)
        for batch in micro_batches(examples, self.recipe.optimizer.micro_batch_tokens, self.device):
            with self.clock("torch"), self._autocast():
                logp, _ = completion_logprobs(model, batch, self.recipe.sampling.temperature)
            for row, values, mask in zip(batch.rows, logp, batch.mask):
                found[row] = values[mask]
        return found

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.recipe.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


class _Rows:
    """The samples of a step in order, one row each."""

    def __init__(self, groups: list[Group], advantage: Tensor, mask_truncated: bool, step: int) -> None:
        self.examples: list[Example] = [e for g in groups for e in g.examples()]
        self.advantage = advantage
        self.logprobs = [s.logprobs for g in groups for s in g.samples]
        self.fresh = torch.tensor([g.version == step for g in groups for _ in g.samples], dtype=torch.bool)
        self.trained = torch.tensor(
            [not (mask_truncated and s.truncated) and s.reward == s.reward for g in groups for s in g.samples],
            dtype=torch.bool,
        )

    def denominator(self, own: list[int]) -> Denominator:
        """Trained tokens and sequences of one optimizer step."""
        lengths = torch.tensor([len(self.examples[i].completion_ids) for i in own]) * self.trained[own]
        return Denominator(int(lengths.sum()), int((lengths > 0).sum()))

    def sampler_logprobs(self, own: list[int], batch: MicroBatch) -> Tensor:
        """[n, T], padded with zeros."""
        width = batch.mask.shape[1]
        padded = [self.logprobs[i] + [0.0] * (width - len(self.logprobs[i])) for i in own]
        return torch.tensor(padded, dtype=torch.float32, device=batch.mask.device)


def _stack(values: list[Tensor], own: list[int], batch: MicroBatch) -> Tensor:
    out = torch.zeros(batch.mask.shape, dtype=torch.float32, device=batch.mask.device)
    for row, i in enumerate(own):
        out[row, : len(values[i])] = values[i]
    return out


def _merge(updates: list[dict[str, float]]) -> dict[str, float]:
    """Means over a step's optimizer updates; the ratio error is that of the first, which is on-policy."""
    if not updates:
        return {"ratio_error": 0.0}
    merged = {k: sum(u[k] for u in updates) / len(updates) for k in updates[0]}
    return merged | {"ratio_error": updates[0]["sampler_ratio_error_max"]}
