"""Grading of programs: whole ones with their tests, and the tasks of HumanEval+ and MBPP+.

`evalplus` brings the tasks and the rules of comparison; programs run in the sandbox, judged from another process by the
reference solution, call by call.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from assay.pipelines.errors import SourceError
from assay.pipelines.program_tests import split
from assay.pipelines.sandbox import Execution, Limits, Sandbox

__all__ = ["evalplus_problems", "grade_programs"]

_FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "base_input", "plus_input", "atol")


def grade_programs(programs: Sequence[str], workers: int = 2, limits: Limits | None = None) -> list[Execution]:
    """Run whole programs, tests included, `workers` at a time; `passed` when the tests came to their end.

    Tests at the end of a program (see `program_tests`) judge it from a process of their own and cannot be forged;
    a program without such tests has passed when it says that it came to its end.

    Raises:
        SandboxError: programs cannot be isolated on this machine.
    """
    with Sandbox(workers) as sandbox:
        return sandbox.run_many([split(program) for program in programs], limits)


def evalplus_problems(benchmark: str, path: Path | None = None, plus: bool = True) -> pl.DataFrame:
    """`id, problem, entry_point, tests` of HumanEval+ or MBPP+, `tests` as `CodeVerifier` reads them.

    Args:
        benchmark: humaneval or mbpp.
        path: a file of evalplus's tasks (.jsonl, .jsonl.gz); without one evalplus fetches its own.
        plus: with evalplus's inputs; else the original ones alone.

    Raises:
        SourceError: the tasks can neither be read nor fetched, or lack a field.
    """
    if benchmark not in ("humaneval", "mbpp"):
        raise SourceError(f"evalplus has no benchmark {benchmark!r}; benchmarks: humaneval, mbpp")
    tasks = _tasks(benchmark, path)
    rows = [(task["task_id"], task["prompt"], task["entry_point"], _tests(benchmark, task, plus)) for task in tasks]
    return pl.DataFrame(rows, schema=["id", "problem", "entry_point", "tests"], orient="row")


def _tasks(benchmark: str, path: Path | None) -> list[dict[str, Any]]:
    from evalplus import data
    from evalplus.data.mbpp import mbpp_deserialize_inputs
    from evalplus.data.utils import stream_jsonl

    try:
        if path is None:
            fetch = data.get_human_eval_plus if benchmark == "humaneval" else data.get_mbpp_plus
            return list(fetch().values())
        tasks = list(stream_jsonl(str(path)))
    except Exception as error:
        where = path or f"evalplus's copy of {benchmark}+"
        raise SourceError(f"{where}: {error}. Give a local file of evalplus's tasks where it cannot fetch.") from error
    for task in tasks:
        if missing := [name for name in _FIELDS if name not in task]:
            raise SourceError(f"{path}: task {task.get('task_id')} lacks {', '.join(missing)}; is it evalplus's file?")
        for name in ("base_input", "plus_input"):
            task[name] = mbpp_deserialize_inputs(task["task_id"], task[name]) if benchmark == "mbpp" else task[name]
    return tasks


def _tests(benchmark: str, task: dict[str, Any], plus: bool) -> str:
    """Python that compares the program with the reference on every input; the prompt's imports go before a program."""
    from evalplus.eval import _special_oracle as oracle

    inputs = [*task["base_input"], *(task["plus_input"] if plus else [])]
    lines = [
        inspect.getsource(oracle), _COMPARISON, "inf, nan = float('inf'), float('nan')", "reference = {}",
        f"exec({task['prompt'] + task['canonical_solution']!r}, reference)",
        f"from solution import {task['entry_point']} as candidate",
        f"compare({benchmark!r}, {task['entry_point']!r}, candidate, reference[{task['entry_point']!r}], {inputs!r}, "
        f"{float(task['atol'])!r})",
    ]  # fmt: skip
    return json.dumps({"tests": "\n".join(lines), "setup": _imports(task["prompt"])})


def _imports(prompt: str) -> str:
    return "\n".join(line for line in prompt.splitlines() if line.startswith(("import ", "from ")))


# Source: evalplus 0.3.1, `evalplus.eval.unsafe_execute`: equality, else floats within rtol 1e-7 and the task's atol
# (1e-6 where it has none), and the tasks with an oracle of their own.
_COMPARISON = '''
import copy

def is_floats(value):
    return isinstance(value, float) or bool(value) and isinstance(value, (list, tuple)) and all(
        isinstance(part, float) for part in value)

def close(found, wanted, atol):
    if isinstance(wanted, (list, tuple)):
        return isinstance(found, (list, tuple)) and len(found) == len(wanted) and all(
            close(a, b, atol) for a, b in zip(found, wanted))
    try:
        return found == wanted or abs(found - wanted) <= atol + 1e-7 * abs(wanted)
    except TypeError:
        return False

def right(benchmark, name, inputs, found, wanted, atol):
    same = found == wanted
    if benchmark == "humaneval" and name == "find_zero":
        return abs(_poly(*inputs, found)) <= atol
    if benchmark == "mbpp":
        if name == "are_equivalent" or name == "sum_div" and found == 0:
            same = True
        elif name == "surface_Area":
            same = same or abs(found - _surface_Area(*inputs)) <= atol
        elif name == "digit_distance_nums":
            same = same or found == _digit_distance_nums(*inputs)
        elif name in MBPP_OUTPUT_SET_EQ_TASKS:
            same = set(found) == set(wanted)
        elif name in MBPP_OUTPUT_NOT_NONE_TASKS:
            same = found == wanted if isinstance(found, bool) else wanted == (found is not None)
    atol = atol or (1e-6 if is_floats(wanted) else 0)
    return bool(same) or bool(atol) and type(found) is type(wanted) and close(found, wanted, atol)

def compare(benchmark, name, candidate, reference, inputs, atol):
    for given in inputs:
        wanted = reference(*copy.deepcopy(given))
        found = candidate(*copy.deepcopy(given))
        assert right(benchmark, name, given, found, wanted, atol), (given, found, wanted)
'''
