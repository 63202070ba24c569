"""The update: from groups to optimizer steps, the same whatever the micro-batch size, the packing or the ranks."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.rl import ranks
from assay.rl.advantages import BATCH_WIDE, advantages, live_groups
from assay.rl.aggregation import Denominator, combine_metrics
from assay.rl.batches import Example, MicroBatch
from assay.rl.checkpoint import load_model, load_state
from assay.rl.clock import Clock
from assay.rl.correction import Correction, correct
from assay.rl.critic import Critic, token_advantages
from assay.rl.kl import AdaptiveKL, kl_in_reward
from assay.rl.losses import Loss, policy_loss
from assay.rl.memory import keep_large_blocks
from assay.rl.policy import Policy
from assay.rl.presets import Preset
from assay.rl.recipe import TrainRecipe
from assay.rl.rollouts import Group
from assay.rl.rows import Batcher, Estimate, Rows, padded, take, with_blank
from assay.rl.sharding import load_optimizer, optimizer_state

__all__ = ["Updater"]


class Updater:
    """Owns the policy, its optimizer and, where the preset needs them, the reference and the critic.

    Under `torchrun` every rank has one of its own; rank 0's methods marked `together` run on all (`ranks.follow`).
    """

    def __init__(self, model: Any, recipe: TrainRecipe, preset: Preset, clock: Clock) -> None:
        keep_large_blocks()
        self.model, self.recipe, self.preset, self.clock = model, recipe, preset, clock
        o, r = recipe.optimizer, recipe.reference
        self.device = next(model.parameters()).device
        self.batcher = Batcher(o.micro_batch_tokens, self.device, recipe.memory.packing)
        self.critic = None
        if preset.advantage == "gae":
            self.critic = Critic(model, recipe.critic, self.batcher, o.max_grad_norm)
        self.policy = Policy(model, recipe.lora, recipe.memory, None if preset.kl_place == "none" else r)
        self.optimizer = self._new_optimizer()
        self.kl = AdaptiveKL(preset.beta, r.kl_target or math.inf, r.kl_horizon)

    def _new_optimizer(self) -> torch.optim.AdamW:
        o = self.recipe.optimizer
        return torch.optim.AdamW(
            self.model.parameters(), lr=o.learning_rate, betas=o.betas, weight_decay=o.weight_decay
        )

    @ranks.together
    def weights(self) -> dict[str, Tensor]:
        """The policy's whole weights, for the engine and the checkpoint (rank 0's are filled)."""
        return self.policy.weights()

    @ranks.together
    def state(self) -> dict[str, Any]:
        """For a checkpoint, beside the weights."""
        return {
            "optimizer": optimizer_state(self.model, self.optimizer),
            "policy": self.policy.state(),
            "critic": self.critic and self.critic.state(),
            "beta": self.kl.beta,
        }

    @ranks.together
    def load(self, folder: Path) -> None:
        """Go on from a checkpoint's folder, which every rank must see."""
        state = load_state(folder)["updater"]
        self.policy.load(load_model(folder).state_dict(), state["policy"])
        load_optimizer(self.model, self.optimizer, state["optimizer"])
        if self.critic is not None:
            self.critic.load(state["critic"])
        self.kl.beta = state["beta"]

    @ranks.together
    def estimate(self, groups: list[Group]) -> Estimate:
        """Advantages of `groups`; the KL is taken off the rewards where the preset places it there.

        A group whose rewards are equal is spared it where the group is its own baseline, and pulls at nothing.
        """
        p, samples = self.preset, [s for g in groups for s in g.samples]
        rewards = torch.tensor([s.reward for s in samples], dtype=torch.float32)
        size = self.recipe.sampling.group_size
        live = live_groups(rewards, size)
        examples = [e for g in groups for e in g.examples()]
        logp = padded([s.logprobs for s in samples])
        lengths = torch.tensor([len(e.completion_ids) for e in examples], dtype=torch.int64)
        mask = torch.arange(logp.shape[1])[None] < lengths[:, None]
        reference, kl = self._in_reward(examples, logp)
        if self.critic is not None and groups:
            return self._estimate_tokens(examples, rewards, logp, reference, mask, live, kl)
        pulled = mask if p.kl_on_dead_groups or p.advantage in BATCH_WIDE else mask & live[:, None]
        rewards = kl_in_reward(rewards, logp, reference, pulled, self.kl.beta)
        batch = advantages(rewards, size, kind=p.advantage, ddof=p.ddof, tau=p.tau) if groups else rewards
        return Estimate(batch, batch, live, kl=kl)

    def _in_reward(self, examples: list[Example], logp: Tensor) -> tuple[Tensor, float | None]:
        """The reference's log-probabilities [N, T] and the KL a token; `logp` itself where no KL is in the reward."""
        if self.preset.kl_place != "reward" or not examples:
            return logp, None
        reference = self._tokenwise(examples, self._reference)
        return reference, float((logp - reference).sum() / max(1, sum(len(e.completion_ids) for e in examples)))

    def _estimate_tokens(
        self, examples: list[Example], rewards: Tensor, logp: Tensor, reference: Tensor, mask: Tensor, live: Tensor,
        kl: float | None,
    ) -> Estimate:  # fmt: skip
        assert self.critic is not None
        with self.clock("torch"):
            values = self.critic.values(examples)
        advantage, returns = token_advantages(
            rewards, values, logp, reference, mask & ~rewards.isnan()[:, None], self.kl.beta, self.recipe.critic
        )
        return Estimate(advantage, advantage.sum(-1) / mask.sum(-1).clamp(min=1), live, values, returns, kl)

    @ranks.together
    def update(self, groups: list[Group], estimate: Estimate, step: int) -> dict[str, float]:
        """Train on `groups`; returns the step's metrics.

        The batch is cut into `updates_per_step` parts of whole groups, one optimizer step each.
        """
        o = self.recipe.optimizer
        if self.preset.reset_optimizer:
            self.optimizer = self._new_optimizer()
        for group in self.optimizer.param_groups:
            group["lr"] = o.learning_rate * min(1.0, (step + 1) / max(1, o.warmup_steps))
        size = self.recipe.sampling.group_size
        per_update = max(1, math.ceil(len(groups) / o.updates_per_step))
        rows = Rows(groups, estimate, self.preset.mask_truncated, step)
        old = with_blank(self._tokenwise(rows.examples, self._policy)) if o.updates_per_step > 1 else None
        metrics: list[dict[str, float]] = []
        for start in range(0, len(groups), per_update):
            own = range(start * size, min(len(groups), start + per_update) * size)
            metrics.append(self._optimizer_step(rows, own, old))
        return self._after(_merge(metrics), estimate.kl, len(rows.examples), step)

    def _after(self, metrics: dict[str, float], kl: float | None, completions: int, step: int) -> dict[str, float]:
        """Adapt beta and reset the reference, where the recipe asks for it."""
        r = self.recipe.reference
        metrics |= {} if kl is None else {"kl": kl}
        if "kl" in metrics:
            metrics["beta"] = self.kl.beta
            if r.kl_target is not None:
                self.kl.update(metrics["kl"], completions)
        if self.policy.has_reference and r.reset_every and (step + 1) % r.reset_every == 0:
            self.policy.reset_reference()
            self.optimizer = self._new_optimizer()
        return metrics

    def gradient(self, groups: list[Group]) -> list[Tensor]:
        """The gradient of one update on `groups`, and nothing else is changed; for checks and plans, on one rank."""
        rows = Rows(groups, self.estimate(groups), self.preset.mask_truncated, 0)
        own = range(len(rows.examples))
        self.optimizer.zero_grad(set_to_none=True)
        for batch in self.batcher.cut(rows.examples, own):
            self._micro_step(rows, batch, rows.denominator(own), None)
        found = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.optimizer.zero_grad(set_to_none=True)
        return found

    def _optimizer_step(self, rows: Rows, own: range, old: Tensor | None) -> dict[str, float]:
        denominator = rows.denominator(own)
        self.optimizer.zero_grad(set_to_none=True)
        batches = self.batcher.cut(rows.examples, own)
        parts = [self._micro_step(rows, batch, denominator, old) for batch in batches]
        with self.clock("torch"):
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.max_grad_norm)
            self.optimizer.step()
            critic = self.critic.step(rows, batches, denominator) if self.critic is not None else {}
        combined = combine_metrics([m for part in ranks.gathered(parts) for m in part])
        whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return {k: float(v) for k, v in combined.items()} | {"grad_norm": float(whole)} | critic

    def _micro_step(
        self, rows: Rows, batch: MicroBatch, denominator: Denominator, old: Tensor | None
    ) -> dict[str, Tensor]:
        sampler, mask = take(rows.logprobs, batch), rows.mask(batch)
        with self.clock("torch"):
            with self._autocast():
                logp, entropy = self.policy.logprobs(batch, self.recipe.sampling.temperature)
            # Tokens of older policies keep the sampler's own: for them the ratio is to the policy that wrote them.
            fresh = take(rows.fresh, batch)[:, None]
            now = torch.where(fresh, logp.detach() if old is None else take(old, batch), sampler)
            correction = self._correction(now, sampler, mask, denominator)
            loss = self._loss(rows, batch, logp, now if correction else sampler, mask, correction, denominator)
            (loss.value * ranks.world()).backward()
            error = torch.where(batch.mask & fresh, (now - sampler).expm1().abs(), 0.0).amax()
            spread = torch.where(mask, entropy.detach(), 0.0).sum() / max(1, int(denominator.tokens))
        own_metrics = {"sampler_ratio_error_max": error, "entropy": spread}
        return {**loss.metrics, **(correction.metrics if correction else {}), **own_metrics}

    def _correction(self, now: Tensor, sampler: Tensor, mask: Tensor, denominator: Denominator) -> Correction | None:
        p = self.preset
        if p.correction == "none":
            return None
        return correct(
            now,
            sampler,
            mask,
            level=p.correction,
            mode=p.correction_mode,
            cap=p.correction_cap,
            denominator=denominator,
        )

    def _loss(
        self,
        rows: Rows,
        batch: MicroBatch,
        logp: Tensor,
        old: Tensor,
        mask: Tensor,
        correction: Correction | None,
        denominator: Denominator,
    ) -> Loss:
        p, in_loss = self.preset, self.preset.kl_place == "loss"
        live = take(rows.live, batch)
        return policy_loss(
            p.loss,
            logp,
            old,
            take(rows.advantage, batch),
            mask,
            clip_low=p.clip_low,
            clip_high=p.clip_high,
            aggregation=p.aggregation,
            max_length=self.recipe.sampling.max_tokens,
            denominator=denominator,
            dual_clip=p.dual_clip,
            tau=p.tau,
            weights=None if correction is None else correction.weights,
            logp_ref=self._reference(batch) if in_loss else None,
            beta=self.kl.beta if in_loss else 0.0,
            kl=p.kl,
            kl_rows=torch.ones_like(live) if p.kl_on_dead_groups else live,
        )

    def _policy(self, batch: MicroBatch) -> Tensor:
        with self._autocast():
            return self.policy.logprobs(batch, self.recipe.sampling.temperature)[0]

    def _reference(self, batch: MicroBatch) -> Tensor:
        with self._autocast():
            return self.policy.reference_logprobs(batch, self.recipe.sampling.temperature)

    def _tokenwise(self, examples: list[Example], run: Any) -> Tensor:
        with self.clock("torch"):
            return self.batcher.tokenwise(examples, run)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.recipe.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


def _merge(updates: list[dict[str, float]]) -> dict[str, float]:
    """Means over a step's optimizer updates; the ratio error is that of the first, which is on-policy."""
    if not updates:
        return {"ratio_error": 0.0}
    merged = {k: sum(u[k] for u in updates) / len(updates) for k in updates[0]}
    return merged | {"ratio_error": updates[0]["sampler_ratio_error_max"]}
