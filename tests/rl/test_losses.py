import ast
import math
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from assay.pipelines.errors import AssayWarning, RecipeError
from assay.rl.advantages import advantages, live_groups
from assay.rl.aggregation import AGGREGATIONS, Denominator, combine_metrics
from assay.rl.losses import LOSSES, policy_loss, value_loss

TOKEN_KINDS = [kind for kind, rule in LOSSES.items() if rule.level == "token"]
LIMIT = {"max_length": 9}


def batch(seed=0, n=8, t=7, spread=0.3):
    torch.manual_seed(seed)
    old = -torch.rand(n, t) * 2
    new = (old + spread * torch.randn(n, t)).requires_grad_()
    mask = torch.arange(t)[None] < torch.randint(1, t + 1, (n,))[:, None]
    return new, old, torch.randn(n), mask


def gradient(kind, new, *rest, **kw):
    new = new.detach().clone().requires_grad_()
    loss = policy_loss(kind, new, *rest, **(LIMIT | kw))
    loss.value.backward()
    return loss, new.grad


def test_on_policy_step_is_reinforce_by_hand():
    logp = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    policy_loss("grpo", logp, logp.detach(), torch.tensor([0.5]), mask).value.backward()
    assert logp.grad.tolist() == [[-0.5, 0.0]]  # nothing leaks through the mask


@pytest.mark.parametrize("kind", sorted(LOSSES))
@pytest.mark.parametrize("how", AGGREGATIONS)
def test_on_policy_every_kind_is_reinforce(kind, how):
    """Check 5 too: first inner step, ratio 1 exactly, nothing clipped, no KL. Sequence sums weigh by length."""
    new, _, adv, mask = batch()
    loss, grad = gradient(kind, new, new.detach(), adv, mask, aggregation=how)
    _, want = gradient("reinforce", new, new.detach(), adv, mask, aggregation=how)
    if LOSSES[kind].level == "sum" and how == "sequence":
        want = want * mask.sum(1, keepdim=True)
    assert torch.allclose(grad, want, atol=1e-7)
    m = loss.metrics
    assert m["ratio_mean"].item() == pytest.approx(1)
    assert [m[k].item() for k in ("ratio_error_max", "clip_share_low", "clip_share_high", "approx_kl")] == [0] * 4


@pytest.mark.parametrize("kind", sorted(LOSSES))
@pytest.mark.parametrize("how", AGGREGATIONS)
def test_micro_batches_add_up_to_the_full_batch(kind, how):
    """Micro-batches of 1, 2 and 8, each padded to its own longest, over one rank or two, with correction and KL."""
    new, old, adv, mask = batch(2)
    mask[3] = False
    ref = old + 0.2 * torch.randn_like(old)
    weights = torch.rand(8, 1)
    kw = {"aggregation": how, "beta": 0.3}
    whole, grad = gradient(kind, new, old, adv, mask, weights=weights, logp_ref=ref, **kw)
    denominator = Denominator.count(mask[:4]) + Denominator.count(mask[4:])
    for size in (1, 2, 8):
        parts, losses = torch.zeros_like(grad), []
        for start in range(0, 8, size):
            r = slice(start, start + size)
            w = max(1, int(mask[r].sum(1).max()))
            loss, part = gradient(kind, new[r, :w], old[r, :w], adv[r], mask[r, :w], weights=weights[r],
                                  logp_ref=ref[r, :w], denominator=denominator, **kw)  # fmt: skip
            parts[r, :w] = part
            losses.append(loss)
        assert sum(loss.value.item() for loss in losses) == pytest.approx(whole.value.item(), abs=1e-5)
        assert (parts - grad).abs().max() <= 1e-5 * grad.abs().max()
        together = combine_metrics([loss.metrics for loss in losses])
        for name, value in whole.metrics.items():
            assert together[name].item() == pytest.approx(value.item(), abs=1e-5), name


