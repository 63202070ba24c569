"""Grading of whole programs, of evalplus's tasks and of completions: real programs in the real sandbox."""

import gzip
import json
from pathlib import Path

import pytest

from assay.eval.code import evalplus_problems, grade_programs
from assay.pipelines.code_tests import UnreadableTests, judge, output_is_right, read_tests
from assay.pipelines.code_verifier import CodeVerifier, extract_program
from assay.pipelines.errors import SourceError
from assay.pipelines.program_tests import borrow_imports, split
from assay.pipelines.recipe import Table
from assay.pipelines.sandbox import Limits, Sandbox

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def verifier():
    with CodeVerifier(workers=2, limits=Limits(seconds=0.5, wall_seconds=30)) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(1) as sandbox:
        yield sandbox


def test_whole_programs_keep_their_order_and_their_reasons():
    programs = ["assert 1 + 1 == 2", "assert False", "def f(: pass", "print(1)", "import sys; sys.exit(0)\nassert True",
                "def f(x):\n    return x\n\ndef check(c):\n    assert c(3) == 3\n\ncheck(f)", ""]  # fmt: skip
    found = grade_programs(programs)
    assert [e.status for e in found] == ["passed", "failed", "failed", "passed", "exited", "passed", "passed"]
    assert "AssertionError" in found[1].stderr
    assert "SyntaxError" in found[2].stderr


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(): pass\nassert f() is None\nassert 2 == 2", "assert f() is None\nassert 2 == 2"),
        ("import math\nfrom math import pi, e\nx = 1\nassert math.sqrt(x) == pi", "import math\nfrom math import pi\n"
                                                                                  "assert math.sqrt(x) == pi"),
        ("from operator import is_ as isclose\nassert isclose(1, 1)", "assert isclose(1, 1)"),
        ("def check(c):\n    assert c\n@d\ndef check(c):\n    assert c()\n\ncheck(f)",
         "@d\ndef check(c):\n    assert c()\n\ncheck(f)"),
        ("a = 1\nassert __import__('os')\nassert a == 1", "assert a == 1"),
        ("a = 1\nassert a.b\nassert a == 1", "assert a == 1"),
        ("a = 1\nassert [b := 1]\nassert a == 1", "assert a == 1"),
        ("a = 1\nassert (lambda: 1)()\nassert a == 1", "assert a == 1"),
        ("a = 1\nassert eval('1')\nassert a == 1", "assert a == 1"),
        ("def main():\n    print(1)\nmain()", None),
        ("a = 1; assert a == 1", None),
        ("x = 1", None),
        ("(" * 5000, None),
    ],
)  # fmt: skip
def test_split_takes_no_more_than_the_tests(program, tests):
    job = split(program)
    assert job.tests == tests
    if tests:
        assert job.code + tests.removeprefix("import math\nfrom math import pi\n") == program


def test_tests_get_standard_modules_from_the_real_place():
    code = "import math, numpy as np\nfrom os.path import join\nfrom evil import isclose\nfrom . import x"
    assert borrow_imports(code, "assert math and join and isclose and np and x") == (
        "import math\nfrom os.path import join\nassert math and join and isclose and np and x"
    )


def test_real_programs_of_a_model_get_their_known_counts(shared):
    """Two tasks of the recorded CodeGen-16B programs: 65 and 67 of 100 pass HumanEval's tests; a part of them here."""
    with gzip.open(shared / "data/benchmarks/humaneval.jsonl.gz", "rt") as file:
        tasks = {task["task_id"]: task for task in map(json.loads, file)}
    known = json.loads((shared / "data/replay/codegen16b_humaneval_first82_passed.json").read_text())
    with (shared / "data/replay/codegen16b_humaneval_first82.jsonl").open() as file:
        row = json.loads(next(file))
    task = tasks[row["task_id"]]
    tests = f"{task['test']}\ncheck({task['entry_point']})\n"
    found = grade_programs([f"{row['prompt']}{sample}\n{tests}" for sample in row["samples"]])
    assert sum(execution.status == "passed" for execution in found) == known[row["task_id"]]


