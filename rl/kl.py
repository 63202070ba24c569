"""Estimates of the divergence from the reference policy, in the loss or in the reward.

With d = log pi_ref - log pi on tokens sampled from pi: k1 = -d, k2 = d^2/2, k3 = exp(d) - d - 1 (Schulman
2020, "Approximating KL divergence"). In value, k1 and k3 are unbiased for KL(pi || pi_ref) and k2 nearly
so; as losses they differ. k1's gradient is zero in expectation, so k1 belongs in the reward; k2's is the
gradient of that KL; k3's is the gradient of KL(pi_ref || pi). `rho_k3` = rho k3, with gradient through rho,
is unbiased in value and gradient, off-policy too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.pipelines.errors import RecipeError

__all__ = ["KL_KINDS", "AdaptiveKL", "clamped_exp", "kl_estimate", "kl_in_reward", "token_rewards"]

KL_KINDS = ("k1", "k2", "k3", "rho_k3")
_MAX_LOG = 20.0  # e^20 = 5e8: beyond any clip, and far from float32's overflow at e^88


def clamped_exp(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio) with the exponent held to +-20, where its gradient is 0."""
    return log_ratio.clamp(-_MAX_LOG, _MAX_LOG).exp()


def kl_estimate(kind: str, logp: Tensor, logp_ref: Tensor, logp_old: Tensor | None = None) -> Tensor:
    """Per-token estimate of KL(pi || pi_ref) in nats; shapes alike; gradient flows through `logp` only.

    `rho_k3` also needs `logp_old` (the sampler's). k3 goes on as a straight line beyond d = 20, so that a
    policy far below its reference is still pulled back, by a finite gradient.
    """
    if kind not in KL_KINDS or (kind == "rho_k3" and logp_old is None):
        raise RecipeError(f"kl: no estimate {kind!r} here; kinds: {', '.join(KL_KINDS)}; rho_k3 needs logp_old.")
    d = logp_ref.detach() - logp
    if kind == "k1":
        return -d
    if kind == "k2":
        return d.square() / 2
    beyond = (d - _MAX_LOG).clamp(min=0)
    near = d - beyond
    k3 = near.expm1() - near + torch.tensor(_MAX_LOG).expm1().item() * beyond
    return k3 if logp_old is None or kind == "k3" else clamped_exp(logp - logp_old.detach()) * k3


def kl_in_reward(rewards: Tensor, logp_old: Tensor, logp_ref: Tensor, mask: Tensor, beta: float) -> Tensor:
    """r - beta sum_t k1_t, one number a completion, [N]; a NaN reward stays NaN. Used by RLOO and
    REINFORCE."""
    penalty = torch.where(mask, logp_old - logp_ref, 0.0).sum(-1)
    return rewards - beta * penalty.detach()


def token_rewards(rewards: Tensor, logp_old: Tensor, logp_ref: Tensor, mask: Tensor, beta: float) -> Tensor:
    """-beta k1 on every trained token and the completion's reward on its last one, [N, T]; input to `gae`.

    A NaN reward gives a row of zeros: without a verdict nothing is learned, the KL included.
    """
    kl = torch.where(mask, -beta * (logp_old - logp_ref).detach(), 0.0)
    places = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, places, -1).amax(-1, keepdim=True)
    final = torch.where(mask & (places == last), rewards[:, None], 0.0)
    return torch.where(rewards.isnan()[:, None], 0.0, kl + final)


@dataclass
class AdaptiveKL:
    """beta *= 1 + clip(KL/target - 1, -0.2, 0.2) n/horizon (Ziegler et al. 2019, section 2.2); state = the
    fields."""

    beta: float
    target: float = 0.1
    horizon: int = 10_000

    def update(self, kl: float, n: int) -> float:
        """Adapt to the measured KL (nats a token) of `n` completions; returns the new beta."""
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.beta *= 1 + error * n / self.horizon
        return self.beta
