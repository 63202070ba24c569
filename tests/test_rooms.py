"""The rooms: imports point only to the left, and what is heavy is not loaded by what is light."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "filters": {"filters"},
    "pipelines": {"filters", "pipelines"},
    "rl": {"filters", "pipelines", "rl"},
    "eval": {"filters", "pipelines", "eval"},
    "flows": {"filters", "pipelines", "rl", "eval", "flows"},
}


def imported(path: Path) -> set[str]:
    """The rooms that a module imports, inside functions too."""
    nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom | ast.Import)]
    names = [a.name for n in nodes for a in n.names if isinstance(n, ast.Import)]
    names += [f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names]
    return {n.split(".")[1] for n in names if n.startswith("assay.")} - {"__version__"}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_to_the_left(room: str) -> None:
    modules = sorted((ROOT / room).glob("*.py"))
    assert len(modules) > 5
    wrong = {m.name: found - MAY_IMPORT[room] for m in modules if (found := imported(m)) - MAY_IMPORT[room]}
    assert wrong == {}
