"""Advantages from rewards, per group of completions of one prompt, and GAE for PPO.

A reward of NaN means *no verdict* (unverifiable, timeout): it is left out of every baseline and its
advantage is 0.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from assay.pipelines.errors import AssayWarning, RecipeError

__all__ = ["ADVANTAGES", "BATCH_WIDE", "advantages", "gae", "live_groups", "whiten"]

ADVANTAGES = ("grpo", "dr_grpo", "rloo", "max", "log_z", "reinforce", "reinforce++")
BATCH_WIDE = ("reinforce", "reinforce++")
"""Their baseline is the batch, so that a group of equal rewards moves something, too."""


def advantages(
    rewards: Tensor,
    group_size: int,
    kind: str = "grpo",
    ddof: int = 1,
    eps: float = 1e-4,
    *,
    tau: float = 0.1,
    baseline: float | None = None,
) -> Tensor:
    """Advantages of `rewards` [B*G], groups of `group_size` = G in a row; [B*G], float32, no gradient.

    grpo: (r - mean) / (std + eps), `ddof` 1 or 0. dr_grpo: r - mean. rloo: G/(G-1) (r - mean), the reward
    minus the mean of the others. max: (r - mean) / max|r - mean|. log_z: r - tau log mean exp(r/tau) (Kimi
    k1.5, the exact normaliser). reinforce: r - mean of the batch, or - `baseline` (a moving average) where
    given. reinforce++: the batch whitened. G counts a group's verdicts, so a NaN shrinks it. A constant
    group (batch for the last two) and a group with fewer than two verdicts get exactly 0; `group_size` 1
    warns (`AssayWarning`).

    Raises ValueError where the rewards are not whole groups, RecipeError for an unknown `kind` or `ddof`.
    """
    if kind not in ADVANTAGES or ddof not in (0, 1):
        raise RecipeError(f"advantage: no kind {kind!r} with ddof {ddof}; kinds: {', '.join(ADVANTAGES)}; ddof 0, 1.")
    groups = _groups(rewards, group_size)
    if kind in BATCH_WIDE:
        groups = groups.reshape(1, -1)
    elif group_size == 1:
        warnings.warn(f"advantage {kind!r}: groups of one give advantage 0; sample 2 or more.", AssayWarning, 2)
    if kind == "reinforce" and baseline is not None:
        return torch.nan_to_num(groups - baseline, nan=0.0).reshape(-1)
    scaled = _scaled(groups, kind, ddof, eps, tau)
    return torch.where(_live(groups) & ~groups.isnan(), scaled, 0.0).reshape(-1)


def _scaled(groups: Tensor, kind: str, ddof: int, eps: float, tau: float) -> Tensor:
    """The formula row by row, valid wherever a row has two or more verdicts; NaN stays NaN."""
    counts = (~groups.isnan()).sum(-1, keepdim=True)
    centered = groups - groups.nanmean(-1, keepdim=True)
    if kind in ("grpo", "reinforce++"):
        variance = centered.square().nansum(-1, keepdim=True) / (counts - ddof).clamp(min=1)
        return centered / (variance.sqrt() + eps)
    if kind == "rloo":
        return centered * counts / (counts - 1).clamp(min=1)
    if kind == "max":
        return centered / centered.nan_to_num(0.0).abs().amax(-1, keepdim=True)
    if kind == "log_z":
        known = torch.where(groups.isnan(), -torch.inf, groups)
        return groups - tau * (torch.logsumexp(known / tau, -1, keepdim=True) - counts.log())
    return centered


def live_groups(rewards: Tensor, group_size: int) -> Tensor:
    """True [B*G] for rewards of a group whose verdicts differ: those that carry a policy gradient.

    A group is constant by its smallest and largest reward, so eight times 0.5 is as dead as eight times 0.
    """
    return _live(_groups(rewards, group_size)).expand(-1, group_size).reshape(-1)


def _live(groups: Tensor) -> Tensor:
    low = torch.where(groups.isnan(), torch.inf, groups).amin(-1, keepdim=True)
    high = torch.where(groups.isnan(), -torch.inf, groups).amax(-1, keepdim=True)
    return high > low


def _groups(rewards: Tensor, group_size: int) -> Tensor:
    if rewards.ndim != 1 or group_size < 1 or len(rewards) % group_size:
        raise ValueError(f"rewards of shape {tuple(rewards.shape)} are not whole groups of {group_size}.")
    return rewards.detach().float().reshape(-1, group_size)


def whiten(values: Tensor, mask: Tensor, eps: float = 1e-4) -> Tensor:
    """`values` [N, T] with mean 0 and standard deviation 1 (ddof 1) over `mask`; 0 outside it."""
    count = mask.sum()
    mean = torch.where(mask, values, 0.0).sum() / count.clamp(min=1)
    centered = torch.where(mask, values - mean, 0.0)
    return centered / ((centered.square().sum() / (count - 1).clamp(min=1)).sqrt() + eps)


@torch.no_grad()
def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 1.0) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and returns, each [N, T], 0 outside `mask`.

    A_t = sum_l (gamma lam)^l delta_{t+l},  delta_t = r_t + gamma V_{t+1} - V_t, V beyond the end is 0;
    positions outside the mask are stepped over. With gamma = lam = 1, A_t is the reward to go minus V_t.

    Args: per-token rewards, values and a bool mask, all [N, T]. Source: Schulman et al. 2016, equation 16.
    """
    if not rewards.shape == values.shape == mask.shape:
        raise ValueError(f"gae: shapes differ: {tuple(rewards.shape)}, {tuple(values.shape)}, {tuple(mask.shape)}.")
    advantage = torch.zeros_like(values)
    running, next_value = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(mask[:, t], delta + gamma * lam * running, running)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        advantage[:, t] = torch.where(mask[:, t], running, 0.0)
    return advantage, torch.where(mask, advantage + values, 0.0)
