"""Formats of problems: every style of option, the traps that look like one, and what `decide` and `reformulate` do."""

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.filters import answer_format
from assay.filters.answer_format import FORMATS, classify, decide, reformulate

SHIPPED = Path(__file__).parents[2] / "flows" / "cases" / "formats.jsonl"
SHARED = Path(__file__).parents[2].parent / "shared"
SCHEMA = {"id": pl.String, "problem": pl.String, "answer": pl.String, "options": pl.List(pl.String)}

# (problem, gold, options field); also what `assay bench filters` shows where no data is given
CASES = {kind: [] for kind in FORMATS}
for case in map(json.loads, SHIPPED.read_text(encoding="utf-8").splitlines()):
    CASES[case["expected"]].append((case["problem"], case["answer"], case["options"]))


def frame(rows: list[tuple[str | None, str | None, list[str | None] | None]]) -> pl.DataFrame:
    return pl.DataFrame([(str(i), *row) for i, row in enumerate(rows)], schema=SCHEMA, orient="row")


@pytest.mark.parametrize("expected", FORMATS)
def test_own_cases(expected):
    rows = CASES[expected]
    found = classify(frame(rows))
    wrong = [(p, g, kind, why) for (p, g, _), (_, kind, why) in zip(rows, found.iter_rows()) if kind != expected]
    assert not wrong
    assert found["evidence"].is_null().all() == (expected == "open")


def test_the_sieve_lets_no_finding_slip(monkeypatch):
    """The expression that spares rows may not change a single verdict."""
    rows = frame([row for rows in CASES.values() for row in rows])
    sieved = classify(rows)
    monkeypatch.setattr(answer_format, "_suspect", lambda: pl.lit(True))
    monkeypatch.setattr(answer_format, "_signs", lambda: pl.lit(sum(answer_format.BITS.values())))
    assert classify(rows).equals(sieved)


@pytest.mark.parametrize(
    ("label", "close"),
    [
        ("(", ")"), ("", "."), ("", ")"), ("", ":"), ("（", "）"), ("", "．"), ("", "、"), ("[", "]"),
        ("\\textbf{(", ") }"), ("**", ".** "), ("Option ", ": "), ("(\\mathrm{", "})"),
    ],
)
@pytest.mark.parametrize("letters", ["ABCD", "ABC", "abcde"])
@pytest.mark.parametrize("joint", ["\n", " ", " \\qquad ", "<br>"])
def test_styles_of_options_with_the_field_hidden(label, close, letters, joint):
    options = joint.join(f"{label}{letter}{close} {7 * i + 2}" for i, letter in enumerate(letters))
    rows = [(f"What is 4 + 5?{joint}{options}", gold, None) for gold in (letters[1], "9")]
    assert classify(frame(rows))["format"].to_list() == ["multiple_choice"] * 2


