import itertools
import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.eval.pass_at_k import counts, pass_at_k, pass_at_k_curve

REPLAY = Path(__file__).parents[2].parent / "shared" / "data" / "replay"


def test_worked_values():
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert pass_at_k(10, 3, 5) == pytest.approx(1 - 21 / 252)
    assert pass_at_k(10, 3, 8) == 1.0
    assert pass_at_k(5, 0, 5) == 0.0


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_equals_the_share_of_subsets(case):
    n, c, k = case
    subsets = list(itertools.combinations(range(n), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(min(s) < c for s in subsets) / len(subsets), abs=1e-12)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_equals_the_binomials_at_large_n(case):
    n, c, k = case
    exact = 1 - math.comb(n - c, k) / math.comb(n, k)
    assert pass_at_k(n, c, k) == pytest.approx(exact, abs=1e-11)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 0, 8), (4, 4, 5), (4, 5, 2), (4, -1, 2), (4, 1, 0), (0, 0, 1),
                                           ([8, 4], [0, 0], 8), (4.5, 1, 1)])
def test_outside_the_domain_is_refused(n, c, k):
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


def test_refusal_says_what_can_be_asked():
    with pytest.raises(ValueError, match=r"k = 8 > n = 4 .*k <= 4"):
        pass_at_k([16, 4], 1, 8)


def test_arrays_broadcast():
    found = pass_at_k(np.array([[4], [8]]), np.array([[1], [2]]), np.array([1, 2, 4]))
    assert found.shape == (2, 3)
    assert found[0].tolist() == pytest.approx([0.25, 0.5, 1.0])
    assert found[1].tolist() == pytest.approx([0.25, 1 - 15 / 28, 1 - 15 / 70])


def test_curve_interval_is_over_items():
    found = pass_at_k_curve([4, 4, 4, 4], [1, 3, 1, 3], [1, 4])
    assert found.columns == ["k", "estimate", "low", "high", "items"]
    assert found["estimate"].to_list() == [0.5, 1.0]
    # SE = SD / 2 = sqrt(1/12)/2; t(3) = 3.182
    assert found["low"].to_list()[0] == pytest.approx(0.5 - 3.1824 * (1 / 48) ** 0.5, abs=1e-4)
    wide = pass_at_k_curve(4, [1, 3] * 50, [1])
    assert wide["high"].item() == pytest.approx(0.5 + 1.9842 * (0.0625 / 99) ** 0.5, abs=1e-4)


def test_items_of_different_n_agree_with_the_product_form():
    rng = np.random.default_rng(0)
    n = rng.integers(1, 10_001, 2_000)
    c, k = rng.integers(0, n + 1), rng.integers(1, n + 1)
    together, one_by_one = pass_at_k(n, c, k), [pass_at_k(*triple) for triple in zip(n, c, k)]
    assert np.abs(together - one_by_one).max() < 2e-11
    assert pass_at_k([10, 10_000], [3, 0], [5, 9]).tolist() == [pytest.approx(1 - 21 / 252), 0.0]


def test_curve_of_one_item_has_no_interval():
    assert pass_at_k_curve(4, [2], [1]).row(0) == (1, 0.5, None, None, 1)


def test_curve_refuses_k_beyond_any_item():
    with pytest.raises(ValueError, match="k <= 4"):
        pass_at_k_curve([8, 4], [1, 1], [8])
    with pytest.raises(ValueError, match="no k"):
        pass_at_k_curve([8], [1], [])


def test_unscored_samples_count_nowhere():
    n, c = counts([[1, 0, None], [True, float("nan"), True], [None]])
    assert n.tolist() == [2, 2, 0]
    assert c.tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match=r"item 1: 0\.5"):
        counts([[1], [0.5]])


def test_items_of_many_sizes_are_estimated_at_once():
    rng = np.random.default_rng(0)
    n = rng.integers(64, 10_001, 2_000)
    c = rng.integers(0, n + 1) // rng.integers(1, 200, 2_000)
    found = pass_at_k(n, c, 64)
    alone = [pass_at_k(int(a), int(b), 64) for a, b in zip(n[:200], c[:200])]
    assert np.abs(found[:200] - alone).max() < 1e-10


@pytest.mark.skipif(not REPLAY.is_dir(), reason="recorded files are not beside the repository")
@pytest.mark.parametrize(("model", "published"), [
    ("Pythia 160M", [0.27, 2.51, 16.19, 41.02, 57.03]), ("Pythia 12B", [2.32, 15.68, 48.34, 72.33, 87.50]),
    ("Pythia 70M", [0.06, 0.60, 3.61, 12.41, 26.56])])
def test_published_curves_to_the_digit(model, published):
    frame = pl.read_parquet(REPLAY / "large_language_monkeys_pass_at_k.parquet").filter(pl.col("Model") == model)
    items = frame.unique("Problem Idx")
    curve = pass_at_k_curve(items["Num. Samples Total"], items["Num. Samples Correct"], [1, 10, 100, 1000, 10_000])
    assert (curve["estimate"] * 100).round(2).to_list() == published


@pytest.mark.skipif(not REPLAY.is_dir(), reason="recorded files are not beside the repository")
def test_every_published_value_of_an_item():
    frame = pl.read_parquet(REPLAY / "large_language_monkeys_pass_at_k.parquet")
    found = pass_at_k(frame["Num. Samples Total"], frame["Num. Samples Correct"], frame["Scaling Parameter"])
    assert np.abs(found - frame["Score"].to_numpy()).max() < 1e-9


@pytest.mark.skipif(not REPLAY.is_dir(), reason="recorded files are not beside the repository")
def test_code_curve_to_the_digit():
    passed = json.loads((REPLAY / "codegen16b_humaneval_first82_passed.json").read_text())
    curve = pass_at_k_curve(100, list(passed.values()), [1, 10, 100])
    assert (curve["estimate"] * 100).round(2).to_list() == [38.17, 69.72, 89.02]
