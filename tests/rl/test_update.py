"""The update on made-up groups, without an engine. Numbers in names and docstrings are checks of trainer_checks.md."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from assay.pipelines.errors import RecipeError
from assay.rl.clock import Clock
from assay.rl.presets import PRESETS
from assay.rl.recipe import TrainRecipe
from assay.rl.rollouts import Group
from assay.rl.update import Updater

LONGEST = 6 + 12


def gradient(updated: Any, model: Any, groups: list[Group], **changes: Any) -> torch.Tensor:
    model = copy.deepcopy(model)
    updated(model, groups, **changes)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def near(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def with_samples(group: Group, **changes: list[Any]) -> Group:
    samples = [replace(s, **{k: v[i] for k, v in changes.items()}) for i, s in enumerate(group.samples)]
    return replace(group, samples=samples)


def test_the_kl_to_the_reference_comes_off_the_rewards(tiny: Any, groups_of: Any) -> None:
    """Sampled half a nat above the reference at every token: 0.5 x tokens x beta less, and RLOO's baseline of that."""
    size = {"prompts": 4, "group_size": 4, "max_tokens": 16}
    recipe = TrainRecipe(name="t", model="m", store="s", algorithm="rloo", changes={"beta": 0.1}, sampling=size)  # type: ignore[arg-type]
    updater = Updater(tiny, recipe, recipe.preset(), Clock())
    (group,) = groups_of(tiny, count=1)
    plain = updater.estimate([group])
    raised = with_samples(group, logprobs=[[x + 0.5 for x in s.logprobs] for s in group.samples])
    off = torch.tensor([0.5 * 0.1 * len(s.token_ids) for s in group.samples])
    expected = plain.completion - (off - (off.sum() - off) / (len(off) - 1))
    assert updater.estimate([raised]).completion == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("algorithm", sorted(PRESETS))
def test_gradient_is_the_same_for_every_micro_batch_size_padded_or_packed(
    tiny: Any, groups_of: Any, updated: Any, algorithm: str
) -> None:
    """Check 3: micro-batches of 1, 2, 8 or all rows. The weights have moved since sampling, so that ratios differ."""
    groups = groups_of(tiny)
    groups[1] = with_samples(groups[1], truncated=[True, False, False, False])
    with torch.no_grad():
        for p in tiny.parameters():
            p += 0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    wanted = gradient(updated, tiny, groups, algorithm=algorithm, optimizer={"micro_batch_tokens": 10**6})
    assert float(wanted.norm()) > 0
    for size in (1, 2, 8):
        for packing in (False, True):
            got = gradient(
                updated,
                tiny,
                groups,
                algorithm=algorithm,
                optimizer={"micro_batch_tokens": size * LONGEST},
                memory={"packing": packing},
            )
            assert near(got, wanted) < 1e-5, (size, packing)


def test_several_updates_a_step_each_have_the_gradient_of_their_own_groups(
    tiny: Any, groups_of: Any, updated: Any
) -> None:
    """Checks 1 and 2: the last of two updates, in many micro-batches or one, is that of its half of the groups."""
    groups = groups_of(tiny)
    still = {"learning_rate": 1e-12, "updates_per_step": 2}
    many = gradient(updated, tiny, groups, optimizer={**still, "micro_batch_tokens": 1})
    one = gradient(updated, tiny, groups, optimizer={**still, "micro_batch_tokens": 10**6})
    half = gradient(updated, tiny, groups[2:], optimizer={"learning_rate": 1e-12})
    assert near(many, one) < 1e-5
    assert near(many, half) < 1e-5


def test_a_duplicated_batch_has_the_same_gradient(tiny: Any, groups_of: Any, updated: Any) -> None:
    """Check 4, through the whole update, for the constant divisor and the two others."""
    groups = groups_of(tiny)
    for algorithm in ("dr_grpo", "grpo", "dapo"):
        once, twice = (gradient(updated, tiny, g, algorithm=algorithm) for g in (groups, groups + groups))
        assert near(twice, once) < 1e-5


def test_the_first_inner_step_is_on_policy(tiny: Any, groups_of: Any, updated: Any) -> None:
    """Check 5: ratio 1, nothing clipped, no KL to a reference that is the policy."""
    _, metrics = updated(tiny, groups_of(tiny), algorithm="grpo", changes={"kl_place": "loss", "beta": 0.1})
    assert metrics["ratio_error"] < 1e-5
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["clip_share_low"] == metrics["clip_share_high"] == 0
    assert metrics["ratio_mean"] == pytest.approx(1)


def test_nothing_to_train_moves_nothing(tiny: Any, groups_of: Any, updated: Any) -> None:
    """Check 10: every completion cut by the limit; check 24: no verdict at all. Loss 0, no NaN, weights as before."""
    groups = groups_of(tiny)
    before = copy.deepcopy(tiny.state_dict())
    for fault in ({"truncated": [True] * 4}, {"reward": [math.nan] * 4}):
        for algorithm in ("dr_grpo", "dapo", "ppo"):
            settings = {"changes": {"mask_truncated": True}, "algorithm": algorithm}
            _, metrics = updated(tiny, [with_samples(g, **fault) for g in groups], **settings)
            assert metrics["policy_loss"] == metrics["grad_norm"] == 0
            assert all(math.isfinite(v) for v in metrics.values())
    assert all(torch.equal(before[k], v) for k, v in tiny.state_dict().items())


