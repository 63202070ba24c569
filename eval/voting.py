"""Majority vote and best-of-k over samples already taken: what k of n of them would have answered.

maj@k = C(n,k)^-1 Σ_{correct a} Σ_t C(n_a,t) Σ_m W(k-t; others <= t, m of them = t)/(m+1): class a has n_a
samples and gets t votes; W counts, by dynamic programming, the ways for the other k-t votes to fall with m
rivals tied.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from assay.eval.pass_at_k import pass_at_k

__all__ = ["EXACT_UP_TO", "Estimate", "best_of_k", "majority_at_k", "merge_correct"]

Floats = NDArray[np.float64]
EXACT_UP_TO = 256


class Estimate(float):
    """A number with the Monte-Carlo standard error it was drawn with; 0.0 where it is exact."""

    standard_error: float

    def __new__(cls, value: float, standard_error: float = 0.0) -> "Estimate":
        self = super().__new__(cls, value)
        self.standard_error = standard_error
        return self


def majority_at_k(answers: Sequence[Hashable | None], gold: int | Sequence[bool], k: int, *,
                  replicates: int = 20_000, seed: int = 0) -> Estimate:
    """Probability that the commonest answer among k of the n samples is correct.

    Every subset of k samples is equally likely; a tie goes to each of the leaders with equal probability; a
    sample without an answer (None) is drawn but never wins, and a subset without any answer is not correct.
    Exact up to n = 256, by `replicates` draws beyond.

    Args:
        answers: one class label a sample, [n]; equal labels are one class: cluster equivalent answers first.
        gold: whether each sample is correct, [n]; or the index of a sample whose class is the correct one.
        k: 1 <= k <= n.
        replicates: draws beyond n = 256; the standard error is at most 0.5 / sqrt(replicates), 0.0035.
        seed: of these draws alone. The same call gives the same number; over several items give each a seed of its
            own, as `curves` does: errors of the same draws would add up instead of averaging out.

    Raises:
        ValueError: k outside 1..n, lengths differ, or samples of one class carry different verdicts.
    """
    n, sizes, right = len(answers), *_classes(answers, gold)
    if not 1 <= k <= n:
        raise ValueError(f"k = {k} and n = {n}: a vote of k needs 1 <= k <= n.")
    unanswered = n - sum(sizes.values())
    rivals = tuple(sorted(size for label, size in sizes.items() if not right[label]))
    correct = tuple(sorted(size for label, size in sizes.items() if right[label]))
    if n > EXACT_UP_TO:
        return _drawn(correct, rivals, unanswered, k, replicates, seed)
    return Estimate(_exact(correct, rivals, unanswered, k))


def best_of_k(scores: Sequence[float], correct: Sequence[bool], k: int) -> Estimate:
    """Probability that the best-scored of k of the n samples is correct, exact; equal scores share evenly.

    Sorted ascending, a block of equal scores i..j is the maximum with probability (C(j,k) - C(i,k))/C(n,k).

    Raises:
        ValueError: k outside 1..n, lengths differ, a score that is nan, or a sample without a verdict.
    """
    value, flags = np.asarray(scores, dtype=np.float64), list(correct)
    n = len(value)
    if len(flags) != n or np.isnan(value).any():
        raise ValueError(f"{n} scores ({np.isnan(value).sum()} nan), {len(flags)} verdicts; give one each.")
    right = np.array([_flag(f, i) for i, f in enumerate(flags)], dtype=np.float64)
    # C(j,k)/C(n,k) is the chance that k draws miss the n-j samples above j.
    below = 1.0 - np.asarray(pass_at_k(n, np.arange(n, -1, -1), k))
    _, block, size = np.unique(value, return_inverse=True, return_counts=True)
    ends = np.cumsum(size)
    wins = below[ends] - below[ends - size]
    return Estimate(float((wins * np.bincount(block, weights=right) / size).sum()))


def merge_correct(answers: Sequence[Hashable | None], correct: Sequence[bool]) -> list[Hashable | None]:
    """Answers with every correct one under one label: all equal the gold, so they vote together.

    A sample judged correct without an extracted answer keeps None: it cannot be voted for.
    """
    label = next((a for a, right in zip(answers, correct) if right and a is not None), None)
    return [label if right and a is not None else a for a, right in zip(answers, correct)]


def _classes(answers: Sequence[Hashable | None],
             gold: int | Sequence[bool]) -> tuple[Counter[Hashable], dict[Hashable, bool]]:
    """Samples and verdict of every class of answers."""
    flags = gold if not isinstance(gold, (int, np.integer)) else _equal_to(answers, int(gold))
    if len(flags) != len(answers):
        raise ValueError(f"{len(answers)} answers and {len(flags)} verdicts; give one verdict a sample.")
    right: dict[Hashable, bool] = {}
    for i, (answer, flag) in enumerate(zip(answers, flags)):
        if answer is not None and right.setdefault(answer, _flag(flag, i)) != _flag(flag, i):
            raise ValueError(f"answer {answer!r} is both correct and wrong; grade every class once.")
    return Counter(a for a in answers if a is not None), right


def _equal_to(answers: Sequence[Hashable | None], index: int) -> list[bool]:
    if not 0 <= index < len(answers) or answers[index] is None:
        raise ValueError(f"gold is sample {index} of {len(answers)}; name a sample that has an answer.")
    return [a == answers[index] for a in answers]


def _flag(flag: object, sample: int) -> bool:
    if flag not in (0, 1):
        raise ValueError(f"sample {sample}: {flag!r} is no verdict; give True or False, and the answer None "
                         "where nothing could be graded.")
    return bool(flag)


@lru_cache(maxsize=65_536)
def _exact(correct: tuple[int, ...], rivals: tuple[int, ...], unanswered: int, k: int) -> float:
    """maj@k of class sizes. All terms are positive and below C(256, 128) = 6e75: doubles are enough."""
    total = 0.0
    for i, size in enumerate(correct):
        others = (*correct[:i], *correct[i + 1:], *rivals)
        for votes in range(1, min(size, k) + 1):
            total += comb(size, votes) * _ways(others, unanswered, votes, k - votes)
    return total / comb(sum(correct) + sum(rivals) + unanswered, k)


def _ways(others: tuple[int, ...], unanswered: int, most: int, rest: int) -> float:
    """Σ_m W(rest; others <= most, m of them = most)/(m+1).

    Classes smaller than `most` neither tie nor win: with the samples without an answer they are one binomial.
    """
    small = unanswered + sum(size for size in others if size < most)
    tied = [_binomials(small, rest)]  # tied[m][s]: ways to place s votes with m rivals at `most`
    for size in (size for size in others if size >= most):
        fewer, level = _binomials(size, min(most - 1, rest)), float(comb(size, most))
        grown: list[Floats] = [np.convolve(row, fewer)[: rest + 1].astype(np.float64) for row in tied]
        grown += [np.zeros(rest + 1)] * (len(tied) * most <= rest)
        for m in range(1, len(grown)):
            shifted = np.zeros(rest + 1)
            shifted[most:] = tied[m - 1][: rest + 1 - most] * level
            grown[m] = grown[m] + shifted
        tied = grown
    return float(sum(row[rest] / (m + 1) for m, row in enumerate(tied)))


def _binomials(n: int, highest: int) -> Floats:
    """C(n, j) for j = 0..highest."""
    return np.array([comb(n, j) for j in range(highest + 1)], dtype=np.float64)


def _drawn(correct: tuple[int, ...], rivals: tuple[int, ...], unanswered: int, k: int, replicates: int,
           seed: int) -> Estimate:
    """Monte-Carlo over subsets: votes by class follow the multivariate hypergeometric law."""
    sizes, rng = np.array([*correct, *rivals, unanswered]), np.random.default_rng(seed)
    votes = rng.multivariate_hypergeometric(sizes, k, size=replicates, method="marginals")[:, :-1]
    leading = (votes == votes.max(axis=1, keepdims=True, initial=0)) & (votes > 0)
    share = leading[:, : len(correct)].sum(axis=1) / np.maximum(leading.sum(axis=1), 1)
    return Estimate(float(share.mean()), float(share.std(ddof=1) / np.sqrt(replicates)))
