"""Pass rates by hand, the band's edges, and what more samples do for the noise of few."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.filters import difficulty


def graded(**statuses: str) -> pl.DataFrame:
    """`a="cccw"`: c correct, w wrong, t truncated, u unverifiable, o timeout, . not graded."""
    names = {"c": "correct", "w": "wrong", "t": "truncated", "u": "unverifiable", "o": "timeout", ".": None}
    rows = [(name, names[letter]) for name, letters in statuses.items() for letter in letters]
    return pl.DataFrame(rows, schema={"problem_id": pl.String, "status": pl.String}, orient="row")


def decided(problems: str, rates: pl.DataFrame, **options: object) -> dict[str, str | None]:
    frame = pl.DataFrame({"id": list(problems)})
    decisions = difficulty.decide(frame, rates, **options)
    assert decisions["id"].to_list() == list(problems)
    assert decisions.columns == ["id", "keep", "reason", "evidence"]
    assert (decisions["keep"] == decisions["reason"].is_null()).all()
    return dict(zip(decisions["id"], decisions["reason"]))


def test_rate_counts_correct_over_scored_only():
    row = difficulty.pass_rates(graded(a="cccwwtuo.")).row(0, named=True)
    assert (row["samples"], row["correct"], row["wrong"]) == (9, 3, 2)
    assert (row["truncated"], row["unverifiable"], row["timeout"]) == (1, 1, 1)
    assert row["pass_rate"] == 0.6


@pytest.mark.parametrize("silent", ["tttttttt", "uuuuuuuu", "oooooooo", "........"])
def test_nothing_scored_is_unknown_and_never_zero(silent):
    rates = difficulty.pass_rates(graded(a=silent))
    assert rates.select("pass_rate", "low", "high").row(0) == (None, None, None)
    assert decided("a", rates) == {"a": "unknown_pass_rate"}
    assert decided("a", rates, low=0.0, high=1.0) == {"a": "unknown_pass_rate"}
    kept = difficulty.decide(pl.DataFrame({"id": ["a"]}), rates, unknown="keep").row(0)
    assert kept[:3] == ("a", True, None)
    assert kept[3].startswith("0 of 8 samples scored")


def test_missing_row_has_its_own_reason():
    rates = difficulty.pass_rates(graded(a="cw"))
    frame = difficulty.decide(pl.DataFrame({"id": ["gone", "a"]}), rates)
    assert frame["reason"].to_list() == ["unknown_pass_rate", None]
    assert frame["evidence"].to_list() == ["no sample recorded", "1/2 correct, 95% 0.06-0.94"]


def test_interval_is_the_jeffreys_posterior():
    low, high = difficulty.interval(np.array([3, 0, 8, 0]), np.array([5, 8, 0, 0]), 0.95)
    # Beta(3.5, 5.5), Beta(.5, 8.5): quantiles from tables; 0 and 1 are kept at the edges
    assert low[:3] == pytest.approx([0.1190, 0.0, 0.7378], abs=1e-4)
    assert high[:3] == pytest.approx([0.7052, 0.2622, 1.0], abs=1e-4)
    assert np.isnan(low[3])
    assert np.isnan(high[3])


@given(st.integers(0, 40), st.integers(0, 40))
def test_interval_mirrors_and_holds_the_rate(correct, wrong):
    (low,), (high,) = difficulty.interval(np.array([correct]), np.array([wrong]), 0.95)
    (mirrored,), _ = difficulty.interval(np.array([wrong]), np.array([correct]), 0.95)
    if correct + wrong:
        assert 0 <= low <= correct / (correct + wrong) <= high <= 1
        assert high == pytest.approx(1 - mirrored)


@pytest.mark.parametrize(
    ("inclusive", "kept"), [("both", "ab"), ("low", "a"), ("high", "b"), ("neither", "")]
)
def test_the_edges_follow_the_documented_inclusivity(inclusive, kept):
    rates = difficulty.pass_rates(graded(a="ccwwwwwwww", b="ccccccccww"))
    reasons = decided("ab", rates, inclusive=inclusive)
    assert {name for name, reason in reasons.items() if reason is None} == set(kept)
    assert {reasons["a"], reasons["b"]} <= {None, "too_hard", "too_easy"}
    assert reasons["a"] != "too_easy"
    assert reasons["b"] != "too_hard"


def test_band_names_the_side():
    rates = difficulty.pass_rates(graded(a="wwww", b="cccc", c="ccww"))
    assert decided("cba", rates) == {"c": None, "b": "too_easy", "a": "too_hard"}


def test_evidence_counts_the_silent_samples():
    rates = difficulty.pass_rates(graded(a="cccwwwww", b="tttttttt", c="ctuuo"))
    found = difficulty.decide(pl.DataFrame({"id": ["a", "b", "c"]}), rates)["evidence"].to_list()
    assert found == [
        "3/8 correct, 95% 0.12-0.71",
        "0 of 8 samples scored, 8 truncated",
        "1/1 correct, 95% 0.15-1.00, 1 truncated, 2 unverifiable, 1 timeout",
    ]


def test_two_models_stay_apart_and_are_never_pooled():
    two = pl.concat(
        [
            graded(a="ww", b="cw").with_columns(model=pl.lit("small")),
            graded(a="cc").with_columns(model=pl.lit("large")),
        ]
    )
    rates = difficulty.pass_rates(two)
    assert rates.select("problem_id", "model", "pass_rate").rows() == [
        ("a", "small", 0.0), ("b", "small", 0.5), ("a", "large", 1.0)
    ]  # fmt: skip
    with pytest.raises(ValueError, match="more than once"):
        difficulty.decide(pl.DataFrame({"id": ["a"]}), rates)


def test_same_text_under_two_ids_is_two_rates():
    problems = pl.DataFrame({"id": ["x", "y"], "problem": ["1+1?", "1+1?"]})
    rates = difficulty.pass_rates(graded(x="cccc", y="wwww"))
    assert difficulty.decide(problems, rates)["reason"].to_list() == ["too_easy", "too_hard"]


def test_unknown_status_and_impossible_band_are_refused():
    with pytest.raises(ValueError, match="'right' is none of"):
        difficulty.pass_rates(pl.DataFrame({"problem_id": ["a"], "status": ["right"]}))
    rates = difficulty.pass_rates(graded(a="c"))
    with pytest.raises(ValueError, match="low <= high"):
        difficulty.decide(pl.DataFrame({"id": ["a"]}), rates, low=0.8, high=0.2)
    with pytest.raises(ValueError, match="inclusive"):
        difficulty.decide(pl.DataFrame({"id": ["a"]}), rates, inclusive="left")


def test_empty_frames():
    rates = difficulty.pass_rates(graded())
    assert rates.is_empty()
    assert decided("a", rates) == {"a": "unknown_pass_rate"}
    assert difficulty.buckets(rates).is_empty()
    assert difficulty.undecided(rates) == []


def test_seven_buckets_are_symmetric():
    values = [0.0, 0.1, 0.2, 0.39, 0.4, 0.6, 0.61, 0.8, 0.81, 1.0, None]
    rates = pl.DataFrame({"problem_id": list("abcdefghijk"), "pass_rate": values})
    assert difficulty.buckets(rates)["bucket"].to_list() == [
        "unsolved", "very_hard", "hard", "hard", "medium", "medium", "easy", "easy", "very_easy", "solved",
        None,
    ]  # fmt: skip


def test_undecided_asks_for_the_doubtful_only():
    decided = {"middle": "c" * 16 + "w" * 16, "hard": "w" * 30, "lost": "t" * 8}
    rates = difficulty.pass_rates(graded(near="cc" + "w" * 6, full="c" * 13 + "w" * 51, **decided))
    assert difficulty.undecided(rates) == ["near"]
    assert difficulty.undecided(rates, max_samples=65) == ["full", "near"]  # posterior mass 0.46 and 0.33
    assert difficulty.undecided(rates, max_samples=8) == []


def test_undecided_leaves_what_the_samples_left_cannot_turn():
    rates = difficulty.pass_rates(graded(a="c" * 16 + "w" * 44))  # 16/60 = 0.27, interval 0.17-0.39
    assert rates["low"][0] < 0.2 < rates["high"][0]
    assert difficulty.undecided(rates, max_samples=62) == []  # 16/62 is still above 0.2
    assert difficulty.undecided(rates, max_samples=80) == ["a"]  # 16/80 is the edge


def test_more_samples_where_it_matters_cut_the_noise_of_eight():
    """With N = 8 and a true rate of 0.1, 19% of the items land inside 0.2 to 0.8 by luck."""
    rng = np.random.default_rng(0)
    names = [f"p{i}" for i in range(2000)]
    correct = rng.binomial(8, 0.1, 2000)
    samples = np.full(2000, 8)

    def rates() -> pl.DataFrame:
        low, high = difficulty.interval(correct, samples - correct, 0.95)
        counts = {"samples": samples, "correct": correct, "wrong": samples - correct}
        return pl.DataFrame({"problem_id": names, **counts, "pass_rate": correct / samples}).with_columns(
            pl.Series("low", low), pl.Series("high", high)
        )

    def inside() -> float:
        return float(((correct / samples >= 0.2) & (correct / samples <= 0.8)).mean())

    assert inside() == pytest.approx(0.187, abs=0.03)
    while asked := difficulty.undecided(rates(), max_samples=64):
        more = np.isin(names, asked)
        extra = np.where(more, np.minimum(samples, 64 - samples), 0)
        correct, samples = correct + rng.binomial(extra, 0.1), samples + extra
    assert inside() < 0.04
    assert samples.max() == 64
    assert samples.mean() < 55
