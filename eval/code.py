"""Grading of programs: whole ones with their tests, and the tasks of HumanEval+ and MBPP+.

`evalplus` brings the tasks, and for its release the rules of comparison. Programs run in the sandbox, judged call by
call from another process.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import Any

import polars as pl

from assay.pipelines.errors import SourceError
from assay.pipelines.program_tests import split
from assay.pipelines.recipe import Table
from assay.pipelines.rows import place_of, read_rows
from assay.pipelines.sandbox import Execution, Limits, Sandbox

__all__ = ["evalplus_problems", "grade_programs"]

_RELEASE = ("task_id", "prompt", "entry_point", "canonical_solution", "base_input", "plus_input", "atol")
_DATA_SET = {"humaneval": ("task_id", "prompt", "entry_point", "test"),
             "mbpp": ("task_id", "prompt", "test_imports", "test_list", "test")}  # fmt: skip


def grade_programs(programs: Sequence[str], workers: int = 2, limits: Limits | None = None) -> list[Execution]:
    """Run whole programs, tests included, `workers` at a time; `passed` when the tests came to their end.

    Tests at the end of a program (see `program_tests`) judge it from a process of their own and cannot be forged;
    a program without such tests has passed when it says that it came to its end.

    Raises:
        SandboxError: programs cannot be isolated on this machine.
    """
    with Sandbox(workers) as sandbox:
        return sandbox.run_many([split(program) for program in programs], limits)


def evalplus_problems(benchmark: str, table: Table, plus: bool = True) -> pl.DataFrame:
    """`id, problem, tests` of HumanEval+ or MBPP+, `tests` as `CodeVerifier` reads them.

    Args:
        benchmark: humaneval or mbpp.
        table: where the tasks lie, read as every other benchmark is: evalplus's data set on the Hub or a copy of it,
            whose own tests judge; or a file of evalplus's release, judged by evalplus's rules on its inputs.
        plus: of a release, with evalplus's inputs; else the original ones alone.

    Raises:
        SourceError: the tasks can neither be read nor fetched, or lack a field.
    """
    if benchmark not in _DATA_SET:
        raise SourceError(f"evalplus has no benchmark {benchmark!r}; benchmarks: {', '.join(_DATA_SET)}")
    rows = []
    for row in read_rows(table):
        task = row.fields if row.fields is not None else {}
        released = "plus_input" in task
        if missing := [name for name in (_RELEASE if released else _DATA_SET[benchmark]) if name not in task]:
            found = row.fault or f"task {task.get('task_id')} lacks {', '.join(missing)}"
            raise SourceError(f"{place_of(table)}, row {row.line}: {found}; is it evalplus's data set, or its release?")
        asked = _released(benchmark, task, plus) if released else _published(benchmark, task)
        rows.append((str(task["task_id"]), *asked))
    return pl.DataFrame(rows, schema=dict.fromkeys(("id", "problem", "tests"), pl.String), orient="row")


def _published(benchmark: str, task: dict[str, Any]) -> tuple[str, str]:
    """Problem and tests of a row of the data set; MBPP+ names its function only in the examples."""
    if benchmark == "humaneval":
        tests, prompt = f"{task['test']}\ncheck({task['entry_point']})\n", task["prompt"]
        return prompt, json.dumps({"tests": tests, "setup": _imports(prompt)})
    tests = "\n".join([*task["test_imports"], task["test"]])
    return f"{task['prompt']}\n{task['test_list'][0]}", json.dumps({"tests": tests})


def _released(benchmark: str, task: dict[str, Any], plus: bool) -> tuple[str, str]:
    """Problem and tests of a task of the release."""
    from evalplus.data.mbpp import mbpp_deserialize_inputs

    if benchmark == "mbpp":
        inputs = {name: mbpp_deserialize_inputs(task["task_id"], task[name]) for name in ("base_input", "plus_input")}
        task = task | inputs
    return task["prompt"], _tests(benchmark, task, plus)


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
