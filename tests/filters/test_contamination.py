import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from assay.filters.contamination import BenchmarkIndex, ItemNumbers, decide, same_numbers

SHARED = Path(__file__).parents[2].parent / "shared"
DATA = SHARED / "data"

PEARS = (
    "An orchard has 120 pear trees and three times as many apple trees. How many trees are in the orchard altogether?"
)
SINES = "Find $\\sin 20^\\circ \\sin 40^\\circ + \\dfrac{1}{2}\\cos\\left(60^\\circ\\right)$."
TILES = (
    "Let $n$ be a positive integer. A square floor of side $n+3$ is covered by tiles of side $1$. "
    "Compute the sum of all $n$ for which at most $400$ tiles are used."
)
TINY = "Evaluate $\\log_264$."
CHINESE = "果园里种梨树18行，每行35棵，苹果树25行，每行32棵。果园里共有果树多少棵？"
ITEMS = [PEARS, SINES, TILES, TINY, CHINESE]
CLEAN = [
    "Sofia baked 24 cakes and sold half of them at the school fair. How many did she take home?",
    "Solve the equation $3x+5=20$.",
    "Let $n$ be a positive integer. Find the last digit of $7^n+3$ when $n$ is a multiple of four.",
    "同学们要种18棵树，第一组种了8棵，第二组种了7棵树，还有多少棵需要种？",
    "",
]


@pytest.fixture(scope="module")
def index() -> BenchmarkIndex:
    return BenchmarkIndex.build({"toy": ITEMS})


def respaced(text: str) -> str:
    return re.sub(r"([+\-=^(){}])", r" \1 ", text)


def rewrapped(text: str) -> str:
    words = text.replace("-", "−").split()
    return "\n".join(" ".join(words[i : i + 5]) for i in range(0, len(words), 5))


def stripped(text: str) -> str:
    return re.sub(r"[$\\{}]", "", re.sub(r"\\(left|right)", "", text))


def wrapped(text: str) -> str:
    return f"Solve the following problem step by step. {text} Put your final answer within \\boxed{{}}."


def templated(text: str) -> str:
    """Words of no list: the item is known by its own sentences."""
    return (
        f"<|im_start|>system\nYou tutor pupils in Kiruna.<|im_end|>\n<|im_start|>user\n{text}\nVielen Dank!<|im_end|>"
    )


def shifted(text: str) -> str:
    return re.sub(r"\d+", lambda m: str(int(m[0]) + 11), text)


def reworded(text: str) -> str:
    words = {"Find": "Determine", "Compute": "Calculate", "How many": "Count how many", "sum": "total"}
    for word, other in words.items():
        text = text.replace(word, other)
    return text


@pytest.mark.parametrize("change", [str, str.upper, respaced, rewrapped, stripped, wrapped, templated, reworded])
def test_every_item_is_seen_through_the_change(index, change):
    out = index.scan([change(t) for t in ITEMS])
    assert out["contaminated"].all(), out
    assert out["benchmark_index"].to_list() == [0, 1, 2, 3, 4]


def test_clean_rows_are_clean_and_in_order(index):
    out = index.scan([CLEAN[0], PEARS, *CLEAN[1:]])
    assert out["row"].to_list() == [0, 1, 2, 3, 4, 5]
    assert out["contaminated"].to_list() == [False, True, False, False, False, False]
    assert out["stage"].to_list() == [None, "exact", None, None, None, None]
    assert out.columns == ["row", "contaminated", "stage", "benchmark", "benchmark_index", "score"]


def test_the_same_word_with_other_numbers_is_a_number_variant(index):
    out = index.scan(
        [shifted(PEARS), shifted(SINES), shifted(CHINESE), PEARS.replace("120", "90").replace("pear", "plum")]
    )
    assert out["stage"].to_list() == ["number_variant"] * 4
    assert out["benchmark_index"].to_list() == [0, 1, 4, 0]


def test_other_words_beside_the_same_numbers_are_no_number_variant():
    ladder = "A ladder leans on a wall of height 12 m. Find the maximum length of the shadow it casts at noon in June."
    index = BenchmarkIndex.build({"toy": [ladder, TILES]})
    edited = ladder.replace("maximum", "minimum")
    rows = [edited, wrapped(edited), ladder.replace("12", "15"), edited.replace("12", "15")]
    assert index.scan(rows)["stage"].to_list() == ["near", "near", "number_variant", "number_variant"]


