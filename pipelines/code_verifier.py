"""Verdicts on completions of code problems; the gold is the column `tests`. `verify.Verifier` grades them by this.

    with CodeVerifier() as verifier:
        verifier.grade("assert f(1) == 2", "```python\\ndef f(x): return x + 1\\n```").status      # "correct"

The program is the last fenced block after thinking, one marked as Python before an unmarked one. `correct` and `wrong`
as usual; a program that uses up its processor time is wrong (`time_limit`), one that the clock stopped before that is
`timeout`, for the machine may have been busy. `unverifiable`: the tests cannot be read, or the sandbox failed.
"""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from assay.pipelines.answer_extraction import strip_thinking
from assay.pipelines.code_tests import UnreadableTests, judge, read_tests
from assay.pipelines.sandbox import Execution, Limits, Sandbox
from assay.pipelines.verify import Verdict

__all__ = ["VERSION", "CodeVerifier", "extract_program"]

VERSION = "1"
_BLOCK = re.compile(r"^[ \t]*```[ \t]*([\w+.-]*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.S | re.M)
_PYTHON = ("python", "py", "python3")
_WRONG = {"timeout": "time_limit", "memory": "memory_limit", "output": "output_limit", "processes": "process_limit",
          "exited": "exited_early", "crashed": "crashed", "failed": "failed"}  # fmt: skip


class CodeVerifier:
    """Grades programs in the sandbox; usable from any thread. Close it, or use it as a context.

    Args:
        workers: programs at a time.
        limits: of one program (one input of a problem with several).

    Raises:
        SandboxError: programs cannot be isolated on this machine (from the grading calls).
    """

    def __init__(self, workers: int = 2, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.name = f"assay-code-{VERSION}"
        self._sandbox = Sandbox(workers)

    def __enter__(self) -> "CodeVerifier":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox."""
        self._sandbox.close()

    def grade(
        self, tests: str, completion: str, finish_reason: str | None = None, starts_in_thinking: bool = False
    ) -> Verdict:
        """Grade one completion; see `grade_many`."""
        return self.grade_many([(tests, completion)], [finish_reason], starts_in_thinking)[0]

    def grade_many(
        self,
        items: Sequence[tuple[str, str]],
        finish_reasons: Sequence[str | None] | None = None,
        starts_in_thinking: bool = False,
    ) -> list[Verdict]:
        """Verdicts of (tests, completion) pairs, in order; equal programs under equal tests are run once.

        Args:
            items: texts of the column `tests`, and whole completions, thinking included.
            finish_reasons: the sampler's; "length" without a closed block after thinking is `truncated`.
            starts_in_thinking: the prompt opened the thinking block.
        """
        finish = finish_reasons if finish_reasons is not None else [None] * len(items)
        programs = [extract_program(completion, starts_in_thinking) for _, completion in items]
        wanted = dict.fromkeys((tests, code) for (tests, _), (code, _) in zip(items, programs) if code is not None)
        with ThreadPoolExecutor(self._sandbox.workers) as threads:
            found = dict(zip(wanted, threads.map(lambda pair: self._run(*pair), wanted)))
        return [
            found[tests, code] if code is not None else _no_program(reason, ended)
            for (tests, _), (code, reason), ended in zip(items, programs, finish, strict=True)
        ]

    def _run(self, tests: str, program: str) -> Verdict:
        try:
            execution = judge(read_tests(tests), program, self._sandbox, self.limits)
        except UnreadableTests as error:
            return Verdict("unverifiable", program, f"tests_unreadable: {error}")
        return _verdict(execution, program, self.limits)


def extract_program(completion: str, starts_in_thinking: bool = False) -> tuple[str | None, str | None]:
    """The program of a completion, or None and why there is none."""
    text = strip_thinking(completion, starts_in_thinking)
    blocks = _BLOCK.findall(text)
    marked = [code for language, code in blocks if language.lower() in _PYTHON]
    plain = [code for language, code in blocks if not language]
    if marked or plain:
        return (marked or plain)[-1], None
    return None, "answer_only_in_thinking" if "```" in completion and "```" not in text else "no_answer"


def _no_program(reason: str | None, finish_reason: str | None) -> Verdict:
    return Verdict("truncated", None, "length") if finish_reason == "length" else Verdict("wrong", None, reason)


def _verdict(execution: Execution, program: str, limits: Limits) -> Verdict:
    status, seconds = execution.status, execution.seconds
    if status == "passed":
        return Verdict("correct", program, None, seconds)
    if status == "timeout" and execution.processor_seconds < limits.seconds:
        return Verdict("timeout", program, "clock", seconds)
    if status == "lost":
        return Verdict("unverifiable", program, "sandbox_failed", seconds)
    return Verdict("wrong", program, _WRONG[status], seconds)
