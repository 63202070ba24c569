import numpy as np
import polars as pl
import pytest

from assay.filters.text import MAX_SYMBOLS, fold, whole_hashes, window_hashes


def streams(text: str | None) -> tuple[str, str]:
    """The two streams of one text, read from the middle of a batch."""
    folded = fold(pl.Series(["before 1", text, "after 2"], dtype=pl.String))
    full = folded.full[folded.full_at[1] : folded.full_at[2]]
    return bytes(full).decode(), bytes(folded.core[folded.core_at[1] : folded.core_at[2]]).decode()


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("Compute $\\dfrac{1}{2} \\leq x$.", "computefrac12<=x"),
        ("COMPUTE  \\( \\frac 1 2\n≤ x \\)", "computefrac12<=x"),
        ("\\left( a+b \\right)^{2}", "a+b^2"),
        ("（ａ＋ｂ）²", "a+b^2"),
        ("30° and 30^\\circ, x − 1, 2 × 3 · 4", "30^circand30^circx-12*3*4"),
        ("\\alpha α Δ 𝑥 café ½", "alphaalphadeltaxcafe1/2"),
        ("果园里有 120 棵。", "果园里有120棵"),
        ("**bold** 2*3", "bold2*3"),
        ("mathbfa and mathematics and maths", "aandmathematicsandmaths"),
        ('<p>Is $a < b$?</p><br/><P class="x">x&nbsp;&lt; 2<br />', "isa<bx<2"),
        ("x<y>z, a<b>c, x < p, 1<b, <q>, a <b and c> d", "x<y>za<b>cx<p1<b<q>a<bandc>d"),
        ("a<", "a<"),
        ("a</", "a</"),
        ("", ""),
        (None, ""),
    ],
)
def test_full_is_what_stays_of_a_text(text, full):
    assert streams(text)[0] == full


def test_core_leaves_out_the_words_of_asking_and_nothing_else():
    prompt = "Let's think step by step. Find the value of $x+1$. Put your final answer within \\boxed{}."
    assert streams(prompt)[1] == "x+1"
    assert streams("The value of theory, s and a")[1] == "theorysa"


def test_a_byte_that_no_text_begins_with_is_read_within_its_row():
    assert streams("x\U0001f600y")[0] == "x\U0001f600y"  # four bytes, and no spelling of its own


def test_windows_roll():
    """A window's hash depends on its symbols alone, not on where it stands."""
    folded = fold(pl.Series(["abcde", "zbcdz", "ab", ""]))
    hashes, at = window_hashes(folded.full, folded.full_at, 3, False)
    assert np.diff(at).tolist() == [3, 3, 1, 0]
    assert hashes[1] == hashes[4]
    assert len(set(hashes.tolist())) == 6


def test_masking_hides_which_numbers_but_not_where():
    folded = fold(pl.Series(["x12+3", "x7+4567", "x7-4567", "x+45"]))
    plain, masked = whole_hashes(folded.full, folded.full_at, MAX_SYMBOLS, np.arange(4))
    assert len(set(plain.tolist())) == 4
    assert masked[0] == masked[1]
    assert len(set(masked.tolist())) == 3
    _, at = window_hashes(folded.full, folded.full_at, 4, True)
    assert np.diff(at).tolist() == [1, 1, 1, 1]


def test_long_and_empty_texts_have_no_whole_hash():
    folded = fold(pl.Series(["abc", "abcd", ""]))
    assert (whole_hashes(folded.full, folded.full_at, 3, np.array([2, 0, 1]))[0] != 0).tolist() == [False, True, False]