def test_clipping_by_hand():
    """A = 1: ratio 1.5 is cut above; A = -1: 0.5 is cut below, 1.5 is not. Clipped terms carry no gradient."""
    old = torch.zeros(1, 4)
    new = torch.tensor([[1.5, 1.1, 0.5, 1.5]]).log()
    adv = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    loss, grad = gradient("grpo", new, old, adv, torch.ones(1, 4, dtype=torch.bool))
    assert loss.value.item() == pytest.approx(-(1.2 + 1.1 - 0.8 - 1.5) / 4, abs=1e-6)
    assert grad[0].tolist() == pytest.approx([0, -1.1 / 4, 0, 1.5 / 4])
    assert loss.metrics["clip_share_high"].item() == 0.25
    assert loss.metrics["clip_share_low"].item() == 0.25
    assert loss.metrics["ratio_error_max"].item() == pytest.approx(0.5)
    assert loss.metrics["ratio_mean"].item() == pytest.approx(4.6 / 4)


@pytest.mark.parametrize(("kind", "p", "reach"), [("grpo", 0.01, 0.012), ("grpo", 0.9, 1.08), ("dapo", 0.01, 0.0128)])
def test_how_far_a_token_may_rise(kind, p, reach):
    """The worked clip values: beyond `reach` the gradient is gone (for p = 0.9 a probability of 1 comes first)."""
    one, mask = torch.ones(1), torch.ones(1, 1, dtype=torch.bool)
    old = torch.tensor([[math.log(p)]])
    for factor, acts in ((0.999, True), (1.001, False)):
        _, grad = gradient(kind, torch.tensor([[math.log(reach * factor)]]), old, one, mask)
        assert (grad.item() != 0) == acts


def test_dual_clip_bounds_a_runaway_ratio():
    old, new = torch.zeros(1, 2), torch.tensor([[8.0, 2.0]]).log()
    mask, adv = torch.ones(1, 2, dtype=torch.bool), torch.tensor([-1.0])
    loss, grad = gradient("ppo", new, old, adv, mask, dual_clip=3.0)
    assert loss.value.item() == pytest.approx((3 + 2) / 2)
    assert grad[0].tolist() == pytest.approx([0, 1.0])
    assert gradient("ppo", new, old, adv, mask)[0].value.item() == pytest.approx(5)


def test_gspo_ratio_is_the_geometric_mean_and_equals_grpo_when_tokens_move_alike():
    _, old, adv, mask = batch(3)
    shift = torch.tensor([0.2, -0.2, 0.01, -0.01] * 2)[:, None]
    adv = adv.abs() * torch.tensor([1.0, -1, 1, 1, -1, 1, -1, -1])
    wide = {"clip_low": 0.05, "clip_high": 0.05}
    a, ga = gradient("gspo", old + shift, old, adv, mask, **wide)
    b, gb = gradient("grpo", old + shift, old, adv, mask, **wide)
    assert a.value.item() == pytest.approx(b.value.item(), rel=1e-5)
    assert torch.allclose(ga, gb, atol=1e-6)
    assert a.metrics["clip_share_high"].item() == a.metrics["clip_share_low"].item() == 1 / 8
    new = torch.tensor([[0.3, -0.1, 5.0]])
    loss, _ = gradient("gspo", new, torch.zeros(1, 3), torch.ones(1), torch.tensor([[True, True, False]]))
    assert loss.metrics["ratio_mean"].item() == pytest.approx(math.exp(0.1))


def test_cispo_keeps_the_gradient_of_a_capped_token():
    new, old = torch.tensor([[math.log(20.0), 0.0]]), torch.zeros(1, 2)
    loss, grad = gradient("cispo", new, old, torch.tensor([2.0]), torch.ones(1, 2, dtype=torch.bool))
    assert grad[0].tolist() == pytest.approx([-5 * 2 / 2, -1 * 2 / 2])  # the cap is 1 + 4
    assert loss.metrics["clip_share_high"].item() == 0.5