@pytest.mark.parametrize("pulls", [False, True])
def test_whether_a_dead_group_is_pulled_to_the_reference_is_an_option(
    tiny: Any, groups_of: Any, updated: Any, pulls: bool
) -> None:
    """Check 12: all rewards equal; by default the KL does not pull. Check 11: where it does, a step reduces it."""
    groups = [with_samples(g, reward=[0.5] * 4) for g in groups_of(tiny)]
    changes = {"kl_place": "loss", "beta": 1.0, "kl_on_dead_groups": pulls}
    recipe_changes = {"algorithm": "grpo", "changes": changes, "optimizer": {"learning_rate": 1e-4}}
    updater, _ = updated(tiny, groups, **recipe_changes)
    with torch.no_grad():
        tiny.model.embed_tokens.weight *= 1.3
    first = updater.update(groups, updater.estimate(groups), 1)
    second = updater.update(groups, updater.estimate(groups), 2)
    assert (first["grad_norm"] > 0) == pulls
    assert first["kl"] > 0.01
    assert (second["kl"] < first["kl"]) == pulls


@pytest.mark.parametrize("pulls", [False, True])
def test_a_kl_in_the_reward_spares_a_dead_group_too(tiny: Any, groups_of: Any, updater_of: Any, pulls: bool) -> None:
    """Check 12 where the KL comes off the rewards: RLOO's group of equal rewards, sampled above the reference."""
    changes = {"beta": 0.5, "kl_on_dead_groups": pulls}
    updater = updater_of(tiny, algorithm="rloo", changes=changes)
    groups = [with_samples(g, reward=[0.5] * 4, logprobs=[[x + 0.5 for x in s.logprobs] for s in g.samples])
              for g in groups_of(tiny)]  # fmt: skip
    assert bool(updater.estimate(groups).completion.abs().max() > 0.1) == pulls


def test_tokens_of_an_older_policy_are_clipped_by_its_own_probabilities(
    tiny: Any, groups_of: Any, updater_of: Any
) -> None:
    """The sampler's, a nat lower: ratio e beyond the clip; no mismatch, which is between two of the same weights.

    Of the same groups sampled by the present weights the nat is mismatch: ratio 1, weight e held to 2.
    """
    updater = updater_of(tiny, algorithm="dr_grpo", optimizer={"learning_rate": 1e-9})
    groups = [with_samples(g, logprobs=[[x - 1.0 for x in s.logprobs] for s in g.samples])
              for g in groups_of(tiny, version=3)]  # fmt: skip
    old, new = (updater.update(groups, updater.estimate(groups), step) for step in (4, 3))
    assert old["ratio_mean"] == pytest.approx(math.e, rel=1e-4)
    assert old["correction_weight_mean_after"] == pytest.approx(1.0)
    assert old["clip_share_high"] > 0.1
    assert new["ratio_mean"] == pytest.approx(1.0, rel=1e-4)
    assert new["correction_weight_mean_after"] == pytest.approx(2.0, rel=1e-4)


def test_the_normaliser_has_the_recipes_tau(tiny: Any, groups_of: Any, updater_of: Any) -> None:
    """Rewards 1, 0, 0, 0: A = r - tau log mean exp(r / tau); with tau 1 that is 1 - log((e + 3) / 4) = 0.6426."""
    updater = updater_of(tiny, algorithm="kimi", changes={"advantage": "log_z", "tau": 1.0})
    groups = [with_samples(g, reward=[1.0, 0.0, 0.0, 0.0]) for g in groups_of(tiny, count=1)]
    assert updater.estimate(groups).completion.tolist() == pytest.approx([0.6426, *[-0.3574] * 3], abs=1e-4)


def test_every_sequence_is_trained_once(tiny: Any, groups_of: Any, updated: Any) -> None:
    """Check 21: five groups in updates of two, ragged micro-batches. Check 37: what is trained is told."""
    groups = groups_of(tiny, count=5)
    _, metrics = updated(tiny, groups, optimizer={"updates_per_step": 3, "micro_batch_tokens": 3 * LONGEST})
    assert metrics["sequences"] * 3 == 20
    assert metrics["tokens"] * 3 == sum(g.tokens for g in groups)


