"""Alarms and the second reading of answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from assay.rl.alarms import RULES, Alarms
from assay.rl.audit import audit, second_opinion

HEALTHY = {"groups": 8, "entropy": 0.5, "length": 100, "success": 0.4, "truncated_share": 0.02, "approx_kl": 0.001,
           "kl": 0.01, "reward": 0.4, "audit_disagreement": 0.0, "repetition": 0.05, "reward_format": 0.9}  # fmt: skip
ILL = {
    "entropy collapse": {"entropy": 0.05},
    "length blow-up": {"length": 300},
    "truncation": {"truncated_share": 0.4},
    "KL blow-up": {"approx_kl": 0.3},
    "reward hacking": {"reward": 0.6, "success": 0.3},
    "verifier disagreement": {"audit_disagreement": 0.2},
    "repetition": {"repetition": 0.4},
    "format drift": {"reward_format": 0.5},
}


def run(alarms: Alarms, metrics: dict[str, float], steps: int) -> list[str]:
    return [a.name for _ in range(steps) for a in alarms.watch(metrics)]


def test_every_rule_has_a_case() -> None:
    assert set(ILL) == {r.name for r in RULES}


@pytest.mark.parametrize("name", sorted(ILL))
def test_each_ill_sounds_its_own_alarm_once_and_again_after_it_passed(name: str) -> None:
    alarms = Alarms()
    assert run(alarms, HEALTHY, 20) == []
    assert run(alarms, HEALTHY | ILL[name], 10) == [name]
    assert run(alarms, HEALTHY, 10) == []
    assert run(alarms, HEALTHY | ILL[name], 10) == [name]


def test_an_alarm_tells_what_it_saw_and_what_to_do() -> None:
    alarms = Alarms()
    run(alarms, HEALTHY, 10)
    said = [str(a) for _ in range(10) for a in alarms.watch(HEALTHY | {"entropy": 0.01})]
    assert said[0].startswith("entropy collapse: entropy 0.5 -> ")
    assert "Raise clip_high" in said[0]


def test_longer_and_better_is_no_alarm_and_steps_without_groups_do_not_count() -> None:
    alarms = Alarms()
    run(alarms, {"groups": 0, "entropy": 99.0}, 20)
    run(alarms, HEALTHY, 10)
    assert run(alarms, HEALTHY | {"length": 300, "success": 0.6, "reward": 0.6}, 20) == []


def test_state_goes_on_exactly() -> None:
    one, other = Alarms(), Alarms()
    run(one, HEALTHY, 8)
    other.load(json.loads(json.dumps(one.state())))
    ill: dict[str, Any] = HEALTHY | {"repetition": 0.9}
    assert [run(one, ill, 1) for _ in range(8)] == [run(other, ill, 1) for _ in range(8)]


@pytest.mark.parametrize(
    ("gold", "text", "said"),
    [
        ("7", "so \\boxed{7}", True),
        ("7", "so \\boxed{07.0}", True),
        ("7", "\\boxed{7} no, \\boxed{8}", False),
        ("0.5", "\\boxed{1/2}", True),
        ("1,000", "the answer is\n1000", True),
        ("-3", "it is 3", False),
        ("7", "I do not know", None),
        ("x + 1", "\\boxed{x+1}", True),
        ("x", "\\boxed{x}", None),
        ("1/0", "1", None),
    ],
)
def test_second_opinion(gold: str, text: str, said: bool | None) -> None:
    assert second_opinion(gold, text) is said


def test_audit_counts_only_what_was_paid_as_right() -> None:
    texts = ["\\boxed{7}", "\\boxed{8}", "\\boxed{9}", "no"]
    got = audit(["7"] * 4, texts, ["correct", "correct", "wrong", "correct"])
    assert got["audit_disagreement"] == 0.5
    assert audit([], [], []) == {"audit_disagreement": 0.0, "repetition": 0.0}
    assert audit(["7"], ["a b c d a b c d"], ["wrong"])["repetition"] == pytest.approx(1 / 5)