def test_topr_corrects_only_negative_completions():
    """exp of the sum: two tokens a nat below their sampler give exp(-2); above it the weight stops at 1."""
    old, new = torch.zeros(4, 2), torch.tensor([[-1.0, -1.0], [-1.0, -1.0], [0.5, 0.5], [0.5, 0.5]])
    adv, mask = torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.ones(4, 2, dtype=torch.bool)
    loss, grad = gradient("topr", new, old, adv, mask)
    assert grad[:, 0].tolist() == pytest.approx([-0.25, 0.25 * math.exp(-2), -0.25, 0.25])
    assert loss.value.item() == pytest.approx((2 - 2 * math.exp(-2) - 1 + 1) / 4)


def test_kimi_gradient_identity():
    """-2 tau x the gradient of the objective = gradient of mean (r - tau log Z - tau (S - S_old))^2, r-bar = log Z."""
    tau, r = 0.3, torch.tensor([1.0, 0.0, 0.0, 1.0])
    new, old, _, mask = batch(4, n=4)
    x = new.detach().clone().requires_grad_()
    change = torch.where(mask, x - old, 0).sum(1)
    (r - r.mean() - tau * change).square().mean().backward()
    _, grad = gradient("kimi", new, old, advantages(r, 4, "dr_grpo"), mask, tau=tau)
    assert torch.allclose(x.grad, 2 * tau * grad, atol=1e-6)


def test_kimi_by_hand():
    new, old = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.5]])
    loss, grad = gradient("kimi", new, old, torch.tensor([0.5]), torch.ones(1, 2, dtype=torch.bool), tau=0.1)
    assert loss.value.item() == pytest.approx(-0.5 * -3 + 0.05 * 1)
    assert grad[0].tolist() == pytest.approx([-0.5 + 0.1, -0.5 + 0.1])


@pytest.mark.parametrize("kind", sorted(LOSSES))
def test_truncated_completions_leave_numerator_and_denominator(kind):
    new, old, adv, mask = batch(5, n=4)
    cut = mask.clone()
    cut[1] = False
    adv[1] = math.nan  # nothing of the masked row may be read
    old[1] = -math.inf
    loss, grad = gradient(kind, new, old, adv, cut)
    keep = [0, 2, 3]
    want, want_grad = gradient(kind, new[keep], old[keep], adv[keep], mask[keep])
    assert loss.value.item() == pytest.approx(want.value.item(), rel=1e-5)
    assert torch.allclose(grad[keep], want_grad)
    assert (grad[1] == 0).all()
    empty, grad = gradient(kind, new, old, adv, torch.zeros_like(mask), logp_ref=old, beta=0.1)
    assert empty.value.item() == 0
    assert (grad == 0).all()
    assert all(value.isfinite() for value in empty.metrics.values())


def test_extreme_ratios_stay_finite():
    new, old = torch.tensor([[-0.1, -90.0]]), torch.tensor([[-95.0, -0.1]])
    for kind in LOSSES:
        for sign in (1.0, -1.0):
            loss, grad = gradient(kind, new, old, torch.tensor([sign]), torch.ones(1, 2, dtype=torch.bool))
            assert loss.value.isfinite(), kind
            assert grad.isfinite().all(), kind


def test_pad_content_and_the_first_end_token():
    """pad = eos: the mask alone says what is trained, whatever stands in the pads."""
    new, old, adv, mask = batch(6)
    junk = torch.where(mask, old, -math.inf)
    for kind in LOSSES:
        _, a = gradient(kind, new, old, adv, mask)
        _, b = gradient(kind, torch.where(mask, new, math.nan), junk, adv, mask)
        assert torch.equal(a, b)


