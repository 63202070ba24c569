"""Comparison without a worker: what structure, numbers and words settle, and what is left to mathematics."""

from dataclasses import replace

import pytest

from assay.pipelines.answer_text import canonical
from assay.pipelines.equivalence import Policy, compare, list_length


def same(a, b, **policy):
    rule = replace(Policy(), **policy)
    one, other = compare(canonical(a), canonical(b), rule), compare(canonical(b), canonical(a), rule)
    if rule.complete_lists:
        assert one == other, "not symmetric"
    return one


def test_lists():
    assert same("1, 2", "2 and 1")
    assert same("\\pm 3", "-3, 3")
    assert same("1, 2", "1") is False
    assert same("1331 and 1728", "1728") is False
    assert same("1, 2", "2, 1", ordered_lists=True) is False
    assert same("1, 2", "2", complete_lists=False)
    assert same("1, 2", "2, 3", complete_lists=False) is False
    assert same("n=2, 3", "3, 2")
    assert same("x=1, y=2", "y=2, x=1")
    assert same("x=1, y=2", "x=2, y=1") is False
    assert list_length(canonical("3, 5, 7")) == 3
    assert list_length(canonical("1,234")) == 2
    assert list_length("7") == 0


def test_points_intervals_and_inequalities():
    assert same("(2,4)", "(4,2)") is False
    assert same("(1,2)", "[1,2]") is False
    assert same("(0, 12.5)", "0 < x < 12.5")
    assert same("(0, 12.5)", "0 < x < 12.5", interval_as_inequality=False) is False
    assert same("(-\\infty, 3]", "3 \\ge x")
    assert same("x < 3", "y < 3") is False
    assert same("x \\ne 1", "(-\\infty,1)\\cup(1,\\infty)")
    assert same("\\{x \\mid x>2\\}", "(2,\\infty)")
    assert same("a>b", "b<a")
    assert same("a>b", "b>a") is not True
    assert same("(1,2)", "1, 2")
    assert same("(1,2)", "\\{1,2\\}") is False
    assert same("{1,2}", "2, 1")


def test_units_percent_and_base():
    assert same("12 cm", "12 m") is False
    assert same("12 cm", "12")
    assert same("12 cm", "12", units="required") is False
    assert same("12 cm", "12 m", units="ignored")
    assert same("3 hours", "180 minutes")
    assert same("10", "10\\%")
    assert same("0.1", "10\\%")
    assert same("1\\%", "100\\%") is False
    assert same("10", "10\\%", percent="required") is False
    assert same("\\sqrt{2}", "\\sqrt{2}\\%")
    assert same("\\sqrt{2}", "\\sqrt{2}\\%", percent="required") is False
    assert same("\\frac{1}{3}", "33.333\\%")
    assert same("\\frac{1}{3}", "33.3\\%") is False
    assert same("20°C", "20°F") is False
    assert same("20°C", "20 degrees")
    assert same("60°", "60 rad") is False
    assert same("\\$5", "€5") is False
    assert same("\\$5", "5")
    assert same("\\$5", "5", units="required") is False
    assert same("211_5", "211") is False
    assert same("211_5", "56", base="optional")
    assert same("1010_2", "12_8")
    assert same("11_{10}", "11")
    assert same("11_2", "11") is False


def test_decimals():
    assert same("\\frac{1}{3}", "0.33333")
    assert same("\\frac{1}{3}", "0.333") is False
    assert same("\\frac{1}{3}", "0.333", decimal_digits=3)
    assert same("0.0000001", "0.0000002") is False
    assert same("1000.99", "1000,99")
    assert same("\\frac{1}{2004!}", "\\frac{1}{2006!}") is False


def test_words_and_letters():
    assert same("odd $n$", "even $n$") is False
    assert same("\\text{no solution}", "\\emptyset")
    assert same("是", "yes")
    assert same("甲", "乙") is False
    assert same("B", "(B) 3.3 MeV")
    assert same("B", "(B) 3.3 MeV", letters=False) is not True
    assert same("A", "(A) or (B)") is False
    assert same("AC", "C, A")
    assert same("AC", "A") is False
    assert same("ABC", "C, B, A", ordered_lists=True) is not True  # an order of the three


def test_assignments():
    assert same("x=5", "5")
    assert same("2 = x", "x=2")
    assert same("x=5", "y=5") is False
    assert same("f(x)=3", "g(x)=3") is False
    assert same("x = \\frac12 = 0.5", "0.5")
    assert same("\\frac{1}{4} \\approx 0.3", "0.25")


def test_an_approximation_is_its_first_side_or_that_side_rounded():
    assert same("5", "5 \\approx 7")
    assert same("7", "5 \\approx 7") is False
    assert same("7", " \\approx ".join(map(str, range(150)))) is False
    assert same("3.14", "22/7 \\approx 3.142857 \\approx 3.14")
    assert same("3.15", "22/7 \\approx 3.15") is False
    assert same("6", "5.9 \\approx 6")
    assert same("5", "5.9 \\approx 5") is False  # cut off, not rounded
    assert same("1.45", "1.4 \\approx 1.45") is False  # more digits than it rounds
    assert same("0.4", "\\ln2 \\approx 0.9") is not True
    assert same("33.3\\%", "\\frac13 \\approx 33.3\\%")
    assert same("x=2", "x \\approx 2 \\approx 7")
    assert same("7", "x \\approx 2 \\approx 7") is False
    assert same("1.4, 2.3", "x \\approx 1.4, y \\approx 2.3")
    assert same("(3.14, 2)", "(22/7 \\approx 3.14, 2)")


def test_many_values_are_no_single_answer():
    for several in ("5 or 7", "5, 7", "5 = 7", "\\{5, 7\\}", "5 \\ne 7", "x=5, x=7", "5 \\text{ (or } 7)"):
        assert not same("5", several), several


@pytest.mark.parametrize(
    ("a", "b"), [("\\sqrt{8}", "2\\sqrt{2}"), ("ab", "ba"), ("y=2x", "2x-y=0"), ("x^2<4", "(-2,2)")]
)
def test_mathematics_is_left_open(a, b):
    assert same(a, b) is None


def test_matrices():
    column = "\\begin{pmatrix}1\\\\2\\end{pmatrix}"
    assert same(column, "\\left[\\begin{array}{c}1 \\\\ 2\\end{array}\\right]")
    assert same(column, "\\begin{pmatrix}1 & 2\\end{pmatrix}") is False
    assert same(column, "(1, 2)")


def test_constants_far_apart_need_no_mathematics():
    assert same("28", "\\sqrt{34}+3\\sqrt{10}") is False
    assert same("2\\pi", "\\frac{\\pi}{2}") is False
    assert same("\\sqrt{2}", "1.4142") is None  # near: for the worker to decide
    assert same("2\\pi", "6.2831", decimal_digits=3) is None
