import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from assay.eval.comparison import Crossing, compare_pass_at_k, crossing, four_way, told
from assay.eval.pass_at_k import pass_at_k_curve

REPLAY = Path(__file__).parents[2].parent / "shared" / "data" / "replay"


def repeated(*groups):
    """(items, n, correct) groups as 0/1 rows."""
    return [[1] * c + [0] * (n - c) for items, n, c in groups for _ in range(items)]


def test_difference_is_paired_and_its_interval_resamples_items():
    # 118 items, 4 only a, 1 only b: +2.54 [-0.85, 6.78] per cent
    a, b = repeated((117, 1, 1), (1, 1, 0)), repeated((113, 1, 1), (4, 1, 0), (1, 1, 1))
    row = compare_pass_at_k(a, b, [1]).row(0, named=True)
    assert [round(100 * row[name], 2) for name in ("a", "b", "difference", "low", "high")] == [
        99.15, 96.61, 2.54, -0.85, 6.78]
    sd = np.std([0] * 113 + [1] * 4 + [-1], ddof=1)
    assert row["mdd"] == pytest.approx((1.9805 + 0.8446) * sd / 118**0.5, abs=1e-3)
    assert (row["items"], row["crossing"]) == (118, None)


def test_counts_and_flags_say_the_same():
    rng = np.random.default_rng(0)
    c_a, c_b = rng.integers(0, 9, 40), rng.integers(0, 9, 40)
    flags = [[[1] * c + [0] * (8 - c) for c in counts] for counts in (c_a.tolist(), c_b.tolist())]
    from_counts = compare_pass_at_k((8, c_a), (8, c_b), [1, 4, 8])
    assert from_counts.equals(compare_pass_at_k(*flags, [1, 4, 8]))
    assert from_counts["a"].to_list() == pytest.approx(pass_at_k_curve(8, c_a, [1, 4, 8])["estimate"].to_list())
    swapped = compare_pass_at_k((8, c_b), (8, c_a), [1, 4, 8])
    assert swapped["difference"].to_list() == pytest.approx((-from_counts["difference"]).to_list())


def test_unscored_samples_and_items_leave_the_comparison():
    a = [[1, 0, None, 1], [None, float("nan"), None, None], [1, 1, 0, 0]]
    b = [[0, 0, 0, 1], [1, 1, 1, 1], [0, None, None, 1]]
    found = compare_pass_at_k(a, b, [1, 3])
    assert found["items"].to_list() == [2, 1]
    assert found["a"].to_list() == pytest.approx([(2 / 3 + 1 / 2) / 2, 1.0])
    assert found["b"].to_list() == pytest.approx([(1 / 4 + 1 / 2) / 2, 3 / 4])
    assert found["low"].to_list()[0] == pytest.approx(0.0)
    assert found["high"].to_list()[0] == pytest.approx(2 / 3 - 1 / 4)


def test_items_too_short_for_a_k_leave_its_interval_too():
    # at k = 2 ten items are scored in both, five 1 against 0 and five even; thirty have one scored sample
    a = [[1, 1]] * 5 + [[0, 0]] * 5 + [[1, None]] * 30
    b = [[0, 0]] * 5 + [[0, 0]] * 5 + [[0, None]] * 30
    both = compare_pass_at_k(a, b, [2]).row(0, named=True)
    alone = compare_pass_at_k(a[:10], b[:10], [2]).row(0, named=True)
    assert (both["items"], both["difference"]) == (10, 0.5)
    assert both["low"] == pytest.approx(alone["low"], abs=0.11)  # the number of items varies with the resample
    assert both["high"] == pytest.approx(alone["high"], abs=0.11)


@pytest.mark.parametrize(("a", "b", "ks", "said"), [
    ([[1]], [[1], [0]], [1], "1 items and b 2"), ([[1, 0]], [[1, 0]], [3], "k <= 2"),
    ([[None]], [[1]], [1], "nothing to compare"), ([[1]], [[1]], [], "whole numbers from 1"),
    ([[1, None]], [[1, 1]], [2], "scored samples in both"), (([4, 2], [1, 1]), ([4, 4], [1, 1]), [4], "k <= 2")])
def test_what_cannot_be_compared_is_refused(a, b, ks, said):
    with pytest.raises(ValueError, match=said):
        compare_pass_at_k(a, b, ks)


def test_equal_results_are_not_certain():
    found = compare_pass_at_k([[1]] * 20, [[1]] * 20, [1]).row(0, named=True)
    assert found["difference"] == 0.0
    assert found["high"] == -found["low"] == pytest.approx(1.959964**2 / (20 + 1.959964**2))
    assert found["mdd"] is None


