"""Golds: the one form they are brought to, and which of them no program can verify."""

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.filters.answers import REASONS, decide, is_prose, normalise_gold
from assay.filters.options import named_labels, runs

SOURCES = Path(__file__).parents[2].parent / "shared" / "data" / "sources"


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\\frac{1}{2}", r"\frac{1}{2}"),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"$\boxed{42}$", "42"),
        ("He has 3.\n#### 1,234", "1234"),
        ("-1,234.50", "-1234.50"),
        ("1,23", "1,23"),
        ("42.", "42"),
        ("3...", "3..."),
        (r"\(x=1\)", "x=1"),
        ("$1$, $2$", "$1$, $2$"),
        (r"$\$5$", r"\$5"),
        (r"\boxed{1}, \boxed{2}", r"\boxed{1}, \boxed{2}"),
        (r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        ("１２", "12"),
        (None, ""),
        ("N/A", ""),
        ("$$", ""),
    ],
)
def test_normalise_gold(answer, gold):
    assert normalise_gold(answer) == gold


@settings(deadline=None)
@given(st.lists(st.sampled_from(["$", "####", "\\boxed{", "}", ".", ",", "1", "234", "x", " ", "(", ")"]), max_size=12))
def test_a_normalised_gold_is_its_own_normal_form(pieces):
    once = normalise_gold("".join(pieces))
    assert normalise_gold(once) == once


@pytest.mark.parametrize(
    ("gold", "labels"),
    [
        ("B", ("B",)), ("(b)", ("b",)), (r"\text{(A), C}", ("A", "C")), ("ACD", ("A", "C", "D")), ("①③", ("①", "③")),
        ("1,3", ("1", "3")), ("I and III only", ("I", "III")), ("Option B", ("B",)), ("15", ()), ("ab", ()),
        ("12 cm", ()), ("AB=5", ()), ("bad", ()), ("CA", ()),
    ],
)  # fmt: skip
def test_named_labels(gold, labels):
    assert named_labels(gold) == labels


def test_runs_of_labels():
    (run,) = runs(r"Sum? $\textbf{(A) } 4 \qquad \textbf{(B) } \frac{1}{2} \qquad \textbf{(C) } 6$")
    assert (run.labels, run.values) == (("A", "B", "C"), ("4", r"\frac{1}{2}", "6"))
    assert runs("f(1) = 2, f(2) = 3, P(A) = 1, P(B) = 2, A_{(a)}") == []


# (problem, gold, reason)
CASES = [
    ("How many?", "", "empty"),
    ("How many?", None, "empty"),
    ("How many?", r"\boxed{}", "empty"),
    ("Does it converge?", "The sequence is convergent.", "prose"),
    ("How many?", "proof", "prose"),
    ("How many?", "not found", "prose"),
    ("How many?", "notfound", "prose"),
    ("When?", "The rocket reaches its maximum height of 500 feet 10 seconds after lift-off.", "prose"),
    ("证明题", "见证明", "prose"),
    ("Prove it.", "QED", "prose"),
    ("Find.", r"\begin{bmatrix}1\end{bmatrix}, \begin{bmatrix}2\end{bmatrix}, \begin{bmatrix}3\end{bmatrix}", None),
    ("Expand.", "$abc + def + ghi + jkl + mno + pqr$, $x$", None),
    ("How many oranges?", "12 (oranges)", None),
    ("How long?", "3 hours 20 minutes", None),
    ("多少个？", "12个", None),
    ("多长时间？", "3小时20分钟", None),
    ("Solve.", "no solution", None),
    ("Simplify.", "x", None),
    ("Which angle?", r"\angle ABC", None),
    ("Count.", "twelve", None),
    ("Find the inverse.", r"$$\left[\begin{array}{cc}a & b \\ c & d\end{array}\right]$$", None),
    ("Is 7 odd?", "Yes", None),  # the format's affair
    ("Find x.", "1" * 100, None),
    ("Find x.", "1" * 101, "over_long"),
    ("Find x. (Answer: 42)", "42", "stated_in_problem"),
    ("Find x. Hint: the answer is 42.", "42", "stated_in_problem"),
    ("Find x. Hint: the answer is 42 apples.", "42", "stated_in_problem"),
    (r"Find x. The answer is $\frac{1}{2}$.", r"\frac{1}{2}", "stated_in_problem"),
    (r"Compute 6*7. \boxed{42}", "42", "stated_in_problem"),
    ("已知x+1=3，求x。答案：2", "2", "stated_in_problem"),
    ("若 x+1=3, 则 x=2.", "2", "stated_in_problem"),
    ("Find x. The answer is 420.", "42", None),
    ("Find x. The answer is 4.2", "4", None),
    ("There are 42 apples in each of 42 bags. How many bags?", "42", None),
    ("Find x (answer in cm: 3 digits).", "42", None),
    ("Solve for x: x=5", "5", None),
    ("Find x.", "5 or 7", "several_golds"),
    ("Find x.", r"5 \text{ or } 7", "several_golds"),
    ("求x。", "5或7", "several_golds"),
    ("Find all values of x.", "5 or 7", None),
    ("Find x.", "0.5 or 1/2", None),
    ("Find x.", "x=1 or x=2", None),
    ("Find x.", "1 and 2", None),
    ("Which statement is correct?", "B", "letter_without_options"),
    ("A train moves at what speed?", "A", "letter_without_options"),
    ("Point B is marked. Which of the following is correct?", "B", "letter_without_options"),
    ("Which is best?", "(c)", "letter_without_options"),
    ("下列说法正确的是（ ）", "AC", "letter_without_options"),
    ("Which is odd? (A) 1 (B) 2", "A", None),
    ("In triangle ABC, which vertex has the right angle?", "B", None),
    ("Name the vitamin: is it vitamin C or vitamin D?", "C", None),
]


