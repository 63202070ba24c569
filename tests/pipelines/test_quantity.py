from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.pipelines.answer_text import canonical
from assay.pipelines.quantity import ExpressionTooLarge, decimal_matches, quantity, split_unit


def value(text):
    found = quantity(canonical(text))
    return found and found.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,234,567.5", Fraction(2469135, 2)),
        ("2\\frac{1}{2}", Fraction(5, 2)),
        ("-1 1/4", Fraction(-5, 4)),
        ("\\frac12", Fraction(1, 2)),
        ("1.5e-3", Fraction(3, 2000)),
        ("3 \\times 10^{2}", Fraction(300)),
        ("2^3!", Fraction(64)),
        ("2^{-2}", Fraction(1, 4)),
        ("\\sqrt{49}", Fraction(7)),
        ("\\binom{5}{2}", Fraction(10)),
        ("0.1\\overline{6}", Fraction(1, 6)),
        ("7:6", Fraction(7, 6)),
        ("7比6", Fraction(7, 6)),
        ("0.\\dot3", Fraction(1, 3)),
        ("0.1\\dot{6}", Fraction(1, 6)),
        ("0.\\dot{1}4285\\dot{7}", Fraction(1, 7)),
        ("0.\\dot35", None),
        ("C_5^2", Fraction(10)),
        ("2 million", Fraction(2_000_000)),
        ("3.5万元", Fraction(35_000)),
        ("(1+2)(3)", Fraction(9)),
        ("055", Fraction(55)),
        ("\\sqrt{2}", None),
        ("x", None),
        ("1/0", None),
        ("2^{1/2}", None),
        ("3 +", None),
    ],
)
def test_exact_values(text, expected):
    assert value(text) == expected


@settings(deadline=None)
@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6))
def test_every_fraction_reads_back(numerator, denominator):
    sign = "-" if numerator < 0 else ""
    assert value(f"{sign}\\frac{{{abs(numerator)}}}{{{denominator}}}") == Fraction(numerator, denominator)


@settings(deadline=None)
@given(st.integers(-(10**9), 10**9))
def test_thousands_separators_change_nothing(number):
    assert value(f"{number:,}") == number == value(str(number))


@pytest.mark.parametrize(
    "text", ["9^{9^9}", "9**9**9", "(10^6)!", "10^{10^{10}}+1", "\\binom{10^9}{10^8}", "2^{-10^9}"]
)
def test_what_would_be_too_large_is_refused_unevaluated(text):
    with pytest.raises(ExpressionTooLarge):
        quantity(canonical(text))


def test_large_but_bounded_is_exact():
    assert value("2024^{4046}") == 2024**4046
    assert value("1^{9^9}") == 1


def test_units_convert_or_conflict():
    metre, kilometre = quantity("1000 m"), quantity("1 km")
    assert metre.value * metre.unit.factor == kilometre.value * kilometre.unit.factor
    assert quantity("5 cm^2").unit == quantity(canonical("5 square centimeters")).unit != quantity("5 cm").unit
    assert quantity(canonical("3\\,\\mathrm{m\\,s^{-1}}")).unit == quantity("3 m/s").unit
    assert quantity(canonical("3\\frac{m}{s^2}")).unit == quantity("3 m/s^2").unit
    assert quantity(canonical("\\$3 per hour")).unit == quantity("3 dollars/h").unit
    assert quantity("120千米/时").unit == quantity("120 km/h").unit
    assert split_unit("2\\frac{a}{b}") == ("2\\frac{a}{b}", None)
    assert split_unit("12 paper clips") == ("12", None)
    assert split_unit("42 is not the answer") == ("42 is not the answer", None)
    assert split_unit("4t") == ("4t", None)  # a product, not four tonnes
    assert split_unit("x dx") == ("x dx", None)


def test_amounts_of_one_kind_add_up():
    minutes = quantity("1 hour 30 minutes")
    assert (minutes.value, minutes.unit) == (90, quantity("1 min").unit)
    assert quantity("1小时30分钟").value == 90
    assert quantity("5 m 3 s") is None
    assert quantity("30 minutes 1 hour") is None


def test_a_base_is_part_of_the_number():
    assert quantity("52_8").value == 42
    assert quantity("52_8").base == 8
    assert quantity("59_8") is None
    assert quantity("FF_{16}").value == 255


def test_a_decimal_stands_for_what_rounds_or_cuts_to_it():
    third = Fraction(1, 3)
    assert decimal_matches(third, quantity("0.33333"), 5)
    assert decimal_matches(Fraction(2, 3), quantity("0.66666"), 5)
    assert decimal_matches(-third, quantity("-0.33333"), 5)
    assert not decimal_matches(third, quantity("0.33334"), 5)
    assert not decimal_matches(third, quantity("0.3333"), 5)  # four digits are too few
