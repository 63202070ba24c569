import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.eval.voting import best_of_k, majority_at_k, merge_correct

QWEN = Path(__file__).parents[2].parent / "shared" / "data" / "replay" / "qwen_math_cot_100x8.jsonl"


def subsets_majority(answers, right, k):
    total = count = 0
    for chosen in itertools.combinations(range(len(answers)), k):
        votes, count = Counter(answers[i] for i in chosen if answers[i] is not None), count + 1
        leaders = [a for a in votes if votes[a] == max(votes.values())]
        total += sum(a in right for a in leaders) / max(len(leaders), 1)
    return total / count


def test_majority_by_hand():
    # a a b: of the three pairs one is aa, two are ties
    assert majority_at_k(["a", "a", "b"], [True, True, False], 2) == pytest.approx(2 / 3)
    assert majority_at_k(["a", "a", "b"], 0, 2) == pytest.approx(2 / 3)
    assert majority_at_k(["a", "a", "b"], [True, True, False], 3) == 1.0


def test_no_answer_never_wins():
    assert majority_at_k([None, None, None, "a"], [False, False, False, True], 4) == 1.0
    assert majority_at_k([None, "a"], [False, True], 1) == 0.5
    assert majority_at_k([None, None], [False, False], 2) == 0.0


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=9), st.data())
def test_majority_equals_all_subsets(answers, data):
    k = data.draw(st.integers(1, len(answers)))
    right = data.draw(st.sets(st.sampled_from("abcd")))  # several right classes are legal: none are merged here
    flags = [a in right for a in answers]
    assert majority_at_k(answers, flags, k) == pytest.approx(subsets_majority(answers, right, k), abs=1e-12)


def test_one_vote_is_the_accuracy_and_all_votes_are_the_winner():
    answers = list("aaabbc") * 20
    flags = [a == "b" for a in answers]
    assert majority_at_k(answers, flags, 1) == pytest.approx(2 / 6)
    assert majority_at_k(answers, flags, 120) == 0.0


def test_exact_to_256_and_drawn_beyond():
    rng = np.random.default_rng(0)
    answers = rng.choice(["a", "b", "c"], p=[0.4, 0.35, 0.25], size=257).tolist()
    flags = [a == "a" for a in answers]
    exact = majority_at_k(answers[:256], flags[:256], 32)
    drawn = majority_at_k(answers, flags, 32)
    assert exact.standard_error == 0.0
    assert 0.001 < drawn.standard_error < 0.01
    assert abs(drawn - exact) < 5 * drawn.standard_error + 0.01
    assert majority_at_k(answers, flags, 32) == drawn


def test_drawn_handles_no_answer_and_no_correct_class():
    assert majority_at_k([None] * 300, [False] * 300, 8) == 0.0
    assert majority_at_k(["a"] * 300, [False] * 300, 8) == 0.0
    assert majority_at_k(["a"] * 150 + [None] * 150, [True] * 150 + [False] * 150, 1) == pytest.approx(0.5, abs=0.02)


def test_correct_answers_in_two_notations_vote_together():
    answers, flags = ["1/2", "0.5", "3", "3", None], [True, True, False, False, True]
    merged = merge_correct(answers, flags)
    assert merged == ["1/2", "1/2", "3", "3", None]
    assert majority_at_k(answers, flags, 5) == 0.0
    assert majority_at_k(merged, flags, 5) == 0.5


def test_best_of_by_hand():
    # the best of two of three: the 0.9 is in two of three pairs and right, else the 0.5, wrong
    assert best_of_k([0.9, 0.5, 0.1], [True, False, True], 2) == pytest.approx(2 / 3)
    assert best_of_k([0.7, 0.7], [True, False], 1) == 0.5
    assert best_of_k([0.7, 0.7], [True, False], 2) == 0.5


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.1, 0.5, 0.9]), st.booleans()), min_size=1, max_size=8), st.data())
def test_best_of_equals_all_subsets(samples, data):
    k, total = data.draw(st.integers(1, len(samples))), 0.0
    subsets = list(itertools.combinations(samples, k))
    for chosen in subsets:
        best = [right for score, right in chosen if score == max(s for s, _ in chosen)]
        total += sum(best) / len(best)
    scores, flags = zip(*samples)
    assert best_of_k(scores, flags, k) == pytest.approx(total / len(subsets), abs=1e-12)


@pytest.mark.parametrize("call", [
    lambda: majority_at_k(["a"], [True], 2), lambda: majority_at_k(["a"], [True], 0),
    lambda: majority_at_k(["a", "a"], [True, False], 1), lambda: majority_at_k(["a"], [True, False], 1),
    lambda: majority_at_k(["a"], [None], 1), lambda: majority_at_k(["a"], 3, 1),
    lambda: best_of_k([0.1], [True], 2), lambda: best_of_k([float("nan")], [True], 1),
    lambda: best_of_k([0.1], [None], 1), lambda: best_of_k([0.1, 0.2], [True], 1)])
def test_undefined_is_refused(call):
    with pytest.raises(ValueError):
        call()


@pytest.mark.skipif(not QWEN.is_file(), reason="recorded files are not beside the repository")
def test_recorded_figures_to_the_digit():
    rows = [json.loads(line) for line in QWEN.open(encoding="utf-8")]
    majority = [100 * np.mean([majority_at_k(r["pred"], r["score"], k) for r in rows]) for k in range(1, 9)]
    best = [100 * np.mean([best_of_k([s for s, in r["pred_score"]], r["score"], k) for r in rows])
            for k in range(1, 9)]
    assert [round(float(x), 2) for x in majority] == [91.0, 91.0, 91.60, 92.01, 92.13, 92.32, 92.35, 92.50]
    assert [round(float(x), 2) for x in best] == [91.0, 92.79, 93.39, 93.61, 93.71, 93.79, 93.88, 94.0]
