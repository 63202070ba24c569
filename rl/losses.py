"""Policy losses: one formula a kind, one way of masking, aggregating, correcting and measuring for all of
them.

Notation: l = log pi of a sampled token, l_old the same under the policy that sampled, rho = exp(l - l_old),
A the advantage, S = sum_t l, sg = no gradient. Each formula is an objective to be maximised; the loss is its
negative. Defaults are clip low / high and aggregation.

kind       objective                                               defaults             source
grpo       min(rho A, clip(rho, 1-low, 1+high) A)                  .2/.2, sequence      2402.03300, eq. 3
dr_grpo    the same                                                .2/.2, constant      2503.20783
dapo       the same                                                .2/.28, token        2503.14476
ppo        the same; where A < 0, not below dual_clip A            .2/.2, token         1707.06347
gspo       min(s A, clip(s) A),  s = exp(mean_t (l - l_old))       3e-4/4e-4, sequence  2507.18071
cispo      sg(clip(rho, 1-low, 1+high)) A l                        1/4, token           2506.13585
topr       w A S,  w = 1 if A > 0 else sg(min(exp(S - S_old), 1))  -, sequence          2503.14286
reinforce  A l  (rloo the same)                                    -, token             Williams 1992
kimi       A S - tau/2 (S - sg(S_old))^2                           -, sequence          2501.12599, 2.3
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.pipelines.errors import AssayWarning, RecipeError
from assay.rl.aggregation import Denominator, aggregate, divisor, sequence_mean
from assay.rl.kl import clamped_exp, kl_estimate

__all__ = ["LOSSES", "Loss", "LossRule", "check_clip", "policy_loss", "value_loss"]


@dataclass(frozen=True, eq=False)
class Loss:
    """`value` carries the gradient; `metrics` are detached 0-d tensors, read them once a step.

    Metrics are shares of the step: over its micro-batches they add up (`aggregation.combine_metrics`),
    except names ending in `_max`.
    """

    value: Tensor
    metrics: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What a formula reads; log-probabilities are 0 outside the mask."""

    logp: Tensor  # [N, T], gradient
    logp_old: Tensor  # [N, T]
    advantage: Tensor  # [N, T] or [N, 1]
    mask: Tensor  # [N, T] bool
    low: float
    high: float
    dual_clip: float | None
    tau: float


@dataclass(frozen=True, eq=False)
class _Objective:
    value: Tensor  # [N, T] a token, or [N, 1] a sequence
    ratio: Tensor  # the importance ratio, same shape
    below: Tensor  # true where clipping from below acts
    above: Tensor


def _clipped(x: _Inputs, ratio: Tensor) -> _Objective:
    """min(rho A, clip(rho) A): the pessimistic bound acts above for A > 0 and below for A < 0."""
    clipped = ratio.clamp(1 - x.low, 1 + x.high)
    value = torch.minimum(ratio * x.advantage, clipped * x.advantage)
    if x.dual_clip is not None:
        value = torch.where(x.advantage < 0, torch.maximum(value, x.dual_clip * x.advantage), value)
    below = (x.advantage < 0) & (ratio < 1 - x.low)
    return _Objective(value, ratio, below, (x.advantage > 0) & (ratio > 1 + x.high))


def _token_clipped(x: _Inputs) -> _Objective:
    return _clipped(x, clamped_exp(x.logp - x.logp_old))


def _gspo(x: _Inputs) -> _Objective:
    return _clipped(x, clamped_exp(sequence_mean(x.logp - x.logp_old, x.mask)[:, None]))


def _cispo(x: _Inputs) -> _Objective:
    """Every token keeps a gradient, its weight is capped; below and above count the capped weights."""
    ratio = clamped_exp(x.logp.detach() - x.logp_old)
    weight = ratio.clamp(1 - x.low, 1 + x.high)
    return _Objective(weight * x.advantage * x.logp, ratio, ratio < 1 - x.low, ratio > 1 + x.high)


def _topr(x: _Inputs) -> _Objective:
    ratio = clamped_exp((x.logp.detach() - x.logp_old).sum(-1, keepdim=True))
    weight = torch.where(x.advantage > 0, 1.0, ratio.clamp(max=1.0))
    value = weight * x.advantage * x.logp.sum(-1, keepdim=True)
    never = torch.zeros_like(ratio, dtype=torch.bool)
    return _Objective(value, ratio, never, (x.advantage < 0) & (ratio > 1))


def _reinforce(x: _Inputs) -> _Objective:
    never = torch.zeros_like(x.mask)
    return _Objective(x.advantage * x.logp, clamped_exp(x.logp - x.logp_old), never, never)


def _kimi(x: _Inputs) -> _Objective:
    """With tau log Z = mean reward, -2 tau times this gradient is that of (r - tau log Z - tau (S -
    S_old))^2."""
    change = (x.logp - x.logp_old).sum(-1, keepdim=True)
    value = x.advantage * x.logp.sum(-1, keepdim=True) - x.tau / 2 * change.square()
    never = torch.zeros_like(change, dtype=torch.bool)
    return _Objective(value, clamped_exp(change), never, never)


