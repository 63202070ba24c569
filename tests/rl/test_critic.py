"""PPO's critic: values, advantages by hand, learning, resume."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.rl.batches import Example
from assay.rl.critic import Critic, token_advantages
from assay.rl.recipe import Critic as Settings
from assay.rl.rows import Batcher, Estimate, Rows

PLAIN = Settings(whiten=False)


def critic(model: Any, budget: int = 10**6, **settings: Any) -> Critic:
    return Critic(model, Settings(**settings), Batcher(budget, torch.device("cpu")), 1e9)


def randomise(made: Critic) -> Critic:
    with torch.no_grad():
        made.network.head.weight.copy_(torch.randn(1, 64, generator=torch.Generator().manual_seed(3)))
    return made


def test_token_advantages_by_hand() -> None:
    """Reward 1 on the last of three tokens, beta 0.1, k1 of (0.5, 0, -1): token rewards -0.05, 0, 1.1."""
    logp, ref = torch.tensor([[-1.0, -2.0, -3.0, 9.0]]), torch.tensor([[-1.5, -2.0, -2.0, 7.0]])
    values, mask = torch.tensor([[0.5, 0.4, 0.3, 9.0]]), torch.tensor([[True, True, True, False]])
    got, returns = token_advantages(torch.tensor([1.0]), values, logp, ref, mask, 0.1, PLAIN)
    assert got[0].tolist() == pytest.approx([1.05 - 0.5, 1.1 - 0.4, 1.1 - 0.3, 0])
    assert returns[0].tolist() == pytest.approx([1.05, 1.1, 1.1, 0])
    one_step = token_advantages(torch.tensor([1.0]), values, logp, ref, mask, 0.1, replace_(lam=0.0, gamma=0.5))[0]
    assert one_step[0].tolist() == pytest.approx([-0.05 + 0.2 - 0.5, 0.15 - 0.4, 1.1 - 0.3, 0])


def replace_(**changes: Any) -> Settings:
    return PLAIN.model_copy(update=changes)


@given(st.lists(st.floats(-2, 2, width=32), min_size=4, max_size=4), st.floats(0, 1), st.floats(0.1, 1))
def test_advantage_plus_value_is_the_return_and_whitening_is_of_the_advantage_alone(
    values: list[float], lam: float, gamma: float
) -> None:
    v, mask, logp = torch.tensor([values]), torch.ones(1, 4, dtype=torch.bool), torch.zeros(1, 4)
    settings = replace_(lam=lam, gamma=gamma)
    plain, returns = token_advantages(torch.tensor([1.0]), v, logp, logp, mask, 0.0, settings)
    assert torch.allclose(plain + v, returns, atol=1e-5)
    whitened = settings.model_copy(update={"whiten": True})
    white, same = token_advantages(torch.tensor([1.0]), v, logp, logp, mask, 0.0, whitened)
    assert torch.equal(returns, same)
    assert torch.allclose(white, (plain - plain.mean()) / (plain.std() + 1e-4), atol=1e-4)


def test_a_fresh_critic_leaves_the_reward_as_the_advantage_of_every_token(
    tiny: Any, groups_of: Any, updated: Any
) -> None:
    """Its head is zero; without KL, discount and whitening PPO's first step is REINFORCE."""
    settings = {"algorithm": "ppo", "changes": {"beta": 0.0}, "critic": {"whiten": False}}
    updater, _ = updated(tiny, groups := groups_of(tiny), **settings)
    updater.critic = critic(tiny, whiten=False)
    estimate = updater.estimate(groups)
    for row, sample in zip(estimate.advantage, (s for g in groups for s in g.samples)):
        assert row.tolist() == [sample.reward] * len(sample.token_ids) + [0] * (len(row) - len(sample.token_ids))
    assert estimate.completion.tolist() == [s.reward for g in groups for s in g.samples]


def test_a_value_knows_the_tokens_before_it_and_none_after(tiny: Any) -> None:
    made = randomise(critic(tiny))
    before, after = made.values([Example([5, 6], [7, 8, 9, 10]), Example([5, 6], [7, 8, 50, 10])])
    assert torch.allclose(before[:3], after[:3], atol=1e-6)
    assert abs(float(before[3] - after[3])) > 1e-3


def learn(tiny: Any, groups: list[Any], budget: int, steps: int = 1, **settings: Any) -> tuple[Critic, list[float]]:
    made, losses = randomise(critic(tiny, budget, **settings)), []
    examples = [e for g in groups for e in g.examples()]
    for _ in range(steps):
        values = made.values(examples)
        returns = torch.ones_like(values)
        rows = Rows(groups, Estimate(values, values[:, 0], values[:, 0] > 0, values, returns), True, 0)
        own = range(len(examples))
        losses.append(made.step(rows, made.batcher.cut(rows.examples, own), rows.denominator(own))["value_loss"])
    return made, losses


def test_the_gradient_does_not_depend_on_the_micro_batch_and_truncated_completions_teach_nothing(
    tiny: Any, groups_of: Any
) -> None:
    groups = groups_of(tiny)
    alone, whole = (
        torch.cat([p.grad.flatten() for p in learn(copy.deepcopy(tiny), groups, b)[0].network.parameters()])
        for b in (1, 10**6)
    )
    assert float((alone - whole).norm() / whole.norm()) < 1e-5
    cut = [replace(g, samples=[replace(s, truncated=True) for s in g.samples]) for g in groups]
    assert learn(tiny, cut, 10**6)[1] == [0.0]


def test_it_learns_the_returns(tiny: Any, groups_of: Any) -> None:
    _, losses = learn(tiny, groups_of(tiny), 10**6, steps=60, learning_rate=3e-3)
    assert losses[-1] < losses[0] / 20


def test_its_state_goes_on_exactly(tiny: Any, groups_of: Any) -> None:
    groups = groups_of(tiny)
    one, _ = learn(tiny, groups, 10**6, steps=2)
    other = critic(tiny)
    other.load(copy.deepcopy(one.state()))
    examples = [e for g in groups for e in g.examples()]
    assert torch.equal(one.values(examples), other.values(examples))
    assert str(one.optimizer.state_dict()) == str(other.optimizer.state_dict())


def test_ppo_metrics_and_kl_in_the_reward(tiny: Any, groups_of: Any, updated: Any) -> None:
    """A policy that left its reference has its KL told, and taken off the rewards of every token."""
    groups = groups_of(tiny)
    updater, metrics = updated(tiny, groups, algorithm="ppo", optimizer={"learning_rate": 1e-2})
    assert {"value_loss", "value_clip_share", "kl"} <= set(metrics)
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    moved = groups_of(tiny)
    later = updater.estimate(moved)
    assert later.kl is not None
    assert abs(later.kl) > 1e-4  # of made-up tokens; of sampled ones it is above 0 on average
    assert math.isfinite(float(later.advantage.sum()))
