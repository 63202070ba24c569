"""Sampler-trainer mismatch: the engine that samples and the model that trains disagree a little on every
token.

w = exp(log pi_trainer - log pi_sampler) under the same weights. At token level each token has its w; at
sequence level a completion has one, the exponential of the *sum* of its log-ratios. `truncate` holds w to
at most `cap`, `mask` gives weight 0 to what lies above it and keeps w below. Source: truncated importance
sampling (Yao et al. 2025) and its masked variant; cap 2 is that of verl and slime.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.pipelines.errors import AssayWarning, RecipeError
from assay.rl.aggregation import Denominator, aggregate, divisor
from assay.rl.kl import clamped_exp

__all__ = ["Correction", "correct"]


@dataclass(frozen=True, eq=False)
class Correction:
    """`weights` for `policy_loss`, [N, T] or [N, 1], no gradient; `metrics` as those of a `Loss`."""

    weights: Tensor
    metrics: dict[str, Tensor]


@torch.no_grad()
def correct(
    logp_trainer: Tensor,
    logp_sampler: Tensor,
    mask: Tensor,
    *,
    level: str = "token",
    mode: str = "truncate",
    cap: float = 2.0,
    denominator: Denominator | None = None,
) -> Correction:
    """Importance weights [N, T] (`token`) or [N, 1] (`sequence`) from two [N, T] log-probabilities under
    `mask`.

    Metrics: `mismatch_kl` (k3 a token, KL(sampler || trainer)), `mismatch_log_ratio_max`, the mean and
    largest weight `_before` and `_after`, and `correction_kept_share` of tokens and of sequences.
    Truncation keeps everything. Warns (`AssayWarning`) when masking leaves nothing to train on. Reads one
    flag back from the device.
    """
    if level not in ("token", "sequence") or mode not in ("truncate", "mask") or not cap > 1:
        raise RecipeError(
            f"correction: level {level!r}, mode {mode!r}, cap {cap}; use token or sequence, "
            "truncate or mask, and a cap above 1."
        )
    mask = mask.bool()
    denominator = denominator or Denominator.count(mask)
    change = torch.where(mask, logp_trainer - logp_sampler, 0.0)
    before = clamped_exp(change if level == "token" else change.sum(-1, keepdim=True))
    after = before.clamp(max=cap) if mode == "truncate" else torch.where(before > cap, 0.0, before)
    terms = mask if level == "token" else mask.any(-1, keepdim=True)
    count = divisor(level, denominator)
    metrics = {
        "mismatch_kl": aggregate(clamped_exp(change) - change - 1, mask, "token", denominator),
        "mismatch_log_ratio_max": change.abs().amax(),
        **_weights("before", before, terms, count),
        **_weights("after", after, terms, count),
    }
    kept = mask & (after > 0)
    metrics["correction_kept_share"] = kept.sum() / divisor("token", denominator)
    metrics["correction_kept_sequences"] = kept.any(-1).sum() / divisor("sequence", denominator)
    if mode == "mask" and bool(mask.any() & ~kept.any()):
        said = f"correction: every {level} weight is above the cap {cap:g}, so nothing is left to train on"
        warnings.warn(said + "; use mode 'truncate' or level 'token'.", AssayWarning, stacklevel=2)
    return Correction(after, metrics)


def _weights(when: str, weights: Tensor, terms: Tensor, count: Tensor) -> dict[str, Tensor]:
    trained = torch.where(terms, weights, 0.0)
    return {
        f"correction_weight_mean_{when}": trained.sum() / count,
        f"correction_weight_{when}_max": trained.amax(),
    }
