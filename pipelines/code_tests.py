"""The tests of a code problem, read from the column `tests`, and what they make of a program.

Accepted texts, as the public sets have them:

- Python: assertions, functions `test_...`, unittest, `check(candidate)`; it uses the program's names.
- JSON `{"tests": text or list of assertions, "setup": text before the program}`.
- JSON list of assertions (MBPP).
- JSON `{"inputs": [...], "outputs": [...], "checker": ...}`, or a list of `{"input": ..., "output": ...}`: what the
  program reads and must print (APPS, TACO, CodeContests); with `"fn_name"`, arguments and results of that function
  or of `Solution`'s method (LeetCode).

A checker tells whether an output is right where several are: `tokens` (the default: the same words), `lines` (the same
lines, spaces at the end aside), `floats` (numbers within `"tolerance"`, absolute or relative, 1e-6), or the Python text
of `check(input, expected, output) -> bool`, which runs in the sandbox, too.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from assay.pipelines.program_tests import borrow_imports
from assay.pipelines.sandbox import Execution, Job, Limits, Sandbox

__all__ = ["CodeTests", "UnreadableTests", "judge", "output_is_right", "read_tests"]

CHECKERS = ("tokens", "lines", "floats")


class UnreadableTests(ValueError):
    """The text holds no tests in a form that is known."""


@dataclass(frozen=True)
class CodeTests:
    """Either `code` that tests the program, or `examples` of input and expected output with a checker."""

    code: str = ""
    setup: str = ""
    examples: tuple[tuple[str, str], ...] = ()
    checker: str = "tokens"
    tolerance: float = 1e-6


def read_tests(text: str) -> CodeTests:
    """Read the column `tests`. Raises UnreadableTests, saying what is missing."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        value = {"inputs": [part.get("input") for part in value], "outputs": [part.get("output") for part in value]}
    if isinstance(value, dict) and "inputs" in value:
        return _read_examples(value)
    fields = value if isinstance(value, dict) else {"tests": value}
    code = fields.get("tests")
    code = "\n".join(map(str, code)) if isinstance(code, list) else code
    if not isinstance(code, str) or not code.strip():
        raise UnreadableTests("no tests: neither Python nor JSON with 'tests', or with 'inputs' and 'outputs'")
    return CodeTests(code, str(fields.get("setup") or ""))


def _read_examples(value: dict[str, Any]) -> CodeTests:
    inputs, outputs = value["inputs"], value.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        raise UnreadableTests("'inputs' and 'outputs' must be lists of one length, with an example at least")
    if name := value.get("fn_name"):
        return CodeTests(_function_tests(str(name), inputs, outputs), str(value.get("setup") or ""))
    if None in inputs or None in outputs:
        raise UnreadableTests("an example lacks its 'input' or its 'output'")
    pairs = tuple((_lines(given), _lines(wanted)) for given, wanted in zip(inputs, outputs))
    checker, tolerance = str(value.get("checker") or "tokens"), float(value.get("tolerance", 1e-6))
    if checker not in CHECKERS and "def check" not in checker:
        raise UnreadableTests(f"checker {checker!r}: neither one of {', '.join(CHECKERS)} nor a function `check`")
    return CodeTests("", str(value.get("setup") or ""), pairs, checker, tolerance)


def _lines(value: object) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _function_tests(name: str, inputs: list[Any], outputs: list[Any]) -> str:
    """Calls and results; a result that is a tuple counts as the list that JSON makes of it."""
    return (
        "inf, nan = float('inf'), float('nan')\n"
        "def plain(value):\n"
        "    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value\n"
        "try:\n"
        f"    from solution import Solution\n    function = getattr(Solution(), {name!r})\n"
        f"except ImportError:\n    import solution\n    function = getattr(solution, {name!r})\n"
        f"for given, wanted in zip({inputs!r}, {outputs!r}):\n"
        "    assert plain(function(*given)) == wanted, (given, wanted)\n"
    )


def judge(tests: CodeTests, program: str, sandbox: Sandbox, limits: Limits | None = None) -> Execution:
    """Run a program against its tests: `passed`, or how it failed first. A wrong output is `failed`."""
    program = f"{tests.setup}\n{program}" if tests.setup else program
    if tests.code:
        return sandbox.run(Job(program, borrow_imports(program, tests.code)), limits)
    for given, wanted in tests.examples:
        execution = sandbox.run(Job(program, None, given), limits)
        if execution.status not in ("passed", "exited"):
            return execution
        if not _accepts(tests, given, wanted, execution.stdout, sandbox, limits):
            return execution._replace(status="failed", stderr=f"wrong output for input {given[:200]!r}")
    return execution._replace(status="passed")


def _accepts(tests: CodeTests, given: str, wanted: str, output: str, sandbox: Sandbox, limits: Limits | None) -> bool:
    if tests.checker in CHECKERS:
        return output_is_right(wanted, output, tests.checker, tests.tolerance)
    call = f"\nassert check({given!r}, {wanted!r}, {output!r})\n"
    return sandbox.run(Job("", tests.checker + call), limits).status == "passed"


def output_is_right(wanted: str, output: str, checker: str = "tokens", tolerance: float = 1e-6) -> bool:
    """Whether an output counts as the expected one; `tolerance` is for `floats`, absolute or relative."""
    if checker == "lines":
        return _stripped(wanted) == _stripped(output)
    expected, found = wanted.split(), output.split()
    if checker == "tokens" or len(expected) != len(found):
        return expected == found
    return all(a == b or _close(a, b, tolerance) for a, b in zip(expected, found))


def _stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _close(wanted: str, found: str, tolerance: float) -> bool:
    try:
        return math.isclose(float(wanted), float(found), rel_tol=tolerance, abs_tol=tolerance)
    except ValueError:
        return False
