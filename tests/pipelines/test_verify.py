import asyncio
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from assay.pipelines.verify import Policy, Verifier

HERE = Path(__file__).parent
SHARED = Path(__file__).parents[2].parent / "shared"
CASES = [tuple(json.loads(line)) for line in (HERE / "grading_cases.jsonl").open(encoding="utf-8")]


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2, deadline_s=5.0) as open_verifier:
        yield open_verifier


def box(text: str) -> str:
    return f"The answer is $\\boxed{{{text}}}$."


def test_cases_of_every_kind(verifier):
    verdicts = verifier.grade_many([(gold, text) for gold, text, _ in CASES])
    wrong = [(c, v) for c, v in zip(CASES, verdicts) if (v.status == "correct") != c[2]]
    assert not wrong
    assert len(CASES) > 500


def test_swapping_gold_and_prediction_changes_no_verdict(verifier):
    verdicts = verifier.grade_many([(gold, text) for gold, text, _ in CASES])
    items = [(c[0], v.extracted, v.status == "correct") for c, v in zip(CASES, verdicts) if c[0] and v.extracted]
    swapped = verifier.grade_many([(extracted, f"\\boxed{{{gold}}}") for gold, extracted, _ in items])
    assert not [item for item, verdict in zip(items, swapped) if (verdict.status == "correct") != item[2]]


def test_the_same_verdicts_from_a_thread_and_from_async_code(verifier):
    items = [(gold, text) for gold, text, _ in CASES[::7]]
    with Verifier(workers=2) as fresh, ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(fresh.grade_many, [items[i::4] for i in range(4)]))
        awaited = asyncio.run(fresh.agrade_many(items))
    expected = verifier.grade_many(items)
    for i, part in enumerate(parts):
        assert [v[:3] for v in part] == [v[:3] for v in expected[i::4]]
    assert [v[:3] for v in awaited] == [v[:3] for v in expected]


def test_acceptance_cases(verifier):
    path = SHARED / "cases" / "grading.jsonl"
    if not path.exists():
        pytest.skip("the shared cases are not beside this checkout")
    cases = [json.loads(line) for line in path.open(encoding="utf-8")]
    verdicts = verifier.grade_many([(c["gold"], c["prediction"]) for c in cases])
    assert not [c["id"] for c, v in zip(cases, verdicts) if (v.status == "correct") != c["expected"]]


def test_recorded_completions_are_graded_as_recorded_or_better(verifier):
    path = SHARED / "data" / "replay" / "qwen_math_cot_100x8.jsonl"
    if not path.exists():
        pytest.skip("the recorded completions are not beside this checkout")
    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    verdicts = iter(verifier.grade_many([(r["gt"], text) for r in rows for text in r["code"]]))
    differ = [(r["gt"], v) for r in rows for s in r["score"] for v in [next(verdicts)] if (v.status == "correct") != s]
    better = {("4:30p..", "4:30 \\text{ p.m.}"), ("10{,}000", "10000")}  # right answers that were recorded as wrong
    assert {(gold, v.extracted) for gold, v in differ if v.status == "correct"} == better
    assert all(v.status == "correct" for _, v in differ)


def test_statuses_and_reasons(verifier):
    def graded(gold, text, **more):
        return verifier.grade(gold, text, **more)[::2]

    assert graded("4", box("4")) == ("correct", None)
    assert graded("4", box("5")) == ("wrong", None)
    assert graded("4", "I could not find it, sorry about that, truly.") == ("wrong", "no_answer")
    assert graded("4", "<think>\\boxed{4}") == ("wrong", "answer_only_in_thinking")
    assert graded("5", box("5, 7")) == ("wrong", "multiple_answers")
    assert graded("1", box("9^{9^{9}}")) == ("unverifiable", "expression_too_large")
    assert graded("x", box("x^{9^{9^9}}")) == ("unverifiable", "expression_too_large")
    assert graded("x +* \\frac{", box("5")) == ("unverifiable", "gold_unparsable")
    assert graded("The sequence is convergent for all n", box("5")) == ("unverifiable", "gold_is_prose")
    assert graded("", box("5")) == ("unverifiable", "gold_unparsable")


