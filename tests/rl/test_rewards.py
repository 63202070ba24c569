import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.rl.rewards import (
    accuracy,
    combine,
    format_bonus,
    inverted,
    kimi_length,
    language_consistency,
    overlong,
    random_control,
    repetition,
)

NAN = math.nan


def same(got, want):
    return np.allclose(got, want, equal_nan=True)


def test_accuracy_by_status():
    statuses = ["correct", "wrong", "unverifiable", "timeout", "truncated"]
    assert same(accuracy(statuses), [1, 0, NAN, NAN, NAN])
    assert same(accuracy(statuses, unverifiable=0, truncated=-1, wrong=-1), [1, -1, 0, 0, -1])
    with pytest.raises(ValueError, match="no verdict status"):
        accuracy(["right"])


@pytest.mark.parametrize(("text", "good"), [
    ("<think>2+2</think> 4", True), ("\n<think>\na\nb\n</think>\n\n4\n", True), ("<think></think>4", True),
    ("<think>2+2</think>", False), ("<think>2+2</think>  \n", False), ("4", False), ("<think>2+2 4", False),
    ("so <think>2+2</think> 4", False), ("<think>a</think><think>b</think> 4", False),
    ("<think>a<think>b</think> 4", False), ("<think>a</think> 4 </think>", False),
])  # fmt: skip
def test_format_is_one_thought_then_an_answer(text, good):
    assert format_bonus([text], bonus=0.5).tolist() == [0.5 if good else 0]
    if text.startswith("<think>"):
        assert format_bonus([text.removeprefix("<think>")], opened_in_prompt=True).tolist() == [float(good)]


def test_kimi_length_worked_values():
    lengths = [100, 200, 300]
    assert kimi_length(lengths, [True] * 3, 3).tolist() == [0.5, 0, -0.5]
    assert kimi_length(lengths, [False] * 3, 3).tolist() == [0, 0, -0.5]


def test_kimi_length_is_per_group_and_warms_up():
    lengths, right = [10, 20, 30, 7, 7, 7], [True, False, True, True, False, True]
    assert kimi_length(lengths, right, 3).tolist() == [0.5, 0, -0.5, 0, 0, 0]
    assert kimi_length(lengths, right, 3, step=4, warmup_steps=5).tolist() == [0] * 6
    assert kimi_length(lengths, right, 3, step=5, warmup_steps=5)[0] == 0.5
    with pytest.raises(ValueError, match="whole groups of 4"):
        kimi_length(lengths, right, 4)


def test_overlong_by_hand():
    assert overlong([0, 80, 85, 90, 100, 101, 900], 100, 20).tolist() == [0, 0, -0.25, -0.5, -1, -1, -1]
    with pytest.raises(ValueError, match="buffer"):
        overlong([1], 100, 0)


def test_repetition_by_hand():
    got = repetition([list("abababab"), list("abcdefgh"), [1, 2], [], [7] * 10], n=2)
    assert got.tolist() == pytest.approx([2 / 7 - 1, 0, 0, 0, 1 / 9 - 1])


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 5))
def test_repetition_is_a_share(tokens, n):
    assert -1 < repetition([tokens], n)[0] <= 0


def test_controls():
    a = random_control(1000, seed=3, step=7)
    assert a.tolist() == random_control(1000, seed=3, step=7).tolist()
    assert a.tolist() != random_control(1000, seed=3, step=8).tolist()
    assert set(a) == {0, 1}
    assert 0.45 < a.mean() < 0.55
    assert random_control(1000, 0, 0, p=0.1).mean() < 0.2
    assert same(inverted([1, 0, NAN]), [0, 1, NAN])


def test_language_by_script():
    texts = ["<think>First add, then 乘 two.</think> 4", "<think>首先相加 then</think> 四", "Сначала сложим"]
    texts.append("$x+y$ 12")
    got = language_consistency(texts, ["en", "zh", "ru", "en"])
    assert got.tolist() == pytest.approx([4 / 5, 4 / 5, 1, 1])
    assert language_consistency(["こんにちは漢字"], ["ja"]).tolist() == [1]
    assert language_consistency(["add $\\alpha$ \\frac{1}{2} ```for i in x```"], ["ru"]).tolist() == [0]


def test_only_the_thought_is_judged():
    assert language_consistency(["<think>然后</think> the answer is four"], ["zh"]).tolist() == [1]
    assert language_consistency(["然后</think> the answer"], ["zh"], opened_in_prompt=True).tolist() == [1]


@pytest.mark.slow
def test_language_by_lingua_tells_french_from_english():
    text = "Nous devons calculer la somme des deux nombres. Then we add seven to the total of both. ok"
    got = language_consistency([text, text, "12 + 3"], ["en", "fr", "en"], detector="lingua")
    assert 0.3 < got[0] < 0.7
    assert got[0] + got[1] == pytest.approx(1, abs=0.1)
    assert got[2] == 1


def test_unknown_detector_is_refused():
    with pytest.raises(ValueError, match="script or lingua"):
        language_consistency(["a"], ["en"], detector="fasttext")


def test_combine_keeps_parts_and_lets_nan_through():
    got = combine({"accuracy": [1, 0, NAN], "format": [1, 1, 0], "judge": [NAN, 2, 2]},
                  {"accuracy": 1.0, "format": 0.5, "judge": 0.0})  # fmt: skip
    assert same(got.total, [1.5, 0.5, NAN])
    assert same(got.parts["judge"], [NAN, 2, 2])
    with pytest.raises(ValueError, match="no part for \\['lenght'\\]"):
        combine({"length": [1]}, {"lenght": 1})
    with pytest.raises(ValueError, match="lengths \\[1, 2\\]"):
        combine({"a": [1], "b": [1, 2]}, {"a": 1})