EVALPLUS = [
    {"task_id": "HumanEval/0", "entry_point": "double", "atol": 0, "contract": "",
     "prompt": "from typing import List\n\ndef double(xs: List[float]) -> List[float]:\n    \"\"\"Twice.\"\"\"\n",
     "canonical_solution": "    return [2 * x for x in xs]\n", "base_input": [[[1.5, 2.0]]],
     "plus_input": [[[]], [[0.1] * 3], [[float("inf")]]]},
    {"task_id": "HumanEval/32", "entry_point": "find_zero", "atol": 1e-4, "contract": "",
     "prompt": "def find_zero(xs: list):\n    \"\"\"A root.\"\"\"\n",
     "canonical_solution": "    return -xs[0] / xs[1]\n",
     "base_input": [[[1, 2]]], "plus_input": [[[-6, 3]]]},
]  # fmt: skip


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "plus.jsonl"
    path.write_text("\n".join(map(json.dumps, EVALPLUS)))
    return evalplus_problems("humaneval", table(path))


def table(path):
    return Table(name="plus", path=path, problem="prompt")


@pytest.mark.parametrize(
    ("task", "program", "status"),
    [
        (0, "def double(xs: List[float]):\n    return [x + x for x in xs]", "correct"),
        (0, "def double(xs):\n    return [x * 2.0000000001 for x in xs]", "correct"),
        (0, "def double(xs):\n    return [x * 2.001 for x in xs]", "wrong"),
        (0, "def double(xs):\n    return tuple(x + x for x in xs)", "wrong"),
        (0, "def double(xs):\n    return [3.0, 4.0]", "wrong"),
        (0, "def double(xs):\n    class Yes(list):\n        __eq__ = lambda s, o: True\n    return Yes([9])", "wrong"),
        (0, "def twice(xs):\n    return [x + x for x in xs]", "wrong"),
        (1, "def find_zero(xs):\n    return -xs[0] / xs[1] + 1e-6", "correct"),
        (1, "def find_zero(xs):\n    return 0.1", "wrong"),
    ],
)
def test_evalplus_tasks_from_a_local_file(verifier, tasks, task, program, status):
    verdict = verifier.grade(tasks["tests"][task], f"```python\n{program}\n```")
    assert verdict.status == status, verdict


def test_evalplus_reads_mbpp_and_its_own_rules(verifier, tmp_path):
    path = tmp_path / "mbpp.jsonl"
    task = {"task_id": "Mbpp/2", "entry_point": "similar_elements", "atol": 0, "prompt": "\"\"\"Shared.\"\"\"\n",
            "canonical_solution": "def similar_elements(a, b):\n    return tuple(set(a) & set(b))\n",
            "base_input": [[[3, 4, 5], [5, 7, 4]]], "plus_input": []}  # fmt: skip
    path.write_text(json.dumps(task))
    tests = evalplus_problems("mbpp", table(path))["tests"][0]
    right = "def similar_elements(a, b):\n    assert type(a) is tuple\n    return [x for x in b if x in a]"
    assert verifier.grade(tests, f"```\n{right}\n```").status == "correct", "sets are compared, in any order"
    assert verifier.grade(tests, "```\ndef similar_elements(a, b):\n    return a\n```").status == "wrong"


ASSERTION = """import numpy as np

def assertion(out, exp, atol):
    if atol == 0 and isinstance(exp, float):
        atol = 1e-6
    if out != exp and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert out == exp, (out, exp)
"""


@pytest.mark.parametrize(("program", "status"), [
    ("def half(x: List[float]):\n    return x[0] / 2", "correct"),
    ("def half(x):\n    return x[0] / 2 + 1e-9", "correct"), ("def half(x):\n    return x[0]", "wrong")])  # fmt: skip