@dataclass(frozen=True)
class LossRule:
    """A kind's formula, its default clip range and aggregation, and whether its terms are tokens or
    sequences.

    `level`: `token`; `mean` (one term a sequence, a mean over its tokens); `sum` (one, a sum over its
    tokens).
    """

    formula: Callable[[_Inputs], _Objective]
    clip_low: float | None
    clip_high: float | None
    aggregation: str
    level: str = "token"


LOSSES: dict[str, LossRule] = {
    "grpo": LossRule(_token_clipped, 0.2, 0.2, "sequence"),
    "dr_grpo": LossRule(_token_clipped, 0.2, 0.2, "constant"),
    "dapo": LossRule(_token_clipped, 0.2, 0.28, "token"),
    "ppo": LossRule(_token_clipped, 0.2, 0.2, "token"),
    "gspo": LossRule(_gspo, 3e-4, 4e-4, "sequence", "mean"),
    "cispo": LossRule(_cispo, 1.0, 4.0, "token"),
    "topr": LossRule(_topr, None, None, "sequence", "sum"),
    "reinforce": LossRule(_reinforce, None, None, "token"),
    "rloo": LossRule(_reinforce, None, None, "token"),
    "kimi": LossRule(_kimi, None, None, "sequence", "sum"),
}


def policy_loss(
    kind: str,
    logp: Tensor,
    logp_old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_low: float | None = None,
    clip_high: float | None = None,
    aggregation: str | None = None,
    max_length: int | None = None,
    denominator: Denominator | None = None,
    dual_clip: float | None = None,
    tau: float = 0.1,
    weights: Tensor | None = None,
    logp_ref: Tensor | None = None,
    beta: float = 0.0,
    kl: str = "k3",
    kl_rows: Tensor | None = None,
) -> Loss:
    """The loss of `kind` (see the module's table; defaults are the kind's) plus `beta` times the KL, to be
    minimised.

    Args:
        logp: log pi of the sampled tokens at the sampling temperature, nats, [N, T]; carries the gradient.
        logp_old: the same under the policy that sampled, [N, T]; no gradient.
        advantage: [N], or [N, T] for the kinds whose terms are tokens.
        mask: true on trained completion tokens, [N, T]. A row without any (truncated) counts nowhere.
        max_length: the completion limit, for aggregation `constant`.
        denominator: counted over the whole optimizer step, where this is a micro-batch of it.
        weights: sampler-trainer correction, [N, T] or [N, 1]; the denominator stays that of the mask, so a
        rejected
            token shortens the step rather than lengthening its neighbours' steps.
        logp_ref, beta, kl: the reference policy [N, T], its weight, and the estimate (`kl.KL_KINDS`).
        kl_rows: true [N] where the KL pulls; by default rows whose advantage is not 0, so that a
        zero-variance
            group moves nothing. `advantages.live_groups` gives whole groups, all true pulls everywhere.

    Raises RecipeError for a setting that cannot work, ValueError for shapes that do not fit.
    """
    rule = _rule(kind)
    low, high = check_clip(kind, clip_low, clip_high)
    mask = mask.bool()
    advantage = _shaped(kind, rule, logp, logp_old, advantage, mask, weights)
    logp, logp_old = logp.masked_fill(~mask, 0.0), logp_old.detach().masked_fill(~mask, 0.0)
    objective = rule.formula(_Inputs(logp, logp_old, advantage, mask, low, high, dual_clip, tau))
    if weights is not None:
        objective = replace(objective, value=objective.value * weights.detach())
    denominator, how = denominator or Denominator.count(mask), aggregation or rule.aggregation
    value = -_reduce(rule, objective.value, mask, how, denominator, max_length)
    metrics = _metrics(rule, objective, logp, logp_old, mask, weights, denominator) | {"policy_loss": value.detach()}
    if logp_ref is not None:
        estimate = kl_estimate(kl, logp, logp_ref.masked_fill(~mask, 0.0), logp_old)
        rows = (advantage != 0).any(-1) if kl_rows is None else kl_rows.bool()
        pull = torch.where(rows[:, None], estimate, 0.0)
        value = value + beta * aggregate(pull, mask, how, denominator, max_length)
        metrics["kl"] = aggregate(estimate.detach(), mask, "token", denominator)
    return Loss(value, metrics)


def _rule(kind: str) -> LossRule:
    if kind not in LOSSES:
        raise RecipeError(f"loss: {kind!r} is unknown; choose one of {', '.join(LOSSES)}.")
    return LOSSES[kind]


