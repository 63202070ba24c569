"""Named algorithms as what they are made of: advantage x loss x aggregation x clip x KL x correction x sampling."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from assay.pipelines.errors import RecipeError
from assay.rl.advantages import ADVANTAGES
from assay.rl.aggregation import AGGREGATIONS
from assay.rl.kl import KL_KINDS
from assay.rl.losses import LOSSES, check_clip

__all__ = ["PRESETS", "Preset", "preset"]


@dataclass(frozen=True)
class Preset:
    """One algorithm. `docs/algorithms.md` says where each differs from which public implementation.

    Attributes:
        advantage: a kind of `advantages`, or `gae` (needs a critic). ddof: of grpo's standard deviation.
        loss, aggregation, clip_low, clip_high, dual_clip, tau: as in `policy_loss`; clip None where nothing clips.
        kl_place: `none`, `loss` or `reward`. kl: the estimate. beta: its weight. kl_on_dead_groups: whether the KL
            pulls in groups whose rewards are all equal.
        correction: `none`, `token` or `sequence`. correction_mode, correction_cap: as in `correct`.
        dynamic_sampling: drop groups that are all right or all wrong, and refill. overlong_reward: DAPO's length
            penalty.
            length_reward: Kimi's.
        mask_truncated: leave completions cut by the limit out of the loss.
        reset_optimizer: forget the optimizer's moments whenever the reference becomes the present policy.
    """

    name: str
    advantage: str
    loss: str
    aggregation: str
    clip_low: float | None
    clip_high: float | None
    ddof: int = 1
    dual_clip: float | None = None
    tau: float = 0.1
    kl_place: str = "none"
    kl: str = "k3"
    beta: float = 0.0
    kl_on_dead_groups: bool = False
    correction: str = "token"
    correction_mode: str = "truncate"
    correction_cap: float = 2.0
    dynamic_sampling: bool = False
    overlong_reward: bool = False
    length_reward: bool = False
    mask_truncated: bool = True
    reset_optimizer: bool = False


def _of(name: str, advantage: str, loss: str, **changes: Any) -> Preset:
    """A preset with its loss's own clip range and aggregation, corrected per sequence where its terms are."""
    rule = LOSSES[loss]
    changes.setdefault("correction", "token" if rule.level == "token" else "sequence")
    return Preset(name, advantage, loss, rule.aggregation, rule.clip_low, rule.clip_high, **changes)


_IN_REWARD: dict[str, Any] = {"kl_place": "reward", "kl": "k1"}

PRESETS: dict[str, Preset] = {
    made.name: made
    for made in (
        _of("grpo", "grpo", "grpo"),
        _of("dr_grpo", "dr_grpo", "dr_grpo"),
        _of("dapo", "grpo", "dapo", dynamic_sampling=True, overlong_reward=True, mask_truncated=False),
        _of("gspo", "grpo", "gspo"),
        _of("cispo", "grpo", "cispo", correction="none"),
        _of("topr", "dr_grpo", "topr", correction="none"),
        _of("rloo", "rloo", "rloo", beta=0.05, **_IN_REWARD),
        _of("reinforce", "reinforce", "reinforce"),
        _of("reinforce++", "reinforce++", "ppo", beta=0.01, **_IN_REWARD),
        _of("ppo", "gae", "ppo", beta=0.01, **_IN_REWARD),
        _of("kimi", "dr_grpo", "kimi", correction="none", length_reward=True, reset_optimizer=True),
    )
}


def preset(name: str, **changes: Any) -> Preset:
    """The preset `name` with some fields changed; RecipeError where a name or a value cannot be meant."""
    if name not in PRESETS:
        raise RecipeError(f"algorithm: {name!r} is unknown{_nearest(name, PRESETS)}; presets: {', '.join(PRESETS)}.")
    known = [field.name for field in fields(Preset) if field.name != "name"]
    for key in changes:
        if key not in known:
            raise RecipeError(f"algorithm {name}: no key {key!r}{_nearest(key, known)}; keys: {', '.join(known)}.")
    changed = replace(PRESETS[name], **changes)
    _check(changed)
    return changed


def _nearest(word: str, names: Any) -> str:
    near = difflib.get_close_matches(word, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _check(one: Preset) -> None:
    allowed: dict[str, tuple[str, ...]] = {
        "advantage": (*ADVANTAGES, "gae"),
        "loss": tuple(LOSSES),
        "aggregation": AGGREGATIONS,
        "kl_place": ("none", "loss", "reward"),
        "kl": KL_KINDS,
        "correction": ("none", "token", "sequence"),
        "correction_mode": ("truncate", "mask"),
    }
    for key, values in allowed.items():
        found = getattr(one, key)
        if found not in values:
            near = _nearest(str(found), values)
            raise RecipeError(f"algorithm {one.name}: {key} = {found!r}{near}; choose one of {', '.join(values)}.")
    _check_numbers(one)
    check_clip(one.loss, one.clip_low, one.clip_high)
    _check_kl(one)
    if LOSSES[one.loss].level != "token" and (one.correction == "token" or one.advantage == "gae"):
        raise RecipeError(
            f"algorithm {one.name}: loss {one.loss} is of whole completions; correction must be 'sequence' or "
            "'none', and the advantage not 'gae'."
        )


NUMBERS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "ddof": ("0 or 1", lambda x: x in (0, 1)),
    "tau": ("a number above 0", lambda x: 0 < x < math.inf),
    "beta": ("a number from 0 up", lambda x: 0 <= x < math.inf),
    "correction_cap": ("a number above 1", lambda x: x > 1),
    "clip_low": ("a number, or nothing", lambda x: True),
    "clip_high": ("a number, or nothing", lambda x: True),
    "dual_clip": ("a number above 1, or nothing", lambda x: x > 1),
}


def _check_numbers(one: Preset) -> None:
    for key, (wanted, holds) in NUMBERS.items():
        found, nothing = getattr(one, key), "nothing" in wanted
        number = isinstance(found, (int, float)) and not isinstance(found, bool)
        if not (holds(found) if number else nothing and found is None):
            raise RecipeError(f"algorithm {one.name}: {key} = {found!r}; give {wanted}.")
    for field in fields(Preset):
        if field.type == "bool" and not isinstance(found := getattr(one, field.name), bool):
            raise RecipeError(f"algorithm {one.name}: {field.name} = {found!r}; give true or false.")


def _check_kl(one: Preset) -> None:
    fault = ""
    if one.kl_place == "reward" and one.kl != "k1":
        fault = f"kl = {one.kl!r} in the reward; the estimate there is 'k1', which is unbiased."
    if one.kl_place == "loss" and one.kl == "k1":
        fault = "kl = 'k1' in the loss has no gradient on average; use k2, k3 or rho_k3, or kl_place = 'reward'."
    if one.kl_place == "none" and one.beta:
        fault = f"beta = {one.beta} with kl_place = 'none'; set kl_place to 'loss' or 'reward', or beta to 0."
    if fault:
        raise RecipeError(f"algorithm {one.name}: {fault}")