def test_the_same_numbers_in_their_order():
    assert same_numbers("1,200 by 3", "Question 7. 1200 by 3")
    assert not same_numbers("3 by 4", "4 by 3")
    assert not same_numbers("3 by 3", "3 by 4")


def test_number_variants_need_more_than_a_formula_of_numbers():
    """Masked, "1/2+3/4" is any sum of fractions."""
    index = BenchmarkIndex.build({"toy": ["Compute $\\frac12+\\frac34$.", "What is $12+34$?"]})
    assert index.scan(["Compute $56-78$.", "What is $3+4$?"])["contaminated"].to_list() == [False, False]
    assert index.scan(["Compute $\\frac{1}{2}+\\frac{3}{4}$."])["stage"].to_list() == ["exact"]


def test_an_item_shorter_than_a_window_is_caught(index):
    assert index.scan([TINY, "Work out $\\log_2 64$", wrapped(TINY)])["benchmark_index"].to_list() == [3, 3, 3]
    assert not index.scan(["Evaluate $\\log_3 81$."])["contaminated"][0]


def test_a_short_item_must_be_whole_sentences_of_a_longer_row():
    index = BenchmarkIndex.build({"toy": ["Simplify $\\sqrt{242}$.", "Half of $3x-9$ is $x+37$. What is $x$?"]})
    rows = [
        "Dear reader! Simplify $\\sqrt{242}$. Kindly reply by post.",
        "Kindly: half of $3x-9$ is $x+37$. What is $x$? Reply by post.",
        "A ladder of length $\\sqrt{242}$ leans on a wall. Simplify its shadow.",
        "Half of $3x-9$ is $x+37$ more than Bo has. What is $x$? Reply by post.",
        "." * 3_000 + "\n" * 3_000,
    ]
    assert index.scan(rows)["benchmark_index"].to_list() == [0, 1, None, None, None]


def test_small_edits_are_near(index):
    edited = TILES.replace("positive integer", "natural number greater than zero")
    out = index.scan([edited, PEARS.replace("three times", "thrice").replace("altogether", "in total")])
    assert out["benchmark_index"].to_list() == [2, 0]
    assert set(out["stage"]) <= {"near", "ngram"}


def test_near_needs_no_numbers():
    item = (
        "A bag holds red, green and blue marbles. Marbles are drawn blindly until two match. Which draw surely ends it?"
    )
    row = "A sack holds red, green and blue marbles. They are drawn blindly until two agree. Which draw surely ends it?"
    other = "A bag holds red, green and blue pencils. Which pencil is drawn if Tom writes with the longest of them?"
    out = BenchmarkIndex.build({"toy": [item]}).scan([row, other])
    assert out["stage"].to_list() == ["near", None]


def test_stock_sentences_and_shared_formulas_do_not_count():
    """Rows of marin #6852: a formula or a template in common, another problem."""
    tangent = "Recall that $\\tan(\\alpha+\\beta)=\\frac{\\tan\\alpha+\\tan\\beta}{1-\\tan\\alpha\\tan\\beta}$. "
    choose = "$\\binom{11}{5}=\\frac{11!}{5!(11-5)!}$"
    index = BenchmarkIndex.build(
        {
            "toy": [
                f"{tangent}If $\\tan x = 3$ and $\\tan y = 2$, what is the tangent of the sum, to the nearest tenth?",
                f"A committee of five is chosen from eleven people in {choose} ways. How many contain Ann and Bob?",
                "Find the value of $x$ such that $3x + 7 = 22$.",
            ]
        }
    )
    rows = [
        f"{tangent}Use it to find the angle that a ladder of twelve feet makes with the floor of a barn.",
        f"A pizzeria offers eleven toppings, giving {choose} choices of five. How many have no olives?",
        "Find the value of $x$ such that the triangle with sides $x$, $5$ and $9$ is isosceles.",
    ]
    assert not index.scan(rows)["contaminated"].any()


def test_a_template_of_several_items_does_not_count():
    template = "Construct a complete truth table for the following argument and say whether it is valid or not. "
    arguments = [
        "Premises: all cats sleep; Tom is a cat. Conclusion: Tom sleeps.",
        "Premises: some birds cannot fly; penguins are birds. Conclusion: penguins cannot fly.",
        "Premises: it rains or it snows; it does not rain. Conclusion: it snows.",
        "Premises: whoever runs gets tired; Mary is rested. Conclusion: Mary did not run.",
    ]
    index = BenchmarkIndex.build({"logic": [template + a for a in arguments]})
    row = template + "Premises: no dog reads; Rex is a reader of novels. Conclusion: Rex is no dog."
    out = index.scan([row, template, template + arguments[2]])
    assert out["contaminated"].to_list() == [False, False, True]