def test_truncated_unless_a_complete_box_follows_the_thinking(verifier):
    def status(text, **more):
        return verifier.grade("4", text, finish_reason="length", **more).status

    assert status("<think>it is \\boxed{4}") == "truncated"
    assert status("</think> The answer is 4") == "truncated"
    assert status("</think> it is \\boxed{4") == "truncated"
    assert status("hm</think> it is \\boxed{4}. And more") == "correct"
    assert status("hm</think> it is \\boxed{5}. And more") == "wrong"
    assert status("it is \\boxed{4}", starts_in_thinking=True) == "truncated"


def test_a_prompt_that_opened_the_thinking_block(verifier):
    assert verifier.grade("4", "\\boxed{4}", starts_in_thinking=True).reason == "answer_only_in_thinking"
    assert verifier.grade("4", "3 or \\boxed{5}</think>\\boxed{4}", starts_in_thinking=True).status == "correct"


def test_a_pathological_item_ends_by_its_deadline_and_harms_no_other():
    deep = "\\sum_{a=1}^{20000} \\sum_{b=1}^{20000} \\frac{\\sin(a b)}{a^{b}+x}"
    with Verifier(workers=1, deadline_s=1.0) as short:
        start = time.monotonic()
        verdicts = short.grade_many([("x+1", box("1+x")), ("x", box(deep)), ("2x", box("x+x")), ("3", box("3"))])
        assert [v.status for v in verdicts] == ["correct", "timeout", "correct", "correct"]
        assert verdicts[1].reason == "deadline"
        assert time.monotonic() - start < 60


def test_numbers_start_no_process():
    items = [(str(i % 10), f"<think>thought</think> so \\boxed{{{i % 7}}}") for i in range(70)]
    with Verifier() as verifier:
        verdicts = verifier.grade_many(items)
        assert verifier._pool.processes() == []
    assert [v.status == "correct" for v in verdicts] == [i % 10 == i % 7 for i in range(70)]


def test_policies_one_for_all_or_one_an_item(verifier):
    items = [("1, 2", box("2, 1"))] * 2
    assert [v.status for v in verifier.grade_many(items, [Policy(), Policy(ordered_lists=True)])] == [
        "correct",
        "wrong",
    ]
    assert {v.status for v in verifier.grade_many(items, Policy(ordered_lists=True))} == {"wrong"}
    with pytest.raises(ValueError, match="lengths differ"):
        verifier.grade_many(items, [Policy()])


def test_gold_faults(verifier):
    golds = ["4", "\\frac{1}{2}", "x^2+1", "Evelyn", "甲", "[0, 1)", "(B)", "1331 and 1728", "\\\\frac{1}{2}"]
    assert verifier.gold_faults(golds) == [None] * len(golds)
    faulty = ["", "The sequence is convergent, which was to be shown.", "\\frac{1}{", "9^{9^9}", "x +* 2"]
    faults = ["empty", "prose", "unbalanced braces", "large", "mathematics"]
    assert all(word in found for word, found in zip(faults, verifier.gold_faults(faulty), strict=True))


def test_equivalence_classes(verifier):
    answers = ["1/2", "0.5", None, "2", "\\frac{1}{2}", "", "2.0", "\\sqrt{8}", "2\\sqrt{2}", "3"]
    assert verifier.equivalence_classes(answers) == [0, 0, -1, 1, 0, -1, 1, 2, 2, 3]
    assert verifier.equivalence_classes([]) == []


def test_the_verifier_names_itself_and_its_parser():
    with Verifier() as verifier:
        assert verifier.name.startswith("assay-")
        assert "math-verify-" in verifier.name


def test_importing_the_verifier_loads_no_parser_and_no_torch():
    code = (
        "import sys, assay.pipelines.verify; print([m for m in ('sympy', 'math_verify', 'torch') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_threads_that_ask_the_same_share_one_comparison():
    with Verifier(workers=1) as verifier:
        results: list[str] = []

        def use():
            results.append(verifier.grade("(x+1)^2", box("x^2+2x+1")).status)

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == ["correct"] * 8


def test_a_started_verifier_has_a_worker_before_it_is_asked() -> None:
    with Verifier(workers=1) as verifier:
        verifier.start()
        deadline = time.monotonic() + 30
        while not verifier._pool.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(verifier._pool.processes()) == 1