def narrow_and_broad(items=100, n=16):
    """a solves 6 items of 10 always and never the rest; b solves every item once in n."""
    return (n, [n] * (6 * items // 10) + [0] * (4 * items // 10)), (n, [1] * items)


def test_crossing_by_hand():
    # a is 0.6 at every k, b is k/16: 9/16 < 0.6 < 10/16
    a, b = narrow_and_broad()
    found = crossing(a, b, 16)
    assert found.k == 9
    # the bootstrap of 60 of 100 has the 95% range 0.50 to 0.69 or 0.70
    assert (found.low, found.high) in {(7, 11), (8, 11), (7, 10)}
    frame = compare_pass_at_k(a, b, [1, 4, 16])
    assert frame["crossing"].to_list() == [9] * 3
    assert frame.row(0, named=True)["crossing_high"] == found.high
    assert crossing(b, a, 16) == found
    far = compare_pass_at_k(a, b, [1, 4], up_to=16).row(0, named=True)  # whichever k are asked
    assert (far["crossing"], far["up_to"]) == (9, 16)


def test_no_crossing():
    a, b = narrow_and_broad()
    assert crossing(a, b, 8) == Crossing(None, None, None)
    assert crossing(a, a, 16) == Crossing(None, None, None)


def test_a_crossing_that_items_do_not_settle_has_open_ends():
    # a is 0.9 and b k/20, equal at 18; of ten items a third of the resamples lack the unsolved one: a is never
    # caught; 7 of 10 (the 2.5% end of Binomial(10, 0.9)) crosses after 13
    a, b = (20, [20] * 9 + [0]), (20, [1] * 10)
    assert crossing(a, b, 20) == Crossing(17, 13, None)


def test_crossing_of_many_samples_uses_a_grid():
    n = 10_000
    found = crossing((n, [n] * 6 + [0] * 4), (n, [1] * 10), n)
    assert found.k == pytest.approx(6000, rel=0.02)


def test_four_way_of_all_samples_counts_items():
    a = [[1, 0], [0, 1], [0, 0], [0, 0], [1, 1]]
    b = [[0, 1], [0, 0], [1, 0], [0, 0], [0, 0]]
    found = four_way(a, b)
    assert found["solved_by"].to_list() == ["both", "a_only", "b_only", "neither"]
    assert found["items"].to_list() == [1.0, 2.0, 1.0, 1.0]
    assert found["k"].to_list() == [2] * 4
    assert found["share"].sum() == pytest.approx(1)


def test_four_way_with_unequal_samples_is_at_the_common_k():
    # a: 1 of 4, so pass@2 = 1/2; b: 1 of 2, so pass@2 = 1
    found = four_way((4, [1]), (2, [1]))
    assert found["items"].to_list() == pytest.approx([0.5, 0.0, 0.5, 0.0])
    assert four_way((4, [1]), (2, [1]), k=1)["items"].to_list() == pytest.approx([1 / 8, 1 / 8, 3 / 8, 3 / 8])


@pytest.mark.skipif(not REPLAY.is_dir(), reason="recorded files are not beside the repository")
def test_pythia_models_differ_where_the_published_curves_do():
    frame = pl.read_parquet(REPLAY / "large_language_monkeys_pass_at_k.parquet").unique(["Model", "Problem Idx"])
    models = [frame.filter(pl.col("Model") == m).sort("Problem Idx") for m in ("Pythia 12B", "Pythia 160M")]
    found = compare_pass_at_k(*((m["Num. Samples Total"], m["Num. Samples Correct"]) for m in models), [1, 10_000])
    assert (found["difference"] * 100).round(2).to_list() == [2.05, 30.47]
    assert found["low"].min() > 0
    assert found["crossing"].to_list() == [None, None]


@pytest.mark.skipif(not REPLAY.is_dir(), reason="recorded files are not beside the repository")
def test_recorded_crossing_to_the_digit():
    models = json.loads((REPLAY / "evalperf_pass_at_1.json").read_text())
    names = [next((m for m in models if part in m and "vllm_temp_1.0" in m), None)
             for part in ("Llama-3.1-8B", "Qwen2.5-72B")]
    if None in names:
        pytest.skip("the file holds one model only")
    left, right = (models[name] for name in names)
    c_a, c_b = ([round(rates[task]) for task in sorted(left)] for rates in (left, right))
    found = compare_pass_at_k((100, c_a), (100, c_b), [1, 16, 64, 100])
    assert (found["a"] * 100).round(2).to_list() == [64.35, 91.43, 96.87, 99.15]
    assert (found["b"] * 100).round(2).to_list() == [88.28, 96.08, 96.61, 96.61]
    assert (found.row(-1, named=True)["low"] * 100, found["crossing"][0]) == (pytest.approx(-0.85, abs=0.01), 60)


def test_a_comparison_in_words():
    # 118 items, 4 only a, 1 only b: exact McNemar 2 (1 + 5) / 32
    a, b = repeated((117, 1, 1), (1, 1, 0)), repeated((113, 1, 1), (4, 1, 0), (1, 1, 1))
    assert said(a, b, [1]) == [
        "k = 1: +2.54 [−0.85,\u00a0+6.78] points over 118 items; detectable: 5.34; McNemar p = 0.375",
        "no crossing up to 1"]
    rates = said(repeated((6, 4, 1), (4, 4, 2)), repeated((5, 4, 4), (5, 4, 0)), [1, 4])
    assert "McNemar" not in rates[0]
    assert rates[2].startswith("the curves cross after k = 1 [")
    assert rates[3].startswith("few items: 10 items")


def said(a, b, ks):
    (it,) = told(compare_pass_at_k(a, b, ks).with_columns(benchmark=pl.lit("x"), model=pl.lit("a"), base=pl.lit("b")))
    return it["lines"]
