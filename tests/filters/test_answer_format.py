"""Formats of problems: every style of option, the traps that look like one, and what `decide` and `reformulate` do."""

import json
import time
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.filters import answer_format
from assay.filters.answer_format import FORMATS, classify, decide, reformulate

SHARED = Path(__file__).parents[2].parent / "shared"
SCHEMA = {"id": pl.String, "problem": pl.String, "answer": pl.String, "options": pl.List(pl.String)}

# (problem, gold, options field)
CASES = {
    "multiple_choice": [
        ("Is it more? A. 3 B. 5", "5", None),
        ("What is x?\nAnswer Choices: 10, 20, 30", "10", None),
        ("What is 2+3? (A) 4 (B) 5 (C) 6 (D) 7", "B", None),
        ("Sum? $\\textbf{(A) } 4 \\qquad \\textbf{(B) } 5 \\qquad \\textbf{(C) } 6$", "B", None),
        ("Sum? $\\mathrm{(A)\\ } 4 \\qquad \\mathrm{(B)\\ } 5 \\qquad \\mathrm{(C)\\ } 6$", "5", None),
        ("Sum? $(\\mathrm{A})\\ 4 \\quad (\\mathrm{B})\\ 5 \\quad(\\mathrm{C})\\ 6$", None, None),
        ("Sum? $\\text{(A)}\\ 4\\qquad\\text{(B)}\\ 5\\qquad\\text{(C)}\\ 6$", "C", None),
        ("If $\\frac{x-1}{3}=k$ and $k=3$, what is the value of $x$ ? A) 2 B) 4 C) 9 D) 10", "D", None),
        ("If x=3 what is 2x? A)2 B)4 C)6 D)10", "C", None),
        ("What is it?\nA: 1\nB: 2\nC: 3", "A", None),
        ("What is it?\nA 10\nB 20\nC 30\nD 40", "A", None),
        ("What is it?\n- A. ten\n- B. twenty\n- C. thirty", "B", None),
        ("What is it?\n**A.** ten\n**B.** twenty\n**C.** thirty", "B", None),
        ("What is it? A．1 B．2 C．3 D．4", "B", None),
        ("计算1+1的结果是（　　）\nA．1\nB．2\nC．3\nD．4", "B", None),
        ("计算1+1的结果是（ ）A、1 B、2 C、3 D、4", "2", None),
        ("计算结果是（ ）Ａ．1 Ｂ．2 Ｃ．3 Ｄ．4", "B", None),
        ("计算结果是（ ）（A）1 （B）2 （C）3 （D）4", "B", None),
        ("下列说法正确的是：①1>2；②2>1；③3>2", "②③", None),
        ("下列说法正确的有( ) ① a ② b ③ c ④ d", None, None),
        ("Which of the following are prime? 1) 2 2) 4 3) 9", "1", None),
        ("Which of the following is true?\n1. 2>3\n2. 3>2\n3. 4>5", "2", None),
        ("Which of the following is true?\n(i) 2>3\n(ii) 3>2\n(iii) 4>5", "ii", None),
        ("Which is even?\na. 3\nb. 4\nc. 5", "b", None),
        ("Which is even?\n(a) 3\n(b) 4\n(c) 5", "(b)", None),
        ("Pick the even number. [A] 3 [B] 4 [C] 5", "B", None),
        ("The answer is? Option A: 3 Option B: 4 Option C: 5", "B", None),
        ("What is 1+1?<br>A. 1<br>B. 2<br>C. 3", "B", None),
        ("Which is a function? Ⓐ x Ⓑ y Ⓒ z", "Ⓑ", None),
        ("What is the capital? (A) x (B) y (C) z (D) w", "(D)", None),
        ("已知双曲线的离心率为2，则下列结论正确的有 A. a=1 B. b=2 C. c=3 D. d=4", "BCD", None),
        ("What is 1+1?", "2", ["1", "2", "3"]),
        ("Which of the following statements is correct?", "D", None),
        ("FM stands for", "B", None),
        ("下列命题正确的是（ ）", "C", None),
        ("What is $x$? \\textbf{A.} 1 \\textbf{B.} 2 \\textbf{C.} 3", "2", None),
        ("What is x? A. $\\frac12$ B. $\\frac13$", "A", None),
    ],
    "true_false": [
        ("Is 7 odd?", "Yes.", None),
        ("Is 7 odd?", "\\text{Yes}", None),
        ("Decide.", "TRUE", None),
        ("3大于2吗？", "是", None),
        ("判断对错：2是质数。", "√", None),
        ("True or false: 2 is prime.", "T", None),
        ("True or false: 2 is prime.", None, None),
        ("Answer yes or no: is 4 prime?", "", None),
        ("Is 221 prime?", None, None),
        ("50元够吗？", "够", None),
        ("Does the series converge?", "No, it diverges by comparison.", None),
        ("Is it true that 2+2=4?", "yes", ["Yes", "No"]),
    ],
    "proof": [
        ("Find the limit.", "证明略", None),
        ("Let n be odd. Show that n^2-1 is divisible by 8.", "", None),
        ("Using induction, prove that 1+...+n=n(n+1)/2.", "n(n+1)/2", None),
        ("已知a>b，证明：a+1>b+1。", None, None),
        ("Describe the end behaviour of the function.", "", None),
        ("Explain how to add fractions.", None, None),
        ("Justify each step.", "", None),
    ],
    "multi_part": [
        ("a) Find x if x+1=2. b) Find y if y+1=3.", "1; 2", None),
        ("1. Compute 2+2. 2. Compute 3+3.", "4, 6", None),
        ("已知f(x)=x^2。（1）求f(2)；（2）求f(3)。", "4；9", None),
        ("Simplify each: (a) 3/6 (b) 4/8 (c) 2/6", "1/2; 1/2; 1/3", None),
        ("Part A: What is 2+2? Part B: What is 3+3?", "4 and 6", None),
        ("(i) What is 2+2? (ii) What is 3+3?", "(i) 4 (ii) 6", None),
        ("(A) Find x if x+1=2. (B) Find y if y+1=3.", "1; 2", None),
    ],
    "figure": [
        ("The bar chart below shows the sales of 2 shops over 5 days. Find the total sales.", "40", None),
        ("Find the perimeter of the figure shown below.", "12", None),
        ("In the figure below, find x.", "45", None),
        ("如图，求阴影部分的面积。", "12", None),
        ("<img src='x'> Find x.", "1", None),
        ("\\includegraphics[width=3cm]{a} Find x", "1", None),
        ("The graph of f is shown below. What is f(2)?", "3", None),
        ("Find the shaded area. [image: q3]", "3", None),
    ],
    "open": [
        ("Let g be a map with (1) g(1)=4 and (2) g(2)=3, from which we know it. Find g(g(2)) - 1.", "2", None),
        ("下列说法：①2>1；②3>2；③1>2，其中正确的个数是", "2", None),
        ("Find all f such that (A) f(0)=1 (B) f(x+y)=f(x)f(y) (C) f is continuous.", "e^x", None),
        ("Label the angles (A), (B) and (C) with 30 and 60 degrees first. Find the third.", "90", None),
        ("P(A)=0.3, P(B)=0.5, P(C)=0.2, events independent. Find P(A and B and C).", "0.03", None),
        ("Let P (A) = 0.3, P (B) = 0.5, P (C) = 0.2. Find P(A or B).", "0.65", None),
        (
            "Plan A: $20 a month. Plan B: $30 a month. Plan C: $10 a month plus 5. What is the total of all three?",
            "65",
            None,
        ),
        (
            "Store A: 3 for $5\nStore B: 4 for $6\nStore C: 5 for $7\nFind the smallest unit price in dollars.",
            "1.4",
            None,
        ),
        (
            "Circle O meets line l at A. The tangent at A meets m at B. The line OB meets the circle at C. Find OC.",
            "5",
            None,
        ),
        ("Points A(1,2), B(3,4), C(5,6) are given. Find the area.", "0", None),
        ("从A、B、C三个景点中随机选一个，选中B的概率是多少？", "1/3", None),
        ("A: 3 apples. B: 4 apples. C: 5 apples. How many apples in all?", "12", None),
        (
            "Vertices of a triangle: A. Which side is longest in triangle ABC with AB=3, BC=4, CA=6?",
            "CA",
            None,
        ),
        ("In triangle ABC with A=30, B=60, which vertex has the right angle?", "C", None),
        ("Team A scored 3 and team B scored 5. Which team won?", "B", None),
        (
            "Find all functions f such that (1) f(0)=1; (2) f(x+y)=f(x)f(y); (3) f is continuous.",
            "f(x)=e^{cx}",
            None,
        ),
        ("Find all f such that (a) f(0)=1, (b) f(x+y)=f(x)+f(y).", "none exist: 0=1", None),
        ("Compute 1. 5 + 2. 5", "4", None),
        ("How many of these are correct: (1) 2>1 (2) 3>2 (3) 1>2?", "2", None),
        ("How many of the following are true? ① 2>1 ② 3>2 ③ 1>2", "2", None),
        ("Convert to base 10: 1A3 in hexadecimal.", "419", None),
        ("Solve 2x = 4", "2", None),
        ("A 3 by 4 grid. Let B be the top.", "7", None),
        ("Solve |x|=-1", "No solution", None),
        ("How many?", "None", None),
        ("Is n even or odd?", "even", None),
        ("What is true north in degrees?", "0", None),
        ("How many primes are below 10? Prove your answer.", "4", None),
        ("Show your work: compute 3*4.", "12", None),
        ("It can be proved that p is prime. Find p if p+1=4.", "3", None),
        ("Prove that f is one-to-one. Then find f(2) given f(x)=x+1.", "3", None),
        ("请出示身份证明，编号为12的两倍是多少？", "24", None),
        ("Determine, with proof, the largest n with n^2<50.", "7", None),
        ("The show that starts at 5 lasts 2 hours. When does it end?", "7", None),
        ("f(1)=2, f(2)=3, f(3)=5. Find f(1)+f(2).", "5", None),
        ("See eq. (1) x+y=3 and (2) x-y=1. Find x.", "2", None),
        (
            "In the figure, ABC is a right triangle with AB=3 and BC=4, right angle at B. Find AC.",
            "5",
            None,
        ),
        ("如图，在△ABC中，AB=3，BC=4，∠B=90°，求AC。", "5", None),
        ("Can you figure out 2+2?", "4", None),
        ("A three-figure number has digits 1,2,3 in order. What is it?", "123", None),
        ("The graph of y=x^2 is shown below. Find its vertex.", "(0,0)", None),
        ("Draw a diagram and find 3+4.", "7", None),
        ("Find the slope of the graph of y=3x.", "3", None),
    ],
}


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
    ])
    opened = reformulate(rows)
    assert opened.select("id", "problem", "answer").rows() == [
        ("0", "What is $2+3$?", "5"), ("1", "计算 1+1 的结果是____", "2"), ("2", "How many primes are below 10?", "4"),
        ("3", "Find 3^2.", "9"), ("10", "Compute 1+1.", "2"),
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
     "such that "],
)
def test_a_megabyte_is_read_in_seconds(unit):
    text = unit * (1_000_000 // len(unit))
    start = time.process_time()
    classify(frame([(text, "B", None), (text + "(A) 1 (B) 2", text, None)]))
    assert time.process_time() - start < 8


def test_speed():
    rows = [row for rows in CASES.values() for row in rows]
    problems = frame([rows[i % len(rows)] for i in range(10_000)])  # most of these need to be read singly
    start = time.process_time()
    classify(problems)
    assert time.process_time() - start < 10


@pytest.mark.skipif(not SHARED.exists(), reason="no shared cases beside the repository")
def test_shared_cases():
    cases = [json.loads(line) for line in (SHARED / "cases" / "formats.jsonl").read_text().splitlines()]
    found = classify(frame([(c["problem"], c["answer"], c["options"]) for c in cases]))
    assert [c["id"] for c, kind in zip(cases, found["format"]) if kind != c["expected"]] == []