def test_a_question_is_found_in_items_of_question_and_answer():
    index = BenchmarkIndex.build(
        {"qa": [f"{PEARS} There are 120 + 3 * 120 trees, the apple trees being 360. Answer: 480"]}
    )
    assert index.scan([PEARS])["stage"].to_list() == ["ngram"]


def test_an_item_within_a_longer_row_is_found(index):
    row = f"You are a careful tutor in a village school. Here is one more: {TILES} Show your work, then check it."
    assert index.scan([row])["benchmark_index"].to_list() == [2]


def test_a_hit_in_one_benchmark_does_not_hide_another():
    index = BenchmarkIndex.build({"first": [CLEAN[0], PEARS], "second": [shifted(PEARS)], "third": [TILES]})
    hits = index.hits([CLEAN[1], PEARS])
    assert hits.rows() == [(1, "exact", "first", 1, 1.0), (1, "number_variant", "second", 0, 1.0)]
    assert index.scan([PEARS])["benchmark"].to_list() == ["first"]


def test_copies_within_and_across_benchmarks_all_count():
    index = BenchmarkIndex.build({"a": [CLEAN[0], PEARS, PEARS] * 20, "b": [wrapped(PEARS), PEARS.upper()]})
    assert index.hits([PEARS]).rows() == [(0, "exact", "a", 1, 1.0), (0, "exact", "b", 1, 1.0)]
    assert index.scan([reworded(PEARS)])["contaminated"][0]


def test_nulls_keep_the_rows_numbers(index):
    out = index.scan([None, None, PEARS, "?!"])
    assert out["contaminated"].to_list() == [False, False, True, False]


def test_an_empty_pool_and_a_column_scan_alike(index):
    assert index.scan([]).height == 0
    column = pl.Series([PEARS, CLEAN[0]] * 3_000)
    out = index.scan(column)
    assert out["contaminated"].to_list() == [True, False] * 3_000
    assert index.scan(column[1:4])["contaminated"].to_list() == [False, True, False]


def test_embeddings_find_what_words_do_not():
    axes = np.eye(3)
    index = BenchmarkIndex.build({"a": [PEARS, SINES], "b": [TILES]}, vectors={"a": axes[:2] * 7})
    rows = ["桃树", CLEAN[0], SINES, ""]
    hits = index.hits(rows, np.array([[1.0, 0.2, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0]]))
    assert hits.drop("score").rows() == [(0, "embedding", "a", 0), (2, "exact", "a", 1)]
    assert hits["score"][0] == pytest.approx(1 / 1.04**0.5)


def test_a_retold_problem_keeps_its_numbers():
    """Cosines 0.62 and 0.4 to the nearest items: too little, but for the numbers."""
    items = ["A car drives 3 hours at 50 miles an hour.", *(f"{n} of a kind" for n in range(30, 55))]
    index = BenchmarkIndex.build({"a": items}, vectors={"a": np.eye(26)})
    row = np.zeros(26)
    row[:4] = 0.62, 0.4, 0.4, 0.4
    row[4:] = (1 - (row**2).sum()) ** 0.5 / 22**0.5
    rows = ["Three hours pass while one drives steadily, at fifty or 50.", "It took 4 hours and 50 minutes.", "3"]
    assert index.scan(rows, np.stack([row] * 3))["stage"].to_list() == ["embedding", None, None]
    row[:2] = 0.4, 0.62  # nearest to an item of one number, which says too little
    assert index.scan(["About 30."], row[None])["stage"].to_list() == [None]


@pytest.mark.parametrize(("own", "same"), [("7 12", True), ("7 12 99", True), ("7 12 99 98", False), ("7", False)])
def test_most_of_the_rare_numbers_are_the_same(own: str, same: bool):
    """Of 100 items, 7 and 12 are one's: log 50 = 3.91 nats each; a number of none is log 100 = 4.61.

    7.82 of 12.43 is over a half, 7.82 of 17.03 is not, and 3.91 alone is below the four that are needed.
    """
    found = ItemNumbers(["7 of 12", *["none"] * 99])
    assert found.same(set(own.split()), 0) is same


