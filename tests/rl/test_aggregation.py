import pytest
import torch

from assay.pipelines.errors import RecipeError
from assay.rl.aggregation import AGGREGATIONS, Denominator, aggregate, combine_metrics, sequence_mean


def lengths(*sizes, width=7):
    return torch.arange(width)[None] < torch.tensor(sizes)[:, None]


def gradient(how, values, mask, **kw):
    values = values.clone().requires_grad_()
    result = aggregate(values, mask, how, **kw)
    result.backward()
    return result.item(), values.grad


def test_worked_values_of_the_three_aggregations():
    """Ratio 1, advantage 2, masks of 4 and 7 tokens, maximum length 7."""
    mask, two = lengths(4, 7), torch.full((2, 7), 2.0)
    _, grad = gradient("sequence", two, mask)
    assert sequence_mean(two, mask).tolist() == [2, 2]
    assert (2 * grad[0, :4]).tolist() == pytest.approx([0.25] * 4)
    assert (2 * grad[1]).tolist() == pytest.approx([1 / 7] * 7)
    for row, want in ((0, 8 / 7), (1, 2.0)):
        assert aggregate(two[[row]], mask[[row]], "constant", max_length=7).item() == pytest.approx(want)
    _, grad = gradient("constant", two, mask, max_length=7)
    assert (2 * grad)[mask].tolist() == pytest.approx([1 / 7] * 11)
    value, grad = gradient("token", torch.ones(2, 7), mask)
    assert value == 1
    assert grad[mask].tolist() == pytest.approx([1 / 11] * 11)
    assert (grad[~mask] == 0).all()


def test_worked_sequence_means():
    losses = torch.tensor([[1.0], [1], [1], [1], [10]])
    assert aggregate(losses, torch.ones(5, 1, dtype=torch.bool), "sequence").item() == pytest.approx(2.8)
    losses = torch.tensor([[1.0]] * 9 + [[10]])
    assert aggregate(losses, torch.ones(10, 1, dtype=torch.bool), "sequence").item() == pytest.approx(1.9)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_shares_of_micro_batches_add_up_whatever_their_size_and_padding(how):
    torch.manual_seed(1)
    mask, values = lengths(4, 7, 1, 0, 3, 7, 2, 5), torch.randn(8, 7)
    whole, grad = gradient(how, values, mask, max_length=9)
    denominator = Denominator.count(mask)
    for size in (1, 2, 3, 8):
        parts = torch.zeros_like(values)
        total = 0.0
        for start in range(0, 8, size):
            rows = slice(start, start + size)
            width = max(1, int(mask[rows].sum(1).max()))  # each micro-batch padded to its own longest
            value, part = gradient(
                how, values[rows, :width], mask[rows, :width], denominator=denominator, max_length=9
            )
            total, parts[rows, :width] = total + value, part
        assert total == pytest.approx(whole, abs=1e-6)
        assert (parts - grad).abs().max() < 1e-5 * grad.abs().max()


def test_denominator_over_ranks_and_micro_batches():
    one, two = lengths(4, 0), lengths(2, 3, width=5)
    both = Denominator.count(one) + Denominator.count(two)
    assert (int(both.tokens), int(both.sequences)) == (9, 3)
    assert int(Denominator.count(one, two).tokens) == 9
    plain = aggregate(torch.ones(2, 7), one, "token", Denominator(8, 2))
    assert plain.item() == 0.5


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_a_masked_sequence_counts_nowhere_and_an_empty_batch_is_zero(how):
    values = torch.randn(3, 7)
    with_masked = aggregate(values, lengths(4, 0, 7), how, max_length=7)
    assert with_masked.item() == pytest.approx(aggregate(values[[0, 2]], lengths(4, 7), how, max_length=7).item())
    value, grad = gradient(how, torch.full((2, 7), float("nan")), lengths(0, 0), max_length=7)
    assert value == 0
    assert (grad == 0).all()


def test_duplicating_the_batch_changes_nothing_under_constant():
    values, mask = torch.randn(3, 7), lengths(2, 7, 4)
    once = aggregate(values, mask, "constant", max_length=7)
    twice = aggregate(values.repeat(2, 1), mask.repeat(2, 1), "constant", max_length=7)
    assert twice.item() == pytest.approx(once.item(), rel=1e-6)


def test_constant_refuses_to_guess_its_length():
    with pytest.raises(RecipeError, match="pass the length limit"):
        aggregate(torch.ones(1, 7), lengths(7), "constant")
    with pytest.raises(RecipeError, match="'mean' is unknown"):
        aggregate(torch.ones(1, 7), lengths(7), "mean")


def test_metrics_add_up_except_maxima():
    parts = [{"a": torch.tensor(a), "b_max": torch.tensor(b)} for a, b in ((0.25, 3.0), (0.5, 1.0))]
    assert {k: v.item() for k, v in combine_metrics(parts).items()} == {"a": 0.75, "b_max": 3.0}
