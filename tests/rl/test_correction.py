import math

import pytest
import torch

from assay.pipelines.errors import AssayWarning, RecipeError
from assay.rl.aggregation import Denominator, combine_metrics
from assay.rl.correction import correct
from assay.rl.recipe import TrainRecipe

MASK = torch.tensor([[True, True, True], [True, True, False]])
SAMPLER = torch.zeros(2, 3)
TRAINER = torch.tensor([[math.log(3), 0, 0], [math.log(0.5), 0, 99.0]])


def test_token_level_by_hand():
    got = correct(TRAINER, SAMPLER, MASK)
    assert got.weights[MASK].tolist() == pytest.approx([2, 1, 1, 0.5, 1])
    m = {name: value.item() for name, value in got.metrics.items()}
    assert m["correction_weight_mean_before"] == pytest.approx(6.5 / 5)
    assert m["correction_weight_mean_after"] == pytest.approx(5.5 / 5)
    assert m["correction_weight_before_max"] == pytest.approx(3)
    assert m["correction_weight_after_max"] == pytest.approx(2)
    assert m["correction_kept_share"] == 1
    assert m["mismatch_log_ratio_max"] == pytest.approx(math.log(3))
    assert m["mismatch_kl"] == pytest.approx((3 - 1 - math.log(3) + 0.5 - 1 + math.log(2)) / 5)


def test_token_level_masking():
    got = correct(TRAINER, SAMPLER, MASK, mode="mask")
    assert got.weights[MASK].tolist() == pytest.approx([0, 1, 1, 0.5, 1])
    assert got.metrics["correction_kept_share"].item() == pytest.approx(0.8)
    assert got.metrics["correction_kept_sequences"].item() == 1


def test_sequence_ratio_is_the_exponential_of_the_sum():
    trainer = torch.full((2, 3), math.log(1.2))
    got = correct(trainer, SAMPLER, MASK, level="sequence")
    assert got.weights[:, 0].tolist() == pytest.approx([1.2**3, 1.2**2])
    masked = correct(trainer, SAMPLER, MASK, level="sequence", mode="mask", cap=1.5)
    assert masked.weights[:, 0].tolist() == pytest.approx([0, 1.44])
    assert masked.metrics["correction_kept_sequences"].item() == 0.5
    assert masked.metrics["correction_kept_share"].item() == pytest.approx(2 / 5)


def test_long_sequences_with_tiny_noise_report_what_is_kept():
    """8k tokens, noise of 0.03 nats a token: the sum has a spread of 2.7 nats, so masking loses about 40 %."""
    torch.manual_seed(0)
    noise, mask = 0.03 * torch.randn(200, 8192), torch.ones(200, 8192, dtype=torch.bool)
    sequence = correct(noise, torch.zeros_like(noise), mask, level="sequence", mode="mask").metrics
    assert sequence["correction_kept_sequences"].item() == pytest.approx(0.6, abs=0.08)
    assert sequence["correction_weight_before_max"] > 100
    assert sequence["correction_weight_after_max"] <= 2
    token = correct(noise, torch.zeros_like(noise), mask, mode="mask").metrics
    assert token["correction_kept_share"].item() == 1


def test_an_empty_batch_is_never_silent():
    with pytest.warns(AssayWarning, match="nothing is left"):
        got = correct(SAMPLER + 2, SAMPLER, MASK, level="sequence", mode="mask")
    assert (got.weights == 0).all()
    nothing = correct(SAMPLER + 2, SAMPLER, torch.zeros_like(MASK), mode="mask")  # nothing was there: no warning
    assert nothing.metrics["correction_kept_share"].item() == 0


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_micro_batch_metrics_add_up(level):
    torch.manual_seed(0)
    trainer, mask = torch.randn(6, 5), torch.arange(5)[None] < torch.tensor([5, 1, 3, 0, 2, 4])[:, None]
    whole = correct(trainer, torch.zeros(6, 5), mask, level=level).metrics
    total = Denominator.count(mask)
    parts = [correct(trainer[i : i + 2], torch.zeros(2, 5), mask[i : i + 2], level=level, denominator=total).metrics
             for i in (0, 2, 4)]  # fmt: skip
    for name, value in combine_metrics(parts).items():
        assert value.item() == pytest.approx(whole[name].item(), rel=1e-5), name


def test_hostile_log_probabilities_stay_finite():
    trainer = torch.tensor([[-500.0, 500.0, 0.0], [0.0, 0.0, math.nan]])
    for level in ("token", "sequence"):
        assert correct(trainer, SAMPLER, MASK, level=level).weights.isfinite().all()


def test_a_cut_vocabulary_is_refused():
    """The trainer's log-probabilities are over the whole vocabulary: the sampler's distribution is not to be cut."""
    for name, value in (("top_p", 0.95), ("top_k", 20)):
        with pytest.raises(ValueError, match=rf"sampling\.{name}\s+Extra inputs"):
            TrainRecipe.model_validate({"name": "t", "model": "m", "store": "s", "sampling": {name: value}})


def test_unknown_settings_are_refused():
    for wrong in ({"level": "batch"}, {"mode": "clip"}, {"cap": 1.0}):
        with pytest.raises(RecipeError, match="a cap above 1"):
            correct(TRAINER, SAMPLER, MASK, **wrong)