def test_kl_pulls_only_where_asked():
    """A constant group has no policy gradient; by default its KL does not pull, with kl_rows it does."""
    new, old, _, mask = batch(7)
    new, ref = old.clone(), old + 0.3
    adv = advantages(torch.tensor([1.0, 0, 0, 1, 0.5, 0.5, 0.5, 0.5]), 4)
    live = live_groups(torch.tensor([1.0, 0, 0, 1, 0.5, 0.5, 0.5, 0.5]), 4)
    kw = {"logp_ref": ref, "beta": 0.1}
    a, default = gradient("grpo", new, old, adv, mask, **kw)
    _, by_group = gradient("grpo", new, old, adv, mask, kl_rows=live, **kw)
    _, everywhere = gradient("grpo", new, old, adv, mask, kl_rows=torch.ones(8), **kw)
    assert (default[4:] == 0).all()
    assert torch.equal(default, by_group)
    assert (everywhere[4:][mask[4:]] < 0).all()  # below the reference: descending raises log pi
    assert a.metrics["kl"].item() == pytest.approx(math.exp(0.3) - 1.3, rel=1e-4)  # measured over all rows


def test_kl_is_zero_at_the_reference():
    new, _, adv, mask = batch(8)
    loss, grad = gradient("grpo", new, new.detach(), adv, mask, logp_ref=new.detach(), beta=1.0)
    _, plain = gradient("grpo", new, new.detach(), adv, mask)
    assert loss.metrics["kl"].item() == 0
    assert torch.allclose(grad, plain, atol=1e-7)


def test_correction_weights_scale_the_policy_term_and_not_the_denominator():
    new, old, adv, mask = batch(9)
    weights = torch.ones(8, 7)
    weights[0] = 0
    loss, grad = gradient("dapo", new, old, adv, mask, weights=weights)
    _, plain = gradient("dapo", new, old, adv, mask)
    assert (grad[0] == 0).all()
    assert torch.allclose(grad[1:], plain[1:])
    assert loss.metrics["kept_share"].item() == pytest.approx(1 - mask[0].sum().item() / mask.sum().item())


def test_advantage_per_token_equals_per_sequence_when_constant():
    new, old, adv, mask = batch(10)
    for kind in TOKEN_KINDS:
        _, a = gradient(kind, new, old, adv, mask)
        _, b = gradient(kind, new, old, adv[:, None].expand(8, 7), mask)
        assert torch.allclose(a, b)


def test_duplicated_batch_leaves_dr_grpo_unchanged():
    new, old, adv, mask = batch(11)
    _, once = gradient("dr_grpo", new, old, adv, mask)
    two = gradient("dr_grpo", new.repeat(2, 1), old.repeat(2, 1), adv.repeat(2), mask.repeat(2, 1))[1]
    assert torch.allclose(two[:8] + two[8:], once, atol=1e-7)


def test_settings_that_cannot_work_are_refused():
    new, old, adv, mask = batch()
    with pytest.raises(RecipeError, match="caps every weight"):
        policy_loss("cispo", new, old, adv, mask, clip_high=0.0)
    with pytest.raises(RecipeError, match="leaves out a ratio of 1"):
        policy_loss("grpo", new, old, adv, mask, clip_low=-0.2)
    with pytest.raises(RecipeError, match="'gpro' is unknown"):
        policy_loss("gpro", new, old, adv, mask)
    with pytest.raises(RecipeError, match="pass the length limit"):
        policy_loss("dr_grpo", new, old, adv, mask)
    with pytest.raises(ValueError, match="must be equal"):
        policy_loss("grpo", new, old[:, :3], adv, mask)
    with pytest.raises(ValueError, match=r"advantage has shape \(4, 1\); it must be \(8, 1\)"):
        policy_loss("grpo", new, old, adv[:4], mask)
    with pytest.raises(ValueError, match=r"gspo: weights has shape \(8, 7\); it must be \(8, 1\)"):
        policy_loss("gspo", new, old, adv, mask, weights=torch.ones(8, 7))


def test_gspo_warns_of_a_clip_that_never_acts():
    new, old, adv, mask = batch()
    with pytest.warns(AssayWarning, match="never acts"):
        policy_loss("gspo", new, old, adv, mask, clip_low=0.2, clip_high=0.2)


