"""Grading of completions: by rules, by a judge, or by running programs, as each item's policy says.

The rules are extraction, exact cheap comparison, then math-verify in a pool.

    with Verifier(workers=2, deadline_s=5.0) as verifier:
        verdict = verifier.grade("\\\\frac{1}{2}", "... the answer is \\\\boxed{0.5}")

Statuses: `correct`, `wrong`; `unverifiable` (the gold cannot be read, or a side is too large to evaluate); `timeout`
(the deadline passed, or the worker died); `truncated` (the sampler ran out of tokens before a final boxed answer).
A wrong verdict without an answer carries the reason `no_answer` or `answer_only_in_thinking`.

Not protected from: two different formulas that agree at every test point; a right answer in words other than the
gold's; a correct answer beside extra text inside the box.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.pipelines.answer_extraction import Extraction, extract, strip_thinking
from assay.pipelines.answer_text import canonical, is_prose
from assay.pipelines.equivalence import Policy, compare, list_length
from assay.pipelines.errors import EngineError
from assay.pipelines.process_pool import ItemTimeout, ProcessPool
from assay.pipelines.quantity import MAX_CHARS, ExpressionTooLarge, quantity

if TYPE_CHECKING:
    from assay.pipelines.engines import Engine

__all__ = ["VERSION", "Policy", "Verdict", "Verifier"]

VERSION = "2"
CACHE_ENTRIES = 200_000
_Key = tuple[str, str, Policy]
_Asked = tuple[tuple[str, str], Policy, str | None]


class Verdict(NamedTuple):
    """One grading: `status`, the answer as extracted, why, and the seconds it took."""

    status: str
    extracted: str | None = None
    reason: str | None = None
    seconds: float = 0.0


class Verifier:
    """Grades completions; the same verdict from every thread and from async code.

    Args:
        workers: processes for symbolic comparison, and programs at a time; none is started before an item needs one.
        deadline_s: wall-clock seconds for one symbolic comparison.
        judge: makes the engine that judges answers whose policy asks for it; called once, and closed with this.

    Raises:
        WorkerError, SandboxError: worker processes cannot be started, or programs isolated (from the grading calls).
        EngineError: a policy asks for a judge, and there is none.
    """

    def __init__(self, workers: int = 2, deadline_s: float = 5.0, judge: Callable[[], Engine] | None = None) -> None:
        from assay.pipelines.code_verifier import CodeVerifier

        self.name = f"assay-{VERSION}+math-verify-{importlib.metadata.version('math-verify')}"
        self._programs, self._make_judge = CodeVerifier(workers), judge
        self._pool = ProcessPool("assay.pipelines.symbolic", "answer", workers, deadline_s)
        self._cache: dict[_Key, Verdict] = {}
        self._running: dict[_Key, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> None:
        """Start a worker in the background; else the first item that needs one waits seconds for it."""
        self._pool.submit({"gold": "1"})

    def close(self) -> None:
        """End the worker processes, the sandbox and the judge."""
        for owned in (self._pool, self._programs, vars(self).get("_judge")):
            if owned is not None:
                owned.close()

    @cached_property
    def _judge(self) -> Engine:
        if self._make_judge is None:
            raise EngineError("a policy says verifier = 'judge' and no model judges: add [judge] to the recipe.")
        return self._make_judge()

    def name_for(self, policy: Policy) -> str:
        """The name and version of what grades under a policy."""
        if policy.verifier == "code":
            return self._programs.name
        return f"{self.name}+judge-{self._judge.fingerprint}" if policy.verifier == "judge" else self.name

    def grade(
        self,
        gold: str,
        completion: str,
        policy: Policy | None = None,
        finish_reason: str | None = None,
        starts_in_thinking: bool = False,
    ) -> Verdict:
        """Grade one completion; see `grade_many`."""
        return self.grade_many([(gold, completion)], policy, [finish_reason], starts_in_thinking)[0]

    def grade_many(
        self,
        items: Sequence[tuple[str, str]],
        policies: Policy | Sequence[Policy] | None = None,
        finish_reasons: Sequence[str | None] | None = None,
        starts_in_thinking: bool = False,
    ) -> list[Verdict]:
        """Verdicts of (gold, completion) pairs, in order.

        Args:
            items: gold answers (tests for `code`) and whole completions, thinking included.
            policies: one for all, or one an item.
            finish_reasons: the sampler's; "length" is `truncated`, unless thinking had ended and the final text holds
                a complete box.
            starts_in_thinking: the prompt opened the thinking block, so a text without `</think>` is all thinking.

        Raises:
            ValueError: policies or finish_reasons of another length than items.
        """
        each = policies if isinstance(policies, Sequence) else [policies or Policy()] * len(items)
        finish = finish_reasons if finish_reasons is not None else [None] * len(items)
        if not len(each) == len(finish) == len(items):
            raise ValueError(f"{len(items)} items, {len(each)} policies, {len(finish)} finish reasons: lengths differ")
        asked = list(zip(items, each, finish))
        by = {"rule": self._by_rules, "judge": self._by_judge, "code": self._by_tests}
        verdicts: dict[int, Verdict] = {}
        for verifier in {policy.verifier for policy in each}:
            places = [place for place, policy in enumerate(each) if policy.verifier == verifier]
            verdicts |= zip(places, by[verifier]([asked[place] for place in places], starts_in_thinking))
        return [verdicts[place] for place in range(len(items))]

    def _by_rules(self, asked: list[_Asked], starts_in_thinking: bool) -> list[Verdict]:
        begun = [self._begin(*item, policy, reason, starts_in_thinking) for item, policy, reason in asked]
        return [self._finish(entry) if isinstance(entry, _Pending) else entry for entry in begun]

    def _by_tests(self, asked: list[_Asked], starts_in_thinking: bool) -> list[Verdict]:
        items, _, finish = zip(*asked)
        return self._programs.grade_many(items, finish, starts_in_thinking)

    def _by_judge(self, asked: list[_Asked], starts_in_thinking: bool) -> list[Verdict]:
        """What the rules find correct is; the judge reads other answers, and its text is the reason."""
        from assay.pipelines.judge import judge_answers

        verdicts = self._by_rules(asked, starts_in_thinking)
        places = [place for place, ((gold, _), _, _) in enumerate(asked)
                  if verdicts[place].status != "correct" and verdicts[place].extracted and gold]  # fmt: skip
        pairs = [(gold, strip_thinking(text, starts_in_thinking)) for gold, text in (asked[p][0] for p in places)]
        for place, (same, said) in zip(places, judge_answers(self._judge, pairs)):
            status = "unverifiable" if same is None else "correct" if same else "wrong"
            verdicts[place] = verdicts[place]._replace(status=status, reason=said)
        return verdicts

    async def agrade_many(self, *args: Any, **kwargs: Any) -> list[Verdict]:
        """`grade_many` without blocking the event loop."""
        return await asyncio.to_thread(self.grade_many, *args, **kwargs)

    def gold_faults(self, golds: Sequence[str]) -> list[str | None]:
        """Why each gold cannot be graded against, or None when it can."""
        found = [_plain_fault(gold) for gold in golds]
        asked = {i: self._pool.submit({"gold": canonical(golds[i])}) for i, fault in enumerate(found) if fault == "ask"}
        return [_fault_of(asked[i]) if i in asked else fault for i, fault in enumerate(found)]

    def equivalence_classes(self, answers: Sequence[str | None], policy: Policy | None = None) -> list[int]:
        """The class of each answer, numbered by first appearance; None and "" have no class (-1).

        For majority voting: equal texts and numbers fall together at once, the rest is asked of the pool. Programs have
        no class.
        """
        policy = policy or Policy()
        if policy.verifier == "code":
            return [-1] * len(answers)
        texts = [canonical(answer) if answer else "" for answer in answers]
        distinct = list(dict.fromkeys(text for text in texts if text))
        pending = [
            (i, j, self._compare(distinct[i], distinct[j], policy)) for j in range(len(distinct)) for i in range(j)
        ]
        root = list(range(len(distinct)))
        for i, j, entry in pending:
            verdict = self._finish(entry) if isinstance(entry, _Pending) else entry
            if verdict.status == "correct":
                root[j] = min(root[j], root[i])
        numbers: dict[int, int] = {}
        class_of = {text: numbers.setdefault(root[i], len(numbers)) for i, text in enumerate(distinct)}
        return [class_of.get(text, -1) for text in texts]

    def _begin(
        self, gold: str, completion: str, policy: Policy, finish_reason: str | None, starts_in_thinking: bool
    ) -> Verdict | _Pending:
        start = time.perf_counter()
        wanted = canonical(gold)
        found = extract(completion, *_hints(wanted, policy), starts_in_thinking)
        if finish_reason == "length" and not _complete(found, completion, starts_in_thinking):
            return Verdict("truncated", None, "length", time.perf_counter() - start)
        if not wanted:
            return Verdict("unverifiable", found.text, "gold_unparsable", time.perf_counter() - start)
        if found.text is None:
            return Verdict("wrong", None, found.reason, time.perf_counter() - start)
        entry = self._compare(wanted, canonical(found.text), policy)
        if isinstance(entry, _Pending):
            return entry._replace(extracted=found.text, start=start)
        return entry._replace(extracted=found.text, seconds=time.perf_counter() - start)

    def _compare(self, gold: str, predicted: str, policy: Policy) -> Verdict | _Pending:
        """Cheap comparison of canonical texts; what only mathematics can tell is queued, equal pairs once."""
        key = (gold, predicted, policy)
        if (known := self._cache.get(key)) is not None:
            return known
        try:
            same = compare(gold, predicted, policy)
        except ExpressionTooLarge:
            return self._remember(key, Verdict("unverifiable", None, "expression_too_large"))
        if same is not None:
            return self._remember(key, _verdict(same, gold, predicted))
        with self._lock:
            if (future := self._running.get(key)) is None:
                future = self._running[key] = self._pool.submit(
                    {"gold": gold, "prediction": predicted, "policy": asdict(policy)}
                )
        return _Pending(key, future)

    def _finish(self, entry: _Pending) -> Verdict:
        gold, predicted, _ = entry.key
        try:
            answer = entry.future.result()
        except ItemTimeout:
            verdict = Verdict("timeout", None, "deadline")
        else:
            reason = answer.get("reason")
            verdict = Verdict("unverifiable", None, reason) if reason else _verdict(answer["equal"], gold, predicted)
            self._remember(entry.key, verdict)
        with self._lock:
            self._running.pop(entry.key, None)
        return verdict._replace(extracted=entry.extracted, seconds=time.perf_counter() - entry.start)

    def _remember(self, key: _Key, verdict: Verdict) -> Verdict:
        with self._lock:
            while len(self._cache) >= CACHE_ENTRIES:
                del self._cache[next(iter(self._cache))]
            self._cache[key] = verdict
        return verdict


class _Pending(NamedTuple):
    """An item whose comparison runs in the pool."""

    key: _Key
    future: Future[dict[str, Any]]
    extracted: str | None = None
    start: float = 0.0


def _hints(gold: str, policy: Policy) -> tuple[int, bool]:
    if gold.isdigit():
        return 0, False
    try:
        return list_length(gold), policy.letters and len(gold) == 1 and "A" <= gold <= "J"
    except ExpressionTooLarge:
        return 0, False


def _complete(found: Extraction, completion: str, starts_in_thinking: bool) -> bool:
    """A truncated completion still counts when its thinking had ended before a complete final box."""
    return found.boxed and bool(strip_thinking(completion, starts_in_thinking).strip())


def _verdict(same: bool, gold: str, predicted: str) -> Verdict:
    if same:
        return Verdict("correct")
    if is_prose(gold):
        return Verdict("unverifiable", None, "gold_is_prose")
    several = re.search("[,;±]", predicted) and list_length(predicted) > 1 >= list_length(gold)
    return Verdict("wrong", None, "multiple_answers" if several else None)


def _plain_fault(gold: str) -> str | None:
    """A fault that needs no parser, None for a sound gold, "ask" when the pool must look."""
    text = canonical(gold)
    if not text:
        return "empty"
    if len(text) > MAX_CHARS:
        return f"longer than {MAX_CHARS} characters"
    if is_prose(text):
        return "prose, which only the same words can match"
    if text.count("{") != text.count("}"):
        return "unbalanced braces"
    try:
        return None if quantity(text) is not None else "ask"
    except ExpressionTooLarge:
        return "too large to be evaluated"


def _fault_of(future: Future[dict[str, Any]]) -> str | None:
    try:
        answer = future.result()
    except ItemTimeout:
        return "reading it passed the deadline"
    return answer.get("fault") or answer.get("reason")
