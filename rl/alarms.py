"""Alarms: a run that goes wrong says so, with what to do, from the metrics it has anyway.

Each rule compares the mean of the last steps with that of the run's first ones, so that it needs no knowledge of the
model. A rule speaks once and is silent until what it saw has passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["RULES", "Alarm", "Alarms", "Rule"]

WINDOW = 5
Means = Mapping[str, float]


@dataclass(frozen=True)
class Alarm:
    """What was seen, in words, and what to do."""

    name: str
    seen: str
    advice: str

    def __str__(self) -> str:
        return f"{self.name}: {self.seen}. {self.advice}"


@dataclass(frozen=True)
class Rule:
    """`sounds(now, start)` on the means of the last and the first `WINDOW` steps; `shows` are the metrics to tell."""

    name: str
    shows: tuple[str, ...]
    sounds: Callable[[Means, Means], bool]
    advice: str


RULES = (
    Rule(
        "entropy collapse",
        ("entropy",),
        lambda now, start: now["entropy"] < 0.2 * start["entropy"],
        "Raise clip_high (0.28 or more), lower the learning rate, or add harder problems; sampling has little left to "
        "explore.",
    ),
    Rule(
        "length blow-up",
        ("length", "success"),
        lambda now, start: now["length"] > 2 * start["length"] and now["success"] < start["success"] + 0.05,
        "Completions grow and are no better: give `overlong` or `length` a weight, or use an aggregation that does not "
        "favour long wrong answers (`constant` or `token`).",
    ),
    Rule(
        "truncation",
        ("truncated_share",),
        lambda now, start: now["truncated_share"] > max(0.25, 2 * start["truncated_share"]),
        "Raise sampling.max_tokens, or give `overlong` a weight; cut completions are masked and their tokens wasted.",
    ),
    Rule(
        "KL blow-up",
        ("kl", "approx_kl"),
        lambda now, start: now.get("approx_kl", 0) > 0.1 or now.get("kl", 0) > max(1.0, 20 * start.get("kl", 0)),
        "Go back to an earlier checkpoint with a lower learning rate, fewer updates_per_step, or a larger beta.",
    ),
    Rule(
        "reward hacking",
        ("reward", "success"),
        lambda now, start: now["reward"] > start["reward"] + 0.05 and now["success"] < start["success"] - 0.05,
        "The reward rises while fewer answers are right: read `assay show`, and lower the weights of the other parts.",
    ),
    Rule(
        "verifier disagreement",
        ("audit_disagreement",),
        lambda now, start: now.get("audit_disagreement", 0) > max(0.05, 3 * start.get("audit_disagreement", 0)),
        "Answers counted as right are not what an independent reading finds: read the odd ones of `assay show` before "
        "you believe the reward.",
    ),
    Rule(
        "repetition",
        ("repetition",),
        lambda now, start: now.get("repetition", 0) > start.get("repetition", 0) + 0.2,
        "Completions repeat themselves: give rewards.repetition a weight, or lower the learning rate.",
    ),
    Rule(
        "format drift",
        ("reward_format",),
        lambda now, start: now.get("reward_format", 0) < start.get("reward_format", 0) - 0.2,
        "Fewer completions are one thought and an answer: give rewards.format a weight.",
    ),
)


class Alarms:
    """Watches a run step by step; `state` and `load` as the run's other parts."""

    def __init__(self) -> None:
        self._start: list[dict[str, float]] = []
        self._last: deque[dict[str, float]] = deque(maxlen=WINDOW)
        self._sounding: set[str] = set()

    def watch(self, metrics: Mapping[str, float]) -> list[Alarm]:
        """The alarms that this step sets off; none within the first two windows, nor from a step without groups."""
        if not metrics.get("groups"):
            return []
        own = {k: float(v) for k, v in metrics.items() if k in _WATCHED}
        if len(self._start) < WINDOW:
            self._start.append(own)
            return []
        self._last.append(own)
        if len(self._last) < WINDOW:
            return []
        now, start = _means(self._last), _means(self._start)
        sounding = {r.name for r in RULES if r.sounds(now, start)}
        fresh, self._sounding = sounding - self._sounding, sounding
        return [Alarm(r.name, _told(r, now, start), r.advice) for r in RULES if r.name in fresh]

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"start": self._start, "last": list(self._last), "sounding": sorted(self._sounding)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self._start, self._sounding = list(state["start"]), set(state["sounding"])
        self._last = deque(state["last"], maxlen=WINDOW)


_WATCHED = {name for rule in RULES for name in rule.shows} | {"success"}


def _means(steps: Any) -> dict[str, float]:
    names = {name for step in steps for name in step}
    return {n: sum(v := [step[n] for step in steps if n in step]) / len(v) for n in names}


def _told(rule: Rule, now: Means, start: Means) -> str:
    return ", ".join(f"{n} {start.get(n, 0):.3g} -> {now[n]:.3g}" for n in rule.shows if n in now)
