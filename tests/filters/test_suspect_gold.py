"""Agreement against the gold, by hand."""

import polars as pl
import pytest

from assay.filters import suspect_gold


def answers(*samples: tuple[str, str | None, str, str]) -> pl.DataFrame:
    schema = {"problem_id": pl.String, "extracted": pl.String, "status": pl.String, "model": pl.String}
    return pl.DataFrame(list(samples), schema=schema, orient="row")


def decided(frame: pl.DataFrame, **options: object) -> tuple[str | None, str | None]:
    row = suspect_gold.decide(pl.DataFrame({"id": ["p"]}), frame, **options).row(0, named=True)
    assert row["keep"] == (row["reason"] is None)
    return row["reason"], row["evidence"]


def test_self_agreement_against_the_gold():
    frame = answers(*[("p", "12", "wrong", "m")] * 6, *[("p", "9", "wrong", "m")] * 2)
    assert decided(frame) == ("suspect_gold", 'never the gold in 8 samples; "12" in 6 of them (75%)')
    assert decided(frame, min_share=0.8) == (None, None)
    assert decided(frame, min_samples=9) == (None, None)


def test_disagreeing_wrong_answers_are_a_hard_problem():
    assert decided(answers(*[("p", str(i), "wrong", "m") for i in range(8)]))[0] is None


def test_a_single_right_answer_clears_the_gold():
    assert decided(answers(*[("p", "12", "wrong", "m")] * 7, ("p", "5", "correct", "m")))[0] is None


def test_truncated_and_unverifiable_samples_do_not_vote():
    silent = [("p", "12", "truncated", "m")] * 9 + [("p", "12", "unverifiable", "m")] * 9
    assert decided(answers(*silent, *[("p", "12", "wrong", "m")] * 3))[0] is None
    assert decided(answers(*silent, *[("p", "12", "wrong", "m")] * 4))[0] == "suspect_gold"


def test_samples_without_an_answer_count_against_agreement():
    assert decided(answers(*[("p", "12", "wrong", "m")] * 4, *[("p", None, "wrong", "m")] * 4))[0] is None


def test_notations_of_one_number_agree():
    texts = ["0.5", "1/2", r"\frac{1}{2}", "$0.50$", r"\dfrac{1}{2}", ".5"]
    assert {suspect_gold.canonical(text) for text in texts} == {"1/2"}
    assert suspect_gold.canonical("1,234") == "1234"
    assert suspect_gold.canonical("(1,2)") != suspect_gold.canonical("(12)")
    assert suspect_gold.canonical("1/0") == "1/0"
    reason, evidence = decided(answers(*[("p", text, "wrong", "m") for text in texts]))
    assert reason == "suspect_gold"
    assert evidence is not None
    assert "100%" in evidence


def test_strong_model_never_right_where_the_weak_one_is():
    strong = [("p", str(i), "wrong", "32B") for i in range(16)]  # no agreement at all
    weak = [("p", "7", "correct", "1.5B")] * 12 + [("p", "8", "wrong", "1.5B")] * 4
    frame = answers(*strong, *weak)
    reason, evidence = decided(frame, strong="32B", weak="1.5B")
    assert (reason, evidence) == ("suspect_gold", "strong model 0/16 correct, weak model 12/16")
    assert decided(frame, strong="1.5B", weak="32B")[0] is None
    assert decided(frame, strong="32B", weak="1.5B", min_share=0.8)[0] is None
    assert decided(frame)[0] is None


def test_both_signs_are_told():
    frame = answers(*[("p", "3", "wrong", "L")] * 4, *[("p", "4", "correct", "S")] * 4)
    evidence = decided(frame, strong="L", weak="S")[1]
    assert evidence == (
        'never the gold in 4 samples; "3" in 4 of them (100%); strong model 0/4 correct, weak model 4/4'
    )


def test_only_the_strong_models_agreement_counts():
    frame = answers(*[("p", "3", "wrong", "S")] * 8, *[("p", str(i), "wrong", "L") for i in range(8)])
    assert decided(frame, strong="L")[0] is None
    assert decided(frame, strong="S")[0] == "suspect_gold"


def test_order_is_kept_and_unsampled_problems_stay():
    frame = answers(*[("b", "1", "wrong", "m")] * 4)
    found = suspect_gold.decide(pl.DataFrame({"id": ["c", "b", "a"]}), frame)
    assert found.rows()[0] == ("c", True, None, None)
    assert found["keep"].to_list() == [True, False, True]
    assert suspect_gold.decide(pl.DataFrame({"id": ["a"]}), answers())["keep"].to_list() == [True]


def test_models_that_are_not_there_are_refused():
    frame = answers(("p", "1", "wrong", "m"))
    with pytest.raises(ValueError, match="name both"):
        decided(frame, weak="m")
    with pytest.raises(ValueError, match="no answer of model 'big'"):
        decided(frame, strong="big", weak="m")
