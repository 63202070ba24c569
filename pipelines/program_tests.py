"""Tells the tests of a whole program from the program they test, so that the two can run in processes of their own.

The tests are what stands at the very end of the text, where only the author of the tests writes:

- a call of a function that holds assertions (`check(candidate)`): from that function's last definition on;
- else the assertions that end the program. All but the last must be plain comparisons of calls and constants, since an
  assertion further up may be the program's own: its author must not get to run anything in the tests' process.

Anything else at the end is not seen as tests, and the program runs as a whole. Not protected from: a program that
knows the text of its tests and cuts into it, with an open string at its end. Where program and tests come apart, they
should stay apart (`Job(code, tests)`).
"""

import ast
import builtins
import re
import sys

from assay.pipelines.sandbox import Job

__all__ = ["borrow_imports", "split"]

MAX_CHARS = 1_000_000
_LINE = re.compile(r"[^\r\n]*(?:\r\n|[\r\n]|$)")
_PURE = {"abs", "all", "any", "bool", "complex", "dict", "enumerate", "float", "frozenset", "int", "isinstance", "len",
         "list", "max", "min", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "type",
         "zip"}  # fmt: skip
_PLAIN_NODES = (
    ast.Assert, ast.Compare, ast.Call, ast.Constant, ast.Name, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.BoolOp,
    ast.UnaryOp, ast.BinOp, ast.Subscript, ast.Slice, ast.Starred, ast.IfExp, ast.expr_context, ast.operator,
    ast.boolop, ast.unaryop, ast.cmpop, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.comprehension,
)  # fmt: skip


def split(program: str) -> Job:
    """The program and its tests; tests None where none are seen."""
    tree = _parse(program)
    if tree is None or not tree.body:
        return Job(program)
    first = _first_test(tree.body)
    if first is None or tree.body[first].col_offset:
        return Job(program)
    line = min(node.lineno for node in (tree.body[first], *getattr(tree.body[first], "decorator_list", [])))
    lines = _LINE.findall(program)
    code, tests = "".join(lines[: line - 1]), "".join(lines[line - 1 :])
    return Job(code, _imports(tree.body[:first], tree.body[first:]) + tests)


def borrow_imports(code: str, tests: str) -> str:
    """The tests, with the program's imports of standard modules that they use: those must not be the program's own."""
    program, testing = _parse(code), _parse(tests)
    return (_imports(program.body, testing.body) if program and testing else "") + tests


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text) if len(text) <= MAX_CHARS else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _first_test(body: list[ast.stmt]) -> int | None:
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and isinstance(last.value.func, ast.Name):
        return _definition(body, last.value.func.id)
    if not isinstance(last, ast.Assert):
        return None
    first = len(body) - 1
    while first and isinstance(body[first - 1], ast.Assert) and _is_plain(body[first - 1]):
        first -= 1
    return first


def _definition(body: list[ast.stmt], name: str) -> int | None:
    """Where a function that asserts is last defined."""
    for place in reversed(range(len(body))):
        node = body[place]
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return place if any(isinstance(inner, ast.Assert) for inner in ast.walk(node)) else None
    return None


def _is_plain(statement: ast.stmt) -> bool:
    """Whether an assertion can do no more than call the program, pure built-ins, and compare."""
    for node in ast.walk(statement):
        if not isinstance(node, _PLAIN_NODES):
            return False
        if isinstance(node, ast.Name) and hasattr(builtins, node.id) and node.id not in _PURE:
            return False
        if isinstance(node, ast.Name) and node.id.startswith("__"):
            return False
    return True


def _imports(program: list[ast.stmt], tests: list[ast.stmt]) -> str:
    """Top-level imports of standard modules, under their own names, that bind what the tests read."""
    read = {node.id for part in tests for node in ast.walk(part) if isinstance(node, ast.Name)}
    kept: list[str] = []
    for node in program:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            for alias in node.names:
                top = (module or alias.name).partition(".")[0]
                standard = top in sys.stdlib_module_names and (module or isinstance(node, ast.Import))
                if standard and alias.asname is None and alias.name.partition(".")[0] in read:
                    kept.append(f"from {module} import {alias.name}\n" if module else f"import {alias.name}\n")
    return "".join(kept)