def test_metrics_are_detached_tensors():
    new, old, adv, mask = batch()
    for value in policy_loss("grpo", new, old, adv, mask, logp_ref=old, beta=0.1).metrics.values():
        assert isinstance(value, torch.Tensor)
        assert value.ndim == 0
        assert not value.requires_grad


def test_value_loss_by_hand():
    """V_old 0, R 1: V 0.5 is held at 0.2, worse than itself, so no gradient; V -0.5 is not helped by clipping."""
    values = torch.tensor([[0.5, -0.5, 7.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    loss = value_loss(values, torch.zeros(1, 3), torch.ones(1, 3), mask)
    loss.value.backward()
    assert loss.value.item() == pytest.approx((0.64 + 2.25) / 4)
    assert values.grad[0].tolist() == pytest.approx([0, -0.75, 0])
    assert loss.metrics["value_clip_share"].item() == 0.5


def test_the_acceptance_formulas_on_other_seeds():
    script = Path(__file__).parents[2].parent / "shared" / "checks" / "losses.py"
    if not script.exists():
        pytest.skip("the shared checks are not beside this checkout")
    for seed in (1, 2, 3):
        source = script.read_text().replace("manual_seed(0)", f"manual_seed({seed})")
        with pytest.raises(SystemExit) as end:
            exec(compile(source, str(script), "exec"), {})
        assert end.value.code is False


def trl_compute_loss():
    """TRL's own `_compute_loss`, compiled from its installed source: importing all of TRL takes half a minute."""
    spec = find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("TRL is not installed")
    tree = ast.parse((Path(spec.origin).parent / "trainer" / "grpo_trainer.py").read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_compute_loss"]
    names = {"torch": torch, "nanmin": torch.min, "nanmax": torch.max}
    exec(compile(ast.Module(found, []), spec.origin, "exec"), names)
    return names["_compute_loss"]


@pytest.mark.parametrize(("ours", "theirs", "level"), [
    ("grpo", "grpo", "token"), ("dr_grpo", "dr_grpo", "token"), ("dapo", "dapo", "token"), ("gspo", "grpo", "sequence"),
    ("cispo", "cispo", "token"),
])  # fmt: skip
def test_agreement_with_trl(ours, theirs, level):
    """Its network replaced by the log-probabilities, in evaluation mode (no accumulation factor).

    For CISPO its `epsilon_high` is the cap itself, and below there is none.
    """
    new, old, adv, mask = batch(12)
    ref, (low, high) = old + 0.1, {"gspo": (3e-4, 4e-4), "cispo": (1.0, 0.2)}.get(ours, (0.2, 0.28))
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (x, torch.zeros_like(x), None),
        loss_type=theirs, importance_sampling_level=level, epsilon_low=low,
        epsilon_high=high + (ours == "cispo"), beta=0.05,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        max_completion_length=9, top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False,
        aux_loss_enabled=False, _entropy_bonus_enabled=False, model=SimpleNamespace(training=False),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda v: v, gather_for_metrics=lambda v: v,
                                    reduce=lambda v, reduction: v),
        _metrics={"eval": defaultdict(list)}, current_gradient_accumulation_steps=1,
    )  # fmt: skip
    ids = torch.zeros(8, 7, dtype=torch.long)
    x = new.detach().clone().requires_grad_()
    inputs = {"prompt_ids": ids, "prompt_mask": ids + 1, "completion_ids": ids, "completion_mask": mask.long(),
              "advantages": adv, "old_per_token_logps": old, "ref_per_token_logps": ref,
              "num_items_in_batch": mask.sum()}  # fmt: skip
    value = trl_compute_loss()(trainer, None, inputs)
    value.backward()
    loss, grad = gradient(ours, new, old, adv, mask, clip_low=low, clip_high=high, logp_ref=ref, beta=0.05)
    assert loss.value.item() == pytest.approx(value.item(), abs=1e-6)
    assert torch.allclose(grad, x.grad, atol=1e-6)
