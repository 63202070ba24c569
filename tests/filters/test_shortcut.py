"""Direct answers, and what a guesser gets who knows the source alone."""

import random

import polars as pl
import pytest

from assay.filters import difficulty, shortcut

SCHEMA = {"id": pl.String, "source": pl.String, "answer": pl.String, "options": pl.List(pl.String)}


def rows(source: str, items: list[tuple[str, list[str] | None]]) -> pl.DataFrame:
    data = [(f"{source}{i}", source, answer, options) for i, (answer, options) in enumerate(items)]
    return pl.DataFrame(data, schema=SCHEMA, orient="row")


def rejected(problems: pl.DataFrame, **options: object) -> set[str]:
    decisions = shortcut.guessable(problems, **options)
    assert decisions["id"].to_list() == problems["id"].to_list()
    assert (decisions["keep"] == decisions["reason"].is_null()).all()
    assert set(decisions["reason"].drop_nulls()) <= {"guessable"}
    return set(decisions.filter(~pl.col("keep"))["id"])


def test_right_within_n_direct_answers_is_rejected():
    status = ["wrong"] * 7 + ["correct"] + ["wrong"] * 8 + ["truncated"] * 8
    graded = pl.DataFrame({"problem_id": ["a"] * 8 + ["b"] * 8 + ["c"] * 8, "status": status})
    rates = difficulty.pass_rates(graded)
    problems = pl.DataFrame({"id": ["d", "c", "b", "a"]})
    found = shortcut.decide(problems, rates)
    assert found["reason"].to_list() == [None, None, None, "solvable_without_cot"]
    assert found["evidence"].to_list() == [
        "direct: no sample recorded",
        "direct: 0 of 8 samples scored, 8 truncated",
        "direct: 0/8 correct, 95% 0.00-0.26",
        "direct: 1/8 correct, 95% 0.01-0.45",
    ]
    assert shortcut.decide(problems, rates, threshold=2)["keep"].all()
    with pytest.raises(ValueError, match="every problem"):
        shortcut.decide(problems, rates, threshold=0)


def test_stock_option_that_is_always_right_is_guessable():
    rng = random.Random(0)
    items: list[tuple[str, list[str] | None]] = []
    for i in range(85):  # its place is shuffled and it is offered in every third item only
        last = "Not enough information" if i % 3 == 0 else f"{i + 3}"
        options = [f"{i}", f"{i + 1}", f"{i + 2}", last]
        rng.shuffle(options)
        right = "Not enough information" if i % 3 == 0 else f"{i}"
        items.append(("ABCD"[options.index(right)], options))
    problems = rows("stock", items)
    offered = {f"stock{i}" for i in range(0, 85, 3)}
    assert rejected(problems) == offered
    evidence = shortcut.guessable(problems)["evidence"][0]
    assert evidence == '"not enough information" is right when offered in 29 of 29 rows of stock (chance 25%)'


def test_position_bias_counts_letters_and_texts_alike():
    options = [[f"A) {i}", f"B) {i + 1}", f"C) {i + 2}", f"D) {i + 3}"] for i in range(40)]
    golds = ["C" if i % 2 else f"{i + 2}" for i in range(36)] + ["A"] * 4
    assert rejected(rows("biased", list(zip(golds, options)))) == {f"biased{i}" for i in range(36)}


def test_balanced_options_are_not_guessable():
    options = [["p", "q", "r", "s"]] * 40
    assert rejected(rows("fair", [("ABCD"[i % 4], o) for i, o in enumerate(options)])) == set()


def test_answer_prior_of_the_source_alone():
    problems = pl.concat(
        [
            rows("mostly", [("Yes" if i % 10 else "No", None) for i in range(100)]),
            rows("coin", [("Yes" if i % 2 else "No", None) for i in range(100)]),
            rows("leaning", [("Yes" if i % 5 < 3 else "No", None) for i in range(1000)]),
            rows("numbers", [(str(i % 30), None) for i in range(300)]),
            rows("few", [("1", None)] * 10),
        ]
    )
    assert rejected(problems) == {f"mostly{i}" for i in range(100) if i % 10}


def test_notation_of_the_gold_does_not_hide_the_prior():
    golds = [random.Random(i).choice(["$0$", "0", " 0 "]) for i in range(30)]
    assert len(rejected(rows("zero", [(gold, None) for gold in golds]))) == 30


def test_lift_and_p_by_hand():
    items = [("A", ["p", "q"])] * 15 + [("B", ["p", "q"])] * 5
    found = shortcut.guesses(rows("s", items)).filter(pl.col("rule") == "position", pl.col("guess") == "A")
    row = found.row(0, named=True)
    assert (row["hits"], row["n"], row["chance"]) == (15, 20, 0.5)
    assert row["lift"] == 0.5  # (0.75 - 0.5) / (1 - 0.5)
    assert row["p"] == pytest.approx(0.02069, abs=1e-5)  # P(X >= 15), X ~ Binomial(20, 1/2)


def test_nulls_empties_and_golds_that_are_no_option():
    items: list[tuple[str, list[str] | None]] = [("Z", ["p", "q"]), ("", []), ("7", ["p"]), ("p", None)]
    problems = rows("odd", items).with_columns(answer=pl.when(pl.col("answer") != "").then("answer"))
    assert rejected(problems) == set()
    assert rejected(problems.drop("options")) == set()
    assert shortcut.guessable(problems.clear()).is_empty()
    without_source = rows("x", [("1", None)] * 30).with_columns(source=pl.lit(None, pl.String))
    assert len(rejected(without_source)) == 30