def test_tasks_as_the_hub_has_them_bring_their_own_tests(verifier, tmp_path, program, status):
    check = "def check(candidate):\n    for inp, exp in zip([[[1.0]], [[3.0]]], [0.5, 1.5]):\n"
    task = {"task_id": "HumanEval/0", "prompt": "from typing import List\n\ndef half(x: List[float]) -> float:\n",
            "entry_point": "half", "canonical_solution": "",
            "test": f"{ASSERTION}\n{check}        assertion(candidate(*inp), exp, 0)\n"}  # fmt: skip
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps(task))
    row = evalplus_problems("humaneval", table(path)).row(0, named=True)
    assert (row["id"], row["problem"]) == ("HumanEval/0", task["prompt"])
    assert verifier.grade(row["tests"], f"```python\n{program}\n```").status == status


def test_mbpp_of_the_hub_is_asked_with_an_example_that_names_the_function(verifier, tmp_path):
    loop = "for inp, exp in zip([[[3, 1]], [[2]]], [1, 2]):\n    assertion(least(*inp), exp, 0)\n"
    task = {"task_id": 2, "prompt": "Write a function to find the least.", "code": "", "test_imports": ["import math"],
            "test_list": ["assert least([3, 1]) == 1"], "test": ASSERTION + loop}  # fmt: skip
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps(task))
    row = evalplus_problems("mbpp", table(path)).row(0, named=True)
    assert row["problem"] == "Write a function to find the least.\nassert least([3, 1]) == 1"
    for program, status in (("min(x)", "correct"), ("max(x)", "wrong")):
        assert verifier.grade(row["tests"], f"```python\ndef least(x):\n    return {program}\n```").status == status


def test_evalplus_files_that_do_not_fit_are_named(tmp_path):
    path = tmp_path / "other.jsonl"
    wrong = {'{"task_id": "HumanEval/0", "prompt": "x"}': "task HumanEval/0 lacks entry_point, test",
             '{"task_id": 3, "plus_input": []}': "task 3 lacks prompt", "{": "line: not JSON"}  # fmt: skip
    for line, said in wrong.items():
        path.write_text(line)
        with pytest.raises(SourceError, match=rf"other\.jsonl, row 1: {said}"):
            evalplus_problems("humaneval", table(path))
    with pytest.raises(SourceError, match=r"missing\.jsonl"):
        evalplus_problems("humaneval", table(tmp_path / "missing.jsonl"))
    with pytest.raises(SourceError, match="humaneval, mbpp"):
        evalplus_problems("codeforces", table(path))


@pytest.mark.parametrize(
    ("wanted", "output", "checker", "right"),
    [
        ("1 2\n3", "1  2 3\n", "tokens", True),
        ("1 2", "1 2 3", "tokens", False),
        ("a b \nc\n\n", "a b\nc", "lines", True),
        ("a b", "a  b", "lines", False),
        ("0.5 yes", "0.50000049 yes", "floats", True),
        ("0.5 yes", "0.51 yes", "floats", False),
        ("1000000.0", "1000000.9", "floats", True),
        ("1", "one", "floats", False),
        ("1", "nan", "floats", False),
    ],
)
def test_checkers_of_outputs(wanted, output, checker, right):
    assert output_is_right(wanted, output, checker) is right


FACTORS = """def check(given, wanted, found):
    a, b = map(int, found.split())
    return a * b == int(given) and a > 1 and b > 1"""
SUM = "a, b = map(int, input().split())\nprint(a + b)"


