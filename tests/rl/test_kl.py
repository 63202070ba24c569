import math

import pytest
import torch

from assay.pipelines.errors import RecipeError
from assay.rl.kl import AdaptiveKL, kl_estimate, kl_in_reward, token_rewards

POLICY = torch.tensor([0.5, 0.3, 0.2])
REFERENCE = torch.tensor([0.2, 0.2, 0.6])


def expectation(kind, logits, old=None):
    """E over tokens drawn from `old` (default the policy itself) of the estimate, and its gradient to the logits."""
    logits = logits.clone().requires_grad_()
    logp = logits.log_softmax(-1)
    sampled = logp.detach() if old is None else old.log()
    value = (sampled.exp() * kl_estimate(kind, logp, REFERENCE.log(), sampled)).sum()
    value.backward()
    return value.item(), logits.grad


def true_kl(p, q, logits):
    logits = logits.clone().requires_grad_()
    logp = logits.log_softmax(-1)
    pair = {"pi": logp, "ref": REFERENCE.log()}
    value = (pair[p].exp() * (pair[p] - pair[q])).sum()
    value.backward()
    return value.item(), logits.grad


def test_values_by_hand():
    logp, ref = torch.tensor(-1.0), torch.tensor(-0.5)  # d = 0.5
    assert kl_estimate("k1", logp, ref).item() == -0.5
    assert kl_estimate("k2", logp, ref).item() == 0.125
    assert kl_estimate("k3", logp, ref).item() == pytest.approx(math.exp(0.5) - 1.5)
    got = kl_estimate("rho_k3", logp, ref, torch.tensor(-1.2)).item()
    assert got == pytest.approx(math.exp(0.2) * (math.exp(0.5) - 1.5))


def test_k1_and_k3_are_unbiased_and_their_gradients_are_what_the_module_says():
    logits = POLICY.log()
    forward, grad = true_kl("pi", "ref", logits)
    _, reverse_grad = true_kl("ref", "pi", logits)
    k1, g1 = expectation("k1", logits)
    _, g2 = expectation("k2", logits)
    k3, g3 = expectation("k3", logits)
    assert k1 == pytest.approx(forward, rel=1e-5)
    assert k3 == pytest.approx(forward, rel=1e-5)
    assert g1.abs().max() < 1e-6
    assert torch.allclose(g2, grad, atol=1e-6)
    assert torch.allclose(g3, reverse_grad, atol=1e-6)


def test_rho_k3_is_unbiased_in_value_and_gradient_off_policy():
    logits, old = POLICY.log(), torch.tensor([0.4, 0.4, 0.2])
    forward, grad = true_kl("pi", "ref", logits)
    value, got = expectation("rho_k3", logits, old)
    assert value == pytest.approx(forward, rel=1e-5)
    assert torch.allclose(got, grad, atol=1e-6)


@pytest.mark.parametrize("kind", ["k2", "k3", "rho_k3"])
def test_a_step_reduces_a_large_kl(kind):
    logits = torch.tensor([8.0, 0.0, -8.0])
    before, _ = true_kl("pi", "ref", logits)
    _, grad = expectation(kind, logits)
    after, _ = true_kl("pi", "ref", logits - 0.1 * grad / grad.norm())
    assert after < before


def test_k3_pulls_back_from_any_distance():
    for d in (5.0, 30.0, 500.0):
        logp = torch.tensor(-d, requires_grad=True)
        value = kl_estimate("k3", logp, torch.tensor(0.0))
        value.backward()
        assert value.isfinite()
        assert -5e8 <= logp.grad.item() < -100  # descending the loss raises log pi


def test_zero_at_the_reference():
    logp = torch.randn(5)
    for kind in ("k1", "k2", "k3"):
        assert (kl_estimate(kind, logp, logp) == 0).all()


def test_in_the_reward():
    old, ref = torch.tensor([[-1.0, -2.0, -9.0]]), torch.tensor([[-1.5, -2.25, -1.0]])
    mask = torch.tensor([[True, True, False]])
    assert kl_in_reward(torch.tensor([1.0]), old, ref, mask, 0.1).item() == pytest.approx(1 - 0.1 * 0.75)
    got = token_rewards(torch.tensor([1.0]), old, ref, mask, 0.1)
    assert got[0].tolist() == pytest.approx([-0.05, 1 - 0.025, 0])
    assert kl_in_reward(torch.tensor([math.nan]), old, ref, mask, 0.1).isnan().all()
    assert token_rewards(torch.tensor([math.nan]), old, ref, mask, 0.1).tolist() == [[0, 0, 0]]


def test_adaptive_controller():
    control = AdaptiveKL(beta=0.1, target=0.1, horizon=1000)
    assert control.update(0.11, 100) == pytest.approx(0.1 * 1.01)
    assert control.update(9.0, 100) == pytest.approx(0.1 * 1.01 * 1.02)  # the error is clipped at 0.2
    assert control.update(0.0, 100) == pytest.approx(0.1 * 1.01 * 1.02 * 0.98)


def test_unknown_estimates_are_refused():
    with pytest.raises(RecipeError, match="k1, k2, k3, rho_k3"):
        kl_estimate("k4", torch.zeros(1), torch.zeros(1))
    with pytest.raises(RecipeError, match="needs logp_old"):
        kl_estimate("rho_k3", torch.zeros(1), torch.zeros(1))