MANY_APPLES = "小明有多少个苹果？①3个 ②4个 ③5个"
PAIRS = [  # a text and gold of a format, and the nearest that are open
    ("multiple_choice", ("What is 2+3? (A)4(B)5(C)6(D)7", "B"), ("Find x: 2(a) + 3(b) = 5, a = x, b = 1", "1")),
    ("multiple_choice", ("x的值是（）（A）1（B）2（C）3", "B"), ("Find 2(A) + 3(B) for A = 1, B = 2.", "8")),
    ("multiple_choice", (MANY_APPLES, "②"), ("正确的个数是多少？①1+1=2 ②2+2=5 ③3>4", "1")),
    ("multiple_choice", ("How many primes are below 10? ① 3 ② 4", "②"), ("How many of ① 3 ② 4 ③ 5 are odd?", "2")),
    ("multiple_choice", ("The value of 2+3 is (1) 4 (2) 5 (3) 6", "2"), ("Mean of the data: 1. 4\n2. 5\n3. 6", "5")),
    ("multiple_choice", ("What is 2+3?\n1. 4\n2. 5\n3. 6", "5"), ("Add the costs.\n1. 4\n2. 5\n3. 6", "15")),
    ("multiple_choice", ("What is 2+3? 【A】4 【B】5", "B"), ("【题目】求2+3。【提示】先算2", "5")),
    ("multiple_choice", ("What is 2+3? A，4 B，5", "B"), ("三角形ABC中，A，B两点相距5，C，D相距4，哪点最远？", "B")),
    ("multiple_choice", ("What is 2+3? \\(A\\) 4 \\(B\\) 5", "B"), ("Let \\(A\\) win 4, \\(B\\) 5. Who leads?", "B")),
    ("multiple_choice", ("2+3? <b>A</b> 4 <b>B</b> 5", "B"), ("<b>A</b> has 4, <b>B</b> has 5. Who leads?", "B")),
    ("multiple_choice", ("What is 2+3?", "B. 5"), ("Name B and its count.", "B. 5")),
    ("multiple_choice", ("What is 2+3?", "(B) 5"), ("What is the limit of 1/x at 0?", "D. N. E.")),
    ("multiple_choice", ("Compute 10 in base 2", "A"), ("Compute 10 in base 16", "A")),
    ("multiple_choice", ("A triangle has base 12. What is its area?", "B"), ("Convert 11 to base twelve.", "B")),
    ("multiple_choice", ("What is $9_{10}+2_{10}$?", "B"), ("What is $9_{16}+2_{16}$?", "B")),
    ("multiple_choice", ("A letter costs 2. What do 3 cost?", "B"), ("Which letter comes after A?", "B")),
    ("multiple_choice", ("Which of the following is 10 in base 16?", "A"), ("把10写成十六进制", "A")),
    ("true_false", ("Is 7 prime?", "Y"), ("Is it x or y that is larger?", "y")),
    ("true_false", ("7是质数吗？", "N"), ("Which letter is the variable?", "n")),
    ("true_false", ("7是质数吗？", "是的，7是质数"), ("7加1是多少？", "对，8")),
]


@pytest.mark.parametrize(("expected", "of_it", "opened"), PAIRS)
def test_a_format_and_the_nearest_open_problem(expected, of_it, opened):
    assert classify(frame([(*of_it, None), (*opened, None)]))["format"].to_list() == [expected, "open"]


def test_order_ids_and_evidence():
    rows = frame([(None, None, None), ("Compute 1+1.", "2", None), ("Which is it?\nA. 1\nB. 2\nC. 3", "B", None)])
    found = classify(rows)
    assert found.rows() == [
        ("0", "open", None), ("1", "open", None), ("2", "multiple_choice", "options A to C in the text; gold B"),
    ]
    assert classify(rows.drop("options"))["format"].to_list() == found["format"].to_list()
    assert classify(rows.clear()).height == 0
    with pytest.raises(ValueError, match="answer"):
        classify(rows.drop("answer"))


def test_boolean_gold_wins_over_wording_and_options():
    golds = ("Yes", "no.", "TRUE", "$\\text{False}$", "\\boxed{Yes}", "否")
    rows = [("Compute whether 3 > 2.", gold, None) for gold in golds]
    rows += [("Is it? (A) Yes (B) No", "Yes", None), ("Is it?", "B", ["True", "False"])]
    assert set(classify(frame(rows))["format"]) == {"true_false"}


def test_decide_follows_the_actions_and_keeps_what_they_do_not_name():
    rows = frame([("Compute 1+1.", "2", None), ("Is 7 odd?", "Yes", None), ("Prove that 1 < 2.", "", None)])
    found = decide(rows, {"true_false": "drop", "open": "keep"})
    assert found["keep"].to_list() == [True, False, True]
    assert found["reason"].to_list() == [None, "true_false", None]
    assert found.columns == ["id", "keep", "reason", "evidence"]
    assert decide(rows, {"open": "drop"})["reason"].to_list() == ["open", None, None]


@pytest.mark.parametrize("actions", [{"mcq": "drop"}, {"proof": "delete"}, {"proof": "reformulate"}])
def test_unknown_format_or_action(actions):
    with pytest.raises(ValueError, match=next(iter(actions))):
        decide(frame([("Compute 1+1.", "2", None)]), actions)


