import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.pipelines.errors import AssayWarning, RecipeError
from assay.rl.advantages import ADVANTAGES, advantages, gae, live_groups, whiten

NAN = math.nan
GROUPED = [kind for kind in ADVANTAGES if not kind.startswith("reinforce")]
rewards_of_four = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, -1.0, NAN]), min_size=8, max_size=8)


def tensor(*values):
    return torch.tensor(values)


def test_hand_computed_groups():
    r = tensor(1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
    assert advantages(r, 4, "dr_grpo").tolist() == [0.5, -0.5, -0.5, 0.5, -0.25, -0.25, -0.25, 0.75]
    assert advantages(r, 4, "rloo").tolist() == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3, *[-1 / 3] * 3, 1])
    std = math.sqrt(1 / 3)
    assert advantages(r[:4], 4, "grpo").tolist() == pytest.approx([0.5 / (std + 1e-4) * s for s in (1, -1, -1, 1)])
    assert advantages(r[:4], 4, "grpo", ddof=0)[0].item() == pytest.approx(0.5 / (0.5 + 1e-4))
    assert advantages(r[4:], 4, "max").tolist() == pytest.approx([-1 / 3, -1 / 3, -1 / 3, 1])


def test_log_z_is_kimis_exact_normaliser():
    got = advantages(tensor(1.0, 0.0), 2, "log_z", tau=0.5)
    log_z = 0.5 * math.log((math.exp(2) + 1) / 2)
    assert got.tolist() == pytest.approx([1 - log_z, -log_z])
    wide = advantages(tensor(1.0, 0.0), 2, "log_z", tau=1e4)
    assert wide.tolist() == pytest.approx([0.5, -0.5], abs=1e-3)  # tau to infinity: the mean reward