def test_a_reference_can_be_kept_in_half_precision_and_reset(tiny: Any, groups_of: Any) -> None:
    """The start's KL is small in bfloat16; after a reset the reference is the policy again, its optimizer new."""
    made = TrainRecipe.model_validate({
        "name": "t", "model": "reasoner", "store": "s", "algorithm": "grpo", "sampling": {"group_size": 4},
        "changes": {"kl_place": "loss", "beta": 0.1}, "optimizer": {"learning_rate": 1e-2},
        "reference": {"dtype": "bfloat16", "reset_every": 2, "kl_target": 0.001, "kl_horizon": 160}})  # fmt: skip
    groups, updater = groups_of(tiny), Updater(tiny, made, made.preset(), Clock())
    kl = [updater.update(groups, updater.estimate(groups), step) for step in range(4)]
    assert kl[0]["kl"] < 1e-3 < kl[1]["kl"]
    assert kl[2]["kl"] < kl[1]["kl"] / 10
    assert kl[0]["beta"] == 0.1
    assert kl[2]["beta"] > kl[1]["beta"]  # above its target, beta rises by at most 0.2 x 16/160
    assert kl[2]["beta"] / kl[1]["beta"] <= 1.02 + 1e-9


def test_lora_trains_and_merges_its_additions_alone(tiny: Any, groups_of: Any, updated: Any) -> None:
    """Check 29: the merged weights are the adapted model; the base, which is the reference, stays."""
    base, groups = copy.deepcopy(tiny), groups_of(tiny)
    changes = {"kl_place": "loss", "beta": 0.01}
    settings = {"algorithm": "grpo", "changes": changes, "lora": {"rank": 4}, "optimizer": {"learning_rate": 1e-2}}
    updater, _ = updated(tiny, groups, **settings)
    metrics = updater.update(groups, updater.estimate(groups), 1)
    assert metrics["kl"] > 1e-6
    merged = updater.weights()
    assert set(merged) == set(base.state_dict())
    moved = {k for k, v in base.state_dict().items() if not torch.equal(v, merged[k])}
    assert moved
    assert all("_proj" in k for k in moved)
    ids = torch.arange(3, 30)[None]
    with torch.no_grad():
        adapted = tiny(ids).logits
        plain = base(ids).logits
        base.load_state_dict(merged)
        torch.testing.assert_close(base(ids).logits, adapted, atol=1e-5, rtol=0)
    assert float((adapted - plain).abs().max()) > 1e-3
    again, _ = updated(copy.deepcopy(base), groups, lora={"rank": 4})
    assert {k: v.shape for k, v in again.weights().items()} == {k: v.shape for k, v in merged.items()}


def test_a_small_addition_survives_where_merging_in_bfloat16_would_erase_it(
    tiny: Any, groups_of: Any, updated: Any
) -> None:
    """Check 29: of a weight of 1 and a change of 0.001, bfloat16 keeps nothing; the trainer's own sum is in float32."""
    with torch.no_grad():
        tiny.model.layers[0].mlp.up_proj.weight.fill_(1.0)
    updater, _ = updated(tiny, groups_of(tiny), lora={"rank": 1, "alpha": 1}, optimizer={"learning_rate": 1e-9})
    layer = tiny.model.layers[0].mlp.up_proj
    with torch.no_grad():
        layer.lora_A["default"].weight.fill_(0.001)
        layer.lora_B["default"].weight.fill_(1.0)
    merged = updater.weights()["model.layers.0.mlp.up_proj.weight"]
    assert float((merged - 1).mean()) == pytest.approx(0.001, rel=1e-3)
    assert float((torch.ones(1).bfloat16() + 0.001).float() - 1) == 0


def test_gradient_checkpointing_changes_no_gradient_and_keeps_less(tiny: Any, groups_of: Any, updated: Any) -> None:
    groups = groups_of(tiny)
    plain = gradient(updated, tiny, groups)
    assert near(gradient(updated, tiny, groups, memory={"gradient_checkpointing": True}), plain) < 1e-6
    calls = []
    tiny.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    updated(tiny, groups, memory={"gradient_checkpointing": True}, optimizer={"micro_batch_tokens": 10**6})
    assert len(calls) == 2  # forward, and again in the backward pass


def test_a_reference_that_is_the_lora_base_cannot_be_reset() -> None:
    with pytest.raises(ValueError, match="it is the base; set 0"):
        TrainRecipe.model_validate(
            {"name": "t", "model": "m", "store": "s", "lora": {"rank": 2}, "reference": {"reset_every": 3}}
        )
    with pytest.raises(RecipeError, match="did you mean"):
        TrainRecipe.model_validate({"name": "t", "model": "m", "store": "s", "changes": {"betta": 1}})


def test_memory_does_not_grow_over_five_hundred_steps(tiny: Any, groups_of: Any) -> None:
    """Check 40, for the update itself: optimizer, critic-free estimate, metrics."""
    recipe = TrainRecipe.model_validate({"name": "t", "model": "m", "store": "s", "sampling": {"group_size": 2}})
    updater, groups = Updater(tiny, recipe, recipe.preset(), Clock()), groups_of(tiny, count=1, size=2)
    seen = {}
    for step in range(500):
        updater.update(groups, updater.estimate(groups), step)
        seen[step] = resident()
    assert seen[499] - seen[99] < 8 * 2**20


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