def test_faults_are_named():
    with pytest.raises(ValueError, match="gpqa"):
        BenchmarkIndex.build({"toy": ITEMS, "gpqa": []})
    with pytest.raises(ValueError, match="empty set"):
        BenchmarkIndex.build({})
    with pytest.raises(ValueError, match="toys"):
        BenchmarkIndex.build({"toy": ITEMS}, vectors={"toys": np.eye(5)})
    with pytest.raises(ValueError, match=r"\(4, 5\) for 5 texts"):
        BenchmarkIndex.build({"toy": ITEMS}, vectors={"toy": np.eye(5)[:4]})


def test_decisions_carry_the_item_as_evidence():
    index = BenchmarkIndex.build({"a": [CLEAN[0], PEARS], "b": [shifted(PEARS)]})
    problems = pl.DataFrame({"id": ["p", "q", "r"], "problem": [CLEAN[1], PEARS, None]})
    out = decide(problems, index)
    assert out.select("id", "keep", "reason").rows() == [("p", True, None), ("q", False, "exact"), ("r", True, None)]
    evidence = json.loads(out["evidence"][1])
    assert (evidence["benchmark"], evidence["index"], evidence["text"]) == ("a", 1, PEARS[:200])
    assert [also["benchmark"] for also in evidence["also"]] == ["b"]
    assert out["evidence"][0] is None


def test_stages_that_do_not_drop_stay_in_the_evidence():
    index = BenchmarkIndex.build({"exam": ["Find the sum of 12 apples and 34 pears in the basket of 7 farmers today."]})
    rows = pl.DataFrame(
        {"id": ["a"], "problem": ["Find the sum of 15 apples and 31 pears in the basket of 9 farmers today."]}
    )
    assert decide(rows, index)["reason"].to_list() == ["number_variant"]
    kept = decide(rows, index, stages=("exact", "ngram"))
    assert kept["keep"].to_list() == [True]
    assert '"stage": "number_variant"' in kept["evidence"][0]


def test_a_benchmark_added_later_is_found_by_scanning_again():
    pool = pl.DataFrame({"id": ["p", "q"], "problem": [PEARS, TILES]})
    assert decide(pool, BenchmarkIndex.build({"old": [PEARS]}))["keep"].to_list() == [False, True]
    assert decide(pool, BenchmarkIndex.build({"old": [PEARS], "new": [TILES]}))["keep"].to_list() == [False, False]


def read(name: str) -> list[dict]:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not beside the checkout")
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


@pytest.mark.parametrize(("name", "field"), [("math500", "problem"), ("gsm8k", "question"), ("amc23", "question")])
def test_recall_on_perturbed_benchmarks(name, field):
    rows = read(f"benchmarks/{name}.jsonl")
    items = [row.get(field) or row["problem"] for row in rows][:500]
    index = BenchmarkIndex.build({name: items})
    need = {
        str: 1,
        str.upper: 1,
        respaced: 0.99,
        rewrapped: 1,
        stripped: 0.99,
        wrapped: 0.99,
        templated: 0.99,
        shifted: 0.97,
    }
    for change, recall in need.items():
        assert index.scan([change(t) for t in items])["contaminated"].mean() >= recall, change


def test_precision_on_sources_that_share_nothing():
    items = [row["problem"] for row in read("benchmarks/math500.jsonl")]
    texts = [
        row["question"] for name in ("gsm8k_train", "college_math", "cmath") for row in read(f"sources/{name}.jsonl")
    ]
    out = BenchmarkIndex.build({"math500": items}).scan(texts)
    assert out["contaminated"].sum() <= 3, [texts[i] for i in out.filter("contaminated")["row"]]


def test_acceptance_cases():
    items = [row["problem"] for row in read("benchmarks/math500.jsonl")]
    cases = [json.loads(line) for line in (SHARED / "cases/decontamination.jsonl").read_text().splitlines()]
    kinds = pl.DataFrame({"kind": [c["kind"] for c in cases]})
    out = BenchmarkIndex.build({"math500": items}).scan([c["problem"] for c in cases])
    rates = dict(kinds.with_columns(out["contaminated"]).group_by("kind").agg(pl.col("contaminated").mean()).rows())
    assert rates.pop("other_source") <= 2 / 600
    unscored = {"paraphrase", "translation"}
    assert {kind: rate for kind, rate in rates.items() if rate < 0.99 and kind not in unscored} == {}
