import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.pipelines.answer_text import canonical, is_prose, is_text, to_latex


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("\\dfrac{1}{2}", "\\\\frac{1}{2}"),
        ("\x0crac{1}{2}", "\\frac12"),  # "\\frac" after a careless JSON round
        ("$\\left( 3, \\frac{\\pi}{2} \\right)$", "(3, \\frac{π}{2})"),
        ("x ≤ 3", "x\\leqslant 3"),
        ("10{,}000", "10,000"),
        ("1\\,234", "1,234"),
        ("−5", "-5"),
        ("x²", "x^{2}"),
        ("2 1/4", "2\\frac14"),
        ("1½", "1\\frac{1}{2}"),
        ("√2", "\\sqrt{2}"),
        ("9**9", "9^9"),
        ("\\text{(B)}", "B"),
        ("（１，２）", "(1, 2)"),
        ("20℃", "20°C"),
        ("\\begin{cases}x=1,\\\\y=2\\end{cases}", "x=1, y=2"),
        ("\\mathrm{m s^{-1}}", "m s^{-1}"),
        ("\\frac { 1 } { 2 }", "\\frac{1}{2}"),
        ("19, 46, \\text{ and } 82", "19, 46, 82"),
    ],
)
def test_two_spellings_of_one_answer(a, b):
    assert canonical(a) == canonical(b)


@settings(deadline=None)
@given(st.text(alphabet="0123456789xyn+-*/^_(){}\\ .,;=<|π√$%", max_size=40))
def test_any_text_has_a_canonical_form_without_crashing(text):
    assert isinstance(canonical(text), str)


def test_matrix_rows_survive_the_repair_of_doubled_escapes():
    assert "1\\\\2" in canonical("\\begin{pmatrix}1\\\\2\\end{pmatrix}")


def test_words_are_not_products():
    assert is_text("Evelyn")
    assert is_text(canonical("odd $n$"))
    assert not is_text("xy")
    assert not is_text(canonical("\\sin x"))
    assert is_prose(canonical("The sequence is convergent for all n"))
    assert not is_prose("None of the above")


def test_plain_functions_reach_the_parser_as_commands():
    assert to_latex(canonical("7*sin(pi*x/5)+1")).replace(" ", "") == "7\\cdot\\sin(\\pi\\cdotx/5)+1"