def test_reformulate():
    rows = frame([
        ("What is $2+3$? $\\textbf{(A) } 4 \\qquad \\textbf{(B) } 5 \\qquad \\textbf{(C) } 6$", "B", None),
        ("计算 1+1 的结果是（ ）\nA. 1\nB. 2\nC. 3", "B", None),
        ("How many primes are below 10?", "C", ["A) 2", "B) 3", "C) 4"]),
        ("Find 3^2.\nA. 8\nB. 9\nC. 10", "9", None),
        ("Which of the following is prime?\nA. 8\nB. 7\nC. 10", "B", None),
        ("What is x? (A) 1 (B) 2 (C) both of 1 and 2", "C", None),
        ("What is x in 2x = 4? (A) 1 (B) 2 (C) 3", "E", None),
        ("What is the colour of 5? (A) red (B) green (C) blue", "C", None),
        ("已知 a>b, 则（ ）\nA. a+1>b\nB. a<b\nC. a=b", "A", None),
        ("What is the area in the figure? (A) 1 (B) 2 (C) 3", "A", None),
        ("Compute 1+1.", "2", None),
        ("What is 2+3?\n* A. 4\n* B. 5\n* C. 6", "B", None),
        ("What is 2+3?\n- (A) 4\n- (B) -5", "(B) -5", None),
        ("What is 2+3?\nF. 3\nG. 4\nH. 6\nJ. 5\nK. 7", "J", None),
        ("What is 2+3?\n|A|4|\n|B|5|", "B", None),
        ("方程2x=6的解是（ ）甲、2 乙、3 丙、4", "乙", None),
    ])
    opened = reformulate(rows)
    assert opened.select("id", "problem", "answer").rows() == [
        ("0", "What is $2+3$?", "5"), ("1", "计算 1+1 的结果是____", "2"), ("2", "How many primes are below 10?", "4"),
        ("3", "Find 3^2.", "9"), ("10", "Compute 1+1.", "2"),
        ("11", "What is 2+3?", "5"), ("12", "What is 2+3?", "-5"),
        ("13", "What is 2+3?", "5"), ("14", "What is 2+3?", "5"), ("15", "方程2x=6的解是____", "3"),
    ]
    assert opened["options"].is_null().all()
    decisions = decide(rows, {"multiple_choice": "reformulate"})
    assert decisions.filter("keep")["id"].to_list() == opened["id"].to_list()
    assert decisions["reason"].drop_nulls().to_list() == ["multiple_choice"] * 6
    assert [text.split("not reformulated: ")[1][:12] for text in decisions.filter(~pl.col("keep"))["evidence"]] == [
        "the stem spe", "the option b", "gold E is no", "the option b", "the blank st", "the stem nee",
    ]
    assert classify(opened)["format"].unique().to_list() == ["open"]


PIECES = st.sampled_from(
    ["(A)", "B.", "(C) 3", "①", "②", "$", "}", "\\textbf{", "\n", "Which", "find ", "true or false", "prove that ",
     "如图", "( )", "1", "=", "or", "Yes", "，", "____", "\x00", "\u2028", "[asy]", "![", " ", "x", "\\"]
)  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.lists(PIECES, max_size=25).map("".join)
TEXTS = st.none() | TEXT


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS, st.none() | st.lists(TEXTS, max_size=3)), max_size=6))
def test_any_input_has_one_format_in_order(rows):
    problems = frame(rows)
    found = classify(problems)
    assert found["id"].to_list() == problems["id"].to_list()
    assert set(found["format"]) <= set(FORMATS)
    kept = decide(problems, {"multiple_choice": "reformulate"}).filter("keep")["id"].to_list()
    assert reformulate(problems)["id"].to_list() == kept


@pytest.mark.parametrize(
    "unit",
    ["(", "A. ", " ", "\n", "若", "$", "①②", "\\text{", "use ", "B)\\quad ", "(A) x (B) y ", "\x00\u2028", "A、",
     "such that ", "{A} ", "|A|1", "<A>", "'A) ", "甲、1", "F. G. ", "第一:", "A\n\n", "是否"],
)
@pytest.mark.timeout(120)  # seconds here; a rule that is not linear takes hours
def test_a_megabyte_has_a_format(unit):
    text = unit * (1_000_000 // len(unit))
    assert set(classify(frame([(text, "B", None), (text + "(A) 1 (B) 2", text, None)]))["format"]) <= set(FORMATS)


@pytest.mark.skipif(not SHARED.exists(), reason="no shared cases beside the repository")
def test_shared_cases():
    cases = [json.loads(line) for line in (SHARED / "cases" / "formats.jsonl").read_text().splitlines()]
    found = classify(frame([(c["problem"], c["answer"], c["options"]) for c in cases]))
    assert [c["id"] for c, kind in zip(cases, found["format"]) if kind != c["expected"]] == []