def frame(rows):
    schema = {"id": pl.String, "problem": pl.String, "answer": pl.String}
    return pl.DataFrame([(str(i), *row) for i, row in enumerate(rows)], schema=schema, orient="row")


def test_own_cases():
    found = decide(frame([(problem, gold) for problem, gold, _ in CASES]))
    wrong = [(case, row) for case, row in zip(CASES, found.iter_rows()) if row[2] != case[2]]
    assert not wrong
    assert found["keep"].to_list() == [reason is None for _, _, reason in CASES]
    assert found.filter("keep")["evidence"].null_count() == found["keep"].sum()
    assert {reason for _, _, reason in CASES} | {"gold_unparsable"} == {None, *REASONS}


def test_optional_columns_and_the_limit():
    rows = frame([("Find x.", "1 + "), ("Write a function.", ""), ("Which?", "B"), ("Find x.", "123")]).with_columns(
        gold_fault=pl.Series(["ends in an operator", None, None, None]),
        kind=pl.Series(["math", "code", "math", "math"]),
        options=pl.Series([None, None, ["1", "2"], None]),
    )
    assert decide(rows)["reason"].to_list() == ["gold_unparsable", None, None, None]
    assert decide(rows)["evidence"][0] == "ends in an operator"
    assert decide(rows, max_chars=2)["reason"].to_list()[3] == "over_long"
    assert decide(rows.clear()).height == 0


def test_wrong_calls():
    with pytest.raises(ValueError, match="answer"):
        decide(pl.DataFrame({"id": ["1"], "problem": ["x"]}))
    with pytest.raises(ValueError, match="max_chars"):
        decide(frame([("x", "1")]), max_chars=0)


def test_megabyte_golds_and_hints_are_read_in_time():
    texts = [unit * (1_000_000 // len(unit)) for unit in ("answer is ", "\\boxed{", " ", "or ", "$", ",", "1.")]
    assert decide(frame([(text, gold) for text in texts for gold in (text, "B", "7")])).height == 21


def gold_of(row: dict) -> str:
    value = next(row[name] for name in ("final_answer", "answer", "target", "Answer") if name in row)
    return ", ".join(value) if isinstance(value, list) else str(value)


@pytest.mark.skipif(not SOURCES.exists(), reason="no shared sources beside the repository")
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("gsm8k_train", 0), ("mawps", 0), ("svamp", 0), ("cmath", 0), ("carp_en", 0), ("olympiadbench", 0.01),
        ("asdiv", 0.03),
    ],
)
def test_free_answer_sources_lose_next_to_nothing(name, most):
    rows = [json.loads(line) for line in (SOURCES / f"{name}.jsonl").read_text().splitlines()]
    keys = ("body", "question", "content", "input", "Body", "Question")
    texts = [" ".join(row.get(key) or "" for key in keys) for row in rows]
    found = decide(frame(list(zip(texts, map(gold_of, rows)))))
    assert (~found["keep"]).mean() <= most, found.filter(~pl.col("keep")).rows()


def test_prose_counts_words_outside_the_mathematics():
    assert not is_prose(r"$f(x) = a \text{ for } x > 0$ and $b$ otherwise")
    assert is_prose(r"the function is $x$ whenever the variable is positive")