@pytest.mark.parametrize(
    ("tests", "program", "status"),
    [
        ({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}, SUM, "passed"),
        ({"inputs": ["1 2\n"], "outputs": ["3\n"]}, f"{SUM}\nimport sys\nsys.exit(0)", "passed"),
        ({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "8\n"]}, SUM, "failed"),
        ({"inputs": ["1"], "outputs": ["1"]}, SUM, "failed"),
        ([{"input": "1 2", "output": "3"}], SUM, "passed"),
        ({"inputs": [[[2, 1]]], "outputs": [[1, 2]], "fn_name": "order"}, "def order(x): return tuple(sorted(x))",
         "passed"),
        ({"inputs": [[2, 1]], "outputs": [3], "fn_name": "add"},
         "class Solution:\n    def add(self, a, b): return a + b", "passed"),
        ({"inputs": [[2, 1]], "outputs": [4], "fn_name": "add"}, "def add(a, b): return a + b", "failed"),
        ({"inputs": ["6"], "outputs": ["2 3"], "checker": FACTORS}, "print(3, 2)", "passed"),
        ({"inputs": ["6"], "outputs": ["2 3"], "checker": FACTORS}, "print(6, 1)", "failed"),
        ({"inputs": ["1"], "outputs": ["0.3333333"], "checker": "floats"}, "print(1 / 3)", "passed"),
        (["assert f(1) == 2", "assert f(2) == 3"], "def f(x): return x + 1", "passed"),
        ({"tests": "assert f(4) == 2", "setup": "import math"}, "def f(x): return math.sqrt(x)", "passed"),
    ],
)  # fmt: skip
def test_public_forms_of_tests(sandbox, tests, program, status):
    assert judge(read_tests(json.dumps(tests)), program, sandbox).status == status


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"inputs": [1], "outputs": []}', '[{"input": "1"}]', "17",
                                  '{"inputs": ["1"], "outputs": ["1"], "checker": "guess"}'])  # fmt: skip
def test_unreadable_tests_are_said_so(text, verifier):
    with pytest.raises(UnreadableTests):
        read_tests(text)
    verdict = verifier.grade(text, "```python\nx = 1\n```")
    assert (verdict.status, str(verdict.reason).partition(":")[0]) == ("unverifiable", "tests_unreadable")


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("```python\na = 1\n```\nthen\n```python\na = 2\n```\ndone", ("a = 2\n", None)),
        ("```python\na = 1\n```\nIt prints\n```\n7\n```", ("a = 1\n", None)),
        ("<think>```python\na = 1\n```</think>no", (None, "answer_only_in_thinking")),
        ("<think>```python\na = 1\n```</think>\n```py\nb\n```", ("b\n", None)),
        ("```python\na = 1", (None, "no_answer")),
        ("```cpp\nint a;\n```", (None, "no_answer")),
        ("  ```python\n  a = '''```'''\n  ```", ("  a = '''```'''\n", None)),
        ("", (None, "no_answer")),
    ],
)
def test_the_program_of_a_completion(completion, expected):
    assert extract_program(completion) == expected


def test_the_documentations_example(capfd):
    text = (ROOT / "docs/code.md").read_text()
    example = text.partition("```python\n")[2].partition("\n```\n\n")[0]
    exec(example, {})
    assert capfd.readouterr().out.split("\n") == ["cba", "", "passed", "['passed', 'failed']", "wrong", ""]


def test_verdicts(verifier):
    def block(code: str) -> str:
        return f"<think>hm</think>```python\n{code}\n```"

    tests = "assert f(1) == 2"
    items = [block("def f(x): return x + 1"), block("def f(x): return x"), block("while True: pass"), "no program",
             "```python\ndef f(x): ret", block("import os; os._exit(0)"), block("def f(x): return x + 1")]  # fmt: skip
    finish = ["stop", "stop", "stop", "stop", "length", "stop", "length"]
    verdicts = verifier.grade_many([(tests, item) for item in items], finish)
    assert [(v.status, v.reason) for v in verdicts] == [
        ("correct", None), ("wrong", "failed"), ("wrong", "time_limit"), ("wrong", "no_answer"),
        ("truncated", "length"), ("wrong", "exited_early"), ("correct", None),
    ]  # fmt: skip
    with CodeVerifier(1, Limits(wall_seconds=1)) as impatient:
        assert impatient.grade(tests, block("import time; time.sleep(99)")).status == "timeout"
    unfinished = "```python\ndef f(x): return x + 1\n```"
    assert verifier.grade(tests, unfinished, None, True).reason == "answer_only_in_thinking"
