"""The program's process and the tests' process, once they are shut in."""

import ast
import atexit
import builtins
import linecache
import socket
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from .remote import Ended, Peer

__all__ = ["run_program", "run_tests", "serve_program"]

Report = Callable[[str], None]


def run_program(code: str, report: Report) -> None:
    """A script: it has passed when it came to its end; `exited` when it called for its own."""
    outcome = _execute(code, "program.py", _module("__main__"))
    if threading := sys.modules.get("threading"):
        threading._shutdown()  # waits for the script's threads, as Python does at its end
    atexit._run_exitfuncs()
    report(_flushed(outcome))


def serve_program(code: str, report: Report, line: socket.socket) -> None:
    """A program under test: what it defines is used by the tests' process over the line."""
    module = _module("solution")  # so that a script's own main part does not run
    outcome = _flushed(_execute(code, "program.py", module))
    report("loaded" if outcome == "passed" else outcome)
    if outcome == "passed":
        Peer(line, open_handed=True, names=vars(module)).serve()


def run_tests(tests: str, report: Report, line: socket.socket) -> None:
    """The tests: names that they do not define are the program's; `passed` when they came to their end."""
    peer, module = Peer(line, open_handed=False), _module("__main__")
    sys.modules["solution"] = _Solution(peer)
    try:
        tree = ast.parse(tests)
        named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        vars(module).update(_foreign(peer.names(sorted(named - vars(module).keys()))))
    except (Ended, SyntaxError, ValueError, RecursionError):
        traceback.print_exc()
        return report("failed")
    outcome = _execute(tests, "tests.py", module, tree)
    if outcome == "passed":
        outcome = _call_test_functions(named, module)
    outcome = "passed" if outcome == "exited" else outcome  # unittest.main(); the program's own exits end the line
    return report(_flushed("ended" if peer.ended else outcome))


class _Solution(types.ModuleType):
    """`from solution import f` in tests."""

    def __init__(self, peer: Peer) -> None:
        super().__init__("solution")
        self.__dict__["_peer"] = peer

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__["_peer"].names([name])
        if name.startswith("__") or name not in found:
            raise AttributeError(name)
        return found[name]


def _module(name: str) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    return module


def _execute(code: str, file: str, module: types.ModuleType, tree: ast.Module | None = None) -> str:
    """Run source text in a module; what became of it, with the traceback on stderr as Python prints it."""
    linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    try:
        exec(compile(tree or code, file, "exec", dont_inherit=True), vars(module))
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return "exited" if stop.code in (None, 0, False) else "failed"
    except MemoryError:
        return "memory"
    except BaseException:
        traceback.print_exc()
        return "failed"
    return "passed"


def _flushed(outcome: str) -> str:
    """Text that the output's limit does not let through makes the outcome `output`."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return "output"
    return outcome


def _foreign(found: dict[str, Any]) -> dict[str, Any]:
    """What tests take from the program. A built-in name is the built-in, unless they take nothing else."""
    return {name: value for name, value in found.items() if not hasattr(builtins, name)} or found


def _call_test_functions(named: set[str], module: types.ModuleType) -> str:
    """Functions `test...` that the tests define and never name are called, as pytest would."""
    calls = [f"{name}()" for name, value in vars(module).items()
             if name.startswith("test") and name not in named and isinstance(value, types.FunctionType)]  # fmt: skip
    return _execute("\n".join(calls), "calls.py", module)
