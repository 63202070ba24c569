import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.eval.intervals import (
    bootstrap_means,
    caution,
    clustered_mean,
    mcnemar_exact,
    minimum_detectable_difference,
    paired_difference,
    percentiles,
    share_mean,
    t_quantile,
    wilson,
)


def test_t_quantiles_are_the_tables():
    assert t_quantile(1) == pytest.approx(12.706, abs=1e-3)
    assert t_quantile(10, 0.99) == pytest.approx(3.169, abs=1e-3)
    assert t_quantile(math.inf) == pytest.approx(1.959964, abs=1e-6)


def test_clustered_error_by_hand():
    # clusters a: 1, 1; b: 0, 1; mean 3/4; sums of residuals 1/2 and -1/2; SE = sqrt(2/1 * 1/2) / 4
    found = clustered_mean([1, 1, 0, 1], ["a", "a", "b", "b"])
    assert found.standard_error == pytest.approx(0.25)
    assert found.high == pytest.approx(0.75 + 12.7062 * 0.25, abs=1e-3)
    assert found.items == 2


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_own_clusters_give_the_usual_standard_error(values):
    usual = np.std(values, ddof=1) / len(values) ** 0.5
    assert clustered_mean(values).standard_error == pytest.approx(usual, abs=1e-12)


def test_repeats_of_an_item_add_no_evidence():
    once, thrice = clustered_mean([0, 1, 1, 0]), clustered_mean([0, 1, 1, 0] * 3, list("abcd") * 3)
    assert thrice.standard_error == pytest.approx(once.standard_error)


def test_one_item_has_no_interval():
    found = clustered_mean([0.5])
    assert found.estimate == 0.5
    assert math.isnan(found.low)
    assert caution(1) == "1 item: no interval can be given"


def test_all_right_is_not_certain():
    found = share_mean([1.0] * 10)
    assert (found.estimate, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(10 / (10 + 1.959964**2), abs=1e-6)
    assert share_mean([0.0] * 10).high == pytest.approx(1 - found.low)


def test_wilson_at_k_n_goes_on_from_t_at_k_below_it_but_for_terms_of_1_over_items():
    """30 of 100 items solved: as 0 and 1, and with 1 - 1/64 in the place of 1, as pass@63 of one right of 64 gives."""
    exact, nearly = share_mean([1.0] * 30 + [0.0] * 70), share_mean([1 - 1 / 64] * 30 + [0.0] * 70)
    assert exact.high - exact.low == pytest.approx(nearly.high - nearly.low, abs=0.01)
    assert (exact.low, exact.high) == pytest.approx((nearly.low, nearly.high), abs=2 / 100)
    surely, almost = share_mean([1.0] * 100), share_mean([1.0] * 90 + [1 - 1 / 64] * 10)
    assert (round(surely.low, 3), round(almost.low, 3)) == (0.963, 0.998)  # what a t interval cannot know


def test_share_interval_stays_between_0_and_1():
    found = share_mean([0.0, 0.9])
    assert (found.low, found.high) == (0.0, 1.0)


def test_single_binary_draws_get_wilsons_interval():
    found = share_mean([1.0] * 81 + [0.0] * 182)
    assert (round(found.low, 4), round(found.high, 4)) == (0.2553, 0.3662)
    assert share_mean([1.0] * 81 + [0.0] * 181 + [0.5]).low == pytest.approx(
        clustered_mean([1.0] * 81 + [0.0] * 181 + [0.5]).low)


def test_wilson_by_hand():
    # Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662
    found = wilson(81, 263)
    assert (round(found.low, 4), round(found.high, 4)) == (0.2553, 0.3662)
    assert wilson(0, 20).low == 0.0


def test_paired_difference_uses_the_pairs():
    # d = 1, 0, 0, 1: mean 1/2, SD sqrt(1/3), SE sqrt(1/12)
    found = paired_difference([1, 1, 0, 1], [0, 1, 0, 0])
    assert found.estimate == 0.5
    assert found.standard_error == pytest.approx((1 / 12) ** 0.5)


def test_mcnemar_by_hand():
    # 5 against 1 discordant: 2 (C(6,0) + C(6,1)) / 2^6
    assert mcnemar_exact([1] * 5 + [0] + [1], [0] * 5 + [1] + [1]) == pytest.approx(14 / 64)
    assert mcnemar_exact([1, 0], [1, 0]) == 1.0
    assert mcnemar_exact([1, 0], [0, 1]) == 1.0
    with pytest.raises(ValueError, match="0 or 1"):
        mcnemar_exact([0.5], [1])


def test_bootstrap_of_discordant_pairs():
    # 4 items for, 1 against, of 118: percentiles of a difference of two near-Poisson counts, -1 and 8
    means = bootstrap_means([0] * 113 + [1] * 4 + [-1])
    assert [end.item() for end in percentiles(means)] == [-1 / 118, 8 / 118]
    assert (means == bootstrap_means([0] * 113 + [1] * 4 + [-1])).all()


def test_bootstrap_error_is_the_analytic_one():
    values = np.random.default_rng(1).random(200)
    assert bootstrap_means(values).std() == pytest.approx(values.std() / 200**0.5, rel=0.03)


def test_bootstrap_columns_share_the_resample():
    means = bootstrap_means([[0.0, 1.0], [1.0, 0.0]], replicates=50)
    assert means.shape == (50, 2)
    assert means.sum(axis=1) == pytest.approx(np.ones(50))


def test_bootstrap_weights_stand_for_repeated_rows():
    spread = bootstrap_means([0.0, 1.0], 4000, counts=[300, 100]).std()
    assert spread == pytest.approx((0.25 * 0.75 / 400) ** 0.5, rel=0.05)


def test_minimum_detectable_difference_is_detected_four_times_in_five():
    items, sd = 400, 0.5
    mdd = minimum_detectable_difference(sd / items**0.5, items)
    assert mdd == pytest.approx((1.966 + 0.8426) * 0.025, abs=1e-4)
    draws = np.random.default_rng(0).normal(mdd, sd, (2000, items))
    z = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / items**0.5)
    assert (z > t_quantile(items - 1)).mean() == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("call", [
    lambda: clustered_mean([]), lambda: clustered_mean([1.0, float("nan")]), lambda: share_mean([0.5, 1.5]),
    lambda: paired_difference([1], [1, 0]), lambda: wilson(3, 2), lambda: wilson(0, 0),
    lambda: clustered_mean([1, 2], ["a"]), lambda: t_quantile(3, 95)])
def test_undefined_is_refused(call):
    with pytest.raises(ValueError):
        call()


def test_cautions():
    assert "29 items" in (caution(29) or "")
    assert "0.14" in (caution(99) or "")
    assert caution(100) is None
