"""An independent look at completions: another reading of the answer than the verifier's, and repetition.

The verifier that gives the reward can be fooled, and a policy that trains on it finds out how. This one reads plain
numbers only, from the last box or the last line, and has an opinion only where it can.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from assay.rl.rewards import repetition

__all__ = ["audit", "second_opinion"]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


def second_opinion(gold: str, text: str) -> bool | None:
    """Whether the last number of the last box (else of the last line) is the gold; None where it cannot tell."""
    wanted = _number(gold)
    if wanted is None:
        return None
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", text)
    lines = [line for line in text.strip().splitlines() if line.strip()]
    found = _number(boxes[-1] if boxes else lines[-1] if lines else "")
    return None if found is None else found == wanted


def audit(golds: Sequence[str], texts: Sequence[str], statuses: Sequence[str]) -> dict[str, float]:
    """`audit_disagreement`, the share of completions counted as right whose second opinion is *no* (of those with an
    opinion), and `repetition`, the mean share of repeated 4-grams of words."""
    right = [second_opinion(g, t) for g, t, s in zip(golds, texts, statuses) if s == "correct"]
    known = [opinion for opinion in right if opinion is not None]
    repeated = -repetition([re.findall(r"\w+|[^\w\s]", t) for t in texts])
    return {
        "audit_disagreement": known.count(False) / len(known) if known else 0.0,
        "repetition": float(repeated.mean()) if len(repeated) else 0.0,
    }


def _number(text: str) -> Fraction | None:
    """The text's only number, or its last; None where there is none."""
    found = _NUMBER.findall(text)
    try:
        return Fraction(found[-1].replace(",", "")) if found else None
    except (ValueError, ZeroDivisionError):
        return None