def test_batch_wide_kinds_subtract_the_batch_mean():
    r = tensor(1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    assert advantages(r, 2, "reinforce").tolist() == pytest.approx([2 / 3, 2 / 3, *[-1 / 3] * 4])
    assert advantages(r, 2, "reinforce", baseline=0.25).tolist() == [0.75, 0.75, *[-0.25] * 4]
    white = advantages(r, 1, "reinforce++")
    assert white.mean().item() == pytest.approx(0, abs=1e-6)
    assert white.std().item() == pytest.approx(1, abs=1e-3)


def test_std_weighs_hard_groups_as_stated():
    """Dividing by sqrt(p(1-p)) weighs p = 0.02 about 3.6 times p = 0.5."""
    def gain(right):
        r = torch.zeros(100)
        r[:right] = 1
        a, c = advantages(r, 100, "grpo", ddof=0, eps=0), advantages(r, 100, "dr_grpo")
        return (a[0] / c[0]).item()

    assert gain(2) / gain(50) == pytest.approx(3.57, abs=0.01)


@pytest.mark.parametrize("kind", GROUPED)
def test_nan_leaves_the_baseline_and_gets_zero(kind):
    got = advantages(tensor(1.0, NAN, 0.0, 0.0), 4, kind)
    alone = advantages(tensor(1.0, 0.0, 0.0), 3, kind)
    assert got[1] == 0
    assert torch.allclose(got[[0, 2, 3]], alone)


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_no_verdict_and_constant_groups_are_exactly_zero(kind):
    for value in (NAN, 0.0, 0.1, 0.5, 1.0):
        assert advantages(torch.full((8,), value), 8, kind).tolist() == [0.0] * 8
    if kind in GROUPED:
        assert advantages(tensor(NAN, 1.0, 0.1, 0.1), 2, kind).tolist() == [0.0] * 4


def test_group_of_one_is_zero_with_a_warning():
    with pytest.warns(AssayWarning, match="groups of one"):
        assert advantages(tensor(1.0, 0.0), 1, "grpo").tolist() == [0, 0]


@given(rewards_of_four)
def test_rloo_is_dr_grpo_times_g_over_g_minus_one(values):
    for four in (torch.tensor(values[:4]), torch.tensor(values[4:])):
        count = int((~four.isnan()).sum())
        factor = count / (count - 1) if count > 1 else 0
        assert torch.allclose(advantages(four, 4, "rloo"), factor * advantages(four, 4, "dr_grpo"), atol=1e-6)


@given(rewards_of_four)
def test_advantages_are_finite_bounded_and_sum_to_zero(values):
    for kind in ("grpo", "dr_grpo", "rloo", "max"):
        got = advantages(torch.tensor(values), 4, kind).view(2, 4)
        assert got.isfinite().all()
        assert got.sum(1).abs().max() < 1e-3
        assert got.abs().max() <= 3 * 2  # a standardised group of G: at most (G-1)/sqrt(G); here rewards span 2
    assert advantages(torch.tensor(values), 4, "grpo").abs().max() <= 3 / 2 + 1e-5


def test_one_differing_reward_stays_bounded():
    r = torch.full((64,), 0.3)
    r[0] = 0.3 + 1e-3
    assert advantages(r, 64, "grpo").abs().max() < 63 / 8
    assert advantages(r, 64, "rloo").abs().max() < 1.1e-3


def test_live_groups_are_those_whose_verdicts_differ():
    r = tensor(0.5, 0.5, 1.0, 0.0, NAN, 1.0, NAN, NAN)
    assert live_groups(r, 2).tolist() == [False, False, True, True, False, False, False, False]


def test_faults_are_refused():
    with pytest.raises(ValueError, match="not whole groups of 4"):
        advantages(torch.zeros(6), 4)
    with pytest.raises(RecipeError, match="no kind 'gpro'"):
        advantages(torch.zeros(4), 4, "gpro")
    with pytest.raises(RecipeError, match="ddof 2"):
        advantages(torch.zeros(4), 4, ddof=2)


def test_gae_by_hand():
    r, v = tensor(0.0, 0.0, 1.0)[None], tensor(0.5, 0.4, 0.3)[None]
    got, returns = gae(r, v, torch.ones(1, 3, dtype=torch.bool), gamma=0.9, lam=0.8)
    d2, d1, d0 = 1 - 0.3, 0.9 * 0.3 - 0.4, 0.9 * 0.4 - 0.5
    a1 = d1 + 0.72 * d2
    assert got[0].tolist() == pytest.approx([d0 + 0.72 * a1, a1, d2])
    assert torch.allclose(returns, got + v)


def test_gae_without_discount_is_reward_to_go_minus_value():
    torch.manual_seed(0)
    r, v = torch.randn(4, 9), torch.randn(4, 9)
    mask = torch.arange(9)[None] < torch.tensor([9, 1, 0, 5])[:, None]
    got, returns = gae(r, v, mask)
    to_go = torch.where(mask, r, 0).flip(1).cumsum(1).flip(1)
    assert torch.allclose(got, torch.where(mask, to_go - v, 0), atol=1e-5)
    assert torch.allclose(returns, torch.where(mask, to_go, 0), atol=1e-5)


def test_gae_steps_over_masked_positions():
    r, v = tensor(1.0, 9.0, 2.0)[None], tensor(0.1, 9.0, 0.2)[None]
    got, _ = gae(r, v, torch.tensor([[True, False, True]]), 0.9, 0.8)
    short, _ = gae(r[:, [0, 2]], v[:, [0, 2]], torch.ones(1, 2, dtype=torch.bool), 0.9, 0.8)
    assert got[0].tolist() == pytest.approx([short[0, 0].item(), 0, short[0, 1].item()])


def test_whiten_reads_only_the_mask():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    got = whiten(tensor(1.0, 2.0, 99.0, 3.0, 99.0, 99.0).view(2, 3), mask, eps=0)
    assert got.tolist() == [[-1, 0, 0], [1, 0, 0]]