def check_clip(kind: str, clip_low: float | None, clip_high: float | None) -> tuple[float, float]:
    """The clip range of `kind` after defaults; refuses one that cannot work, warns of one that never acts."""
    rule = _rule(kind)
    low = rule.clip_low if clip_low is None else clip_low
    high = rule.clip_high if clip_high is None else clip_high
    if low is None or high is None:
        return 0.0, 0.0  # the kind does not clip
    if kind == "cispo" and high <= 0:
        raise RecipeError(f"cispo: clip_high={high} caps every weight at {1 + high:g}, at most 1; use about 4.")
    if low < 0 or high < 0:
        raise RecipeError(f"{kind}: clip range -{low}/+{high} leaves out a ratio of 1; give both as positive numbers.")
    if kind == "gspo" and max(low, high) > 0.05:
        said = f"gspo: a clip of {max(low, high):g} never acts on a length-normalised ratio"
        warnings.warn(said + "; the paper's is 3e-4/4e-4.", AssayWarning, stacklevel=3)
    return low, high


def _shaped(
    kind: str,
    rule: LossRule,
    logp: Tensor,
    logp_old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    weights: Tensor | None,
) -> Tensor:
    """The advantage as [N, 1] or [N, T], 0 where nothing is trained; ValueError where shapes do not fit."""
    n, t = logp.shape
    if logp_old.shape != logp.shape or mask.shape != logp.shape:
        raise ValueError(f"logp {(n, t)}, logp_old {tuple(logp_old.shape)}, mask {tuple(mask.shape)}: must be equal.")
    advantage = advantage.detach()[:, None] if advantage.ndim == 1 else advantage.detach()
    widths = (1, t) if rule.level == "token" else (1,)
    for name, tensor in (("advantage", advantage), ("weights", weights)):
        if tensor is not None and (tensor.ndim != 2 or tensor.shape[0] != n or tensor.shape[1] not in widths):
            want = " or ".join(str((n, width)) for width in widths)
            raise ValueError(f"{kind}: {name} has shape {tuple(tensor.shape)}; it must be {want}.")
    trained = mask if advantage.shape[1] == t else mask.any(-1, keepdim=True)
    return torch.where(trained, advantage, 0.0)


def _reduce(
    rule: LossRule, value: Tensor, mask: Tensor, how: str, denominator: Denominator, max_length: int | None
) -> Tensor:
    """A sequence's mean counts once for each of its tokens; a sequence's sum is already over its tokens."""
    if rule.level == "sum":
        return torch.where(mask.any(-1), value[:, 0], 0.0).sum() / divisor(how, denominator, max_length)
    return aggregate(value.expand(mask.shape), mask, how, denominator, max_length)


@torch.no_grad()
def _metrics(
    rule: LossRule,
    objective: _Objective,
    logp: Tensor,
    logp_old: Tensor,
    mask: Tensor,
    weights: Tensor | None,
    denominator: Denominator,
) -> dict[str, Tensor]:
    """Shares of the step's terms (tokens, or sequences for the sequence-level kinds), and two raw counts.

    `approx_kl` is k3 of KL(old || new) a token; `kept_share` the trained tokens whose correction weight is
    not 0.
    """
    by_token = rule.level == "token"
    terms = mask if by_token else mask.any(-1, keepdim=True)
    count = divisor("token" if by_token else "sequence", denominator)
    change = logp - logp_old

    def share(of: Tensor) -> Tensor:
        return torch.where(terms, of, 0.0).sum() / count

    kept = mask if weights is None else mask & (weights > 0)
    return {
        "ratio_mean": share(objective.ratio),
        "ratio_error_max": torch.where(terms, (objective.ratio - 1).abs(), 0.0).amax(),
        "clip_share_low": share(objective.below.float()),
        "clip_share_high": share(objective.above.float()),
        "approx_kl": aggregate(clamped_exp(change) - change - 1, mask, "token", denominator),
        "kept_share": kept.sum() / divisor("token", denominator),
        "tokens": mask.sum(),
        "sequences": mask.any(-1).sum(),
    }


def value_loss(
    values: Tensor,
    values_old: Tensor,
    returns: Tensor,
    mask: Tensor,
    clip: float = 0.2,
    denominator: Denominator | None = None,
) -> Loss:
    """PPO's critic: mean over tokens of max((V - R)^2, (V_clip - R)^2) / 2, V_clip within `clip` of V_old.

    All [N, T]; `values` carries the gradient. Source: Schulman et al. 2017, with the clipping of its
    reference code.
    """
    near = values_old.detach() + (values - values_old.detach()).clamp(-clip, clip)
    plain, clipped = (values - returns.detach()).square(), (near - returns.detach()).square()
    mask, denominator = mask.bool(), denominator or Denominator.count(mask)
    value = aggregate(torch.maximum(plain, clipped) / 2, mask, "token", denominator)
    beyond = (values - values_old).abs() > clip  # else the two differ by rounding alone
    acts = aggregate((beyond & (clipped > plain)).float(), mask, "token", denominator)
    return Loss(value, {"value_loss": value.detach(), "value_clip_share": acts})
