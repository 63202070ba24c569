"""The command as a user meets it: what it prints, and how it answers mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from assay.flows.cli import app, recipe_path
from assay.pipelines import snapshot as snapshots
from assay.pipelines.snapshot import FUNNEL, Snapshot
from assay.pipelines.store import SCHEMAS, Store

RECIPE = """
name = "pool"
store = "store"
ladder = ["format", "answer", "duplicates", "contamination"]
[[sources]]
name = "sums"
path = "sums.jsonl"
problem = "question"
answer = "gold"
[[benchmarks]]
name = "exam"
path = "exam.jsonl"
problem = "question"
answer = "gold"
"""
SUBJECTS = (
    "apples in the basket",
    "tall trees by the river",
    "coins under the old floor",
    "lamps along our street",
    "boats that left at dawn",
    "letters on her desk",
    "birds upon the wire",
    "stones in his pocket",
    "pages of this book",
    "steps up to the tower",
    "clouds over the hill",
    "keys on that ring",
)
ROWS = [
    {"question": f"How many {s} are there, when half of {2 * i} are gone?", "gold": str(i)}
    for i, s in enumerate(SUBJECTS, 3)
]


def assay(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PREFECT_LOGGING_LEVEL"}
    return subprocess.run(
        [sys.executable, "-m", "assay.flows.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=environment,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pool.toml").write_text(RECIPE)
    lines = [json.dumps(r) for r in ROWS]
    lines[3] = '{"question": "cut off'
    lines[5] = json.dumps({"gold": "4"})
    lines[7] = json.dumps({"question": "What is 1 + 1?", "gold": {"value": 2}})
    (tmp_path / "sums.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "exam.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    return tmp_path


def test_a_refresh_goes_on_over_bad_rows_and_names_them(project: Path) -> None:
    plan = assay("refresh", "pool.toml", "--dry-run", cwd=project)
    assert "9 problems, 9 new, 3 unparsable" in plan.stdout
    assert not (project / "store").exists()
    done = assay("refresh", "pool.toml", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "snapshot" in done.stdout
    rows = assay(
        "sql",
        "select split_part(evidence, '/', -1) from decisions where filter = 'parse' and not keep order by evidence",
        "-s",
        "store",
        cwd=project,
    ).stdout
    assert all(f"sums.jsonl, row {n}:" in rows for n in (4, 6, 8)), rows
    kept = pl.read_parquet(next((project / "store" / "snapshots_data").glob("*/data/train.parquet")))
    assert kept.height == 9 - 1
    told = assay("why", kept["id"][0], "-s", "store", cwd=project)
    assert told.returncode == 0
    assert "contamination" in told.stdout
    assert assay("store", "check", "-s", "store", cwd=project).stdout.strip() == "sound"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--set", "format.true_fals=drop"), "[format] has no key 'true_fals'; did you mean 'true_false'?"),
        (("--set", "format.proof=dorp"), "did you mean 'drop'"),
        (("--set", "sources.sums.path=smus.jsonl"), "near it: sums.jsonl"),
        (("--set", "benchmarks.exam.path=missing/exam.jsonl"), "missing"),
        (("--set", "sources.sums.answer=gld"), "gld"),
    ],
    ids=["key", "value", "source file", "benchmark file", "field"],
)
def test_mistakes_in_a_recipe(project: Path, change: tuple[str, ...], message: str) -> None:
    done = assay("refresh", "pool.toml", "--dry-run", *change, cwd=project)
    assert done.returncode == 2
    assert message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_filters_that_are_left_out_and_benchmark_rows_that_are_not_read_are_told(project: Path) -> None:
    with (project / "exam.jsonl").open("a") as file:
        file.write("{broken\n")
    with (project / "pool.toml").open("a") as file:
        file.write('[model]\npath = "m"\nengine = "replay"\n')
    plan = assay("refresh", "pool.toml", "--no-model", "--dry-run", "--set", "ladder=['difficulty']", cwd=project)
    assert "leaves out difficulty: no filter is left" in plan.stdout
    done = assay("refresh", "pool.toml", cwd=project)
    assert "benchmark exam: 1 rows unparsable and NOT looked for: line: " in done.stdout, done.stderr


def test_a_long_difference_is_counted_first_and_cut(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    for name, keep in (("one", True), ("two", False)):
        snapshots.record(store, Snapshot(name, None, "h", {}, [], pl.DataFrame(schema=FUNNEL), datetime(2026, 1, 1)))
        rows = [{"snapshot": name, "problem_id": f"p{i}", "filter": "format", "keep": keep} for i in range(30)]
        store.append("decisions", pl.DataFrame(rows, schema=SCHEMAS["decisions"]))
    short, long = (
        CliRunner().invoke(app, ["diff", "one", "two", "-s", str(store.path), *more]).output for more in ([], ["--all"])
    )
    assert short.index(" 30 ") < short.index("p0")
    assert (short.count("│ p"), long.count("│ p")) == (20 + 1, 30 + 1)  # and the head
    assert "10 more problems; --all shows them" in short
    assert "more problems" not in long


def test_nothing_left_after_a_filter(project: Path) -> None:
    (project / "sums.jsonl").write_text(json.dumps({"question": "Is 7 a prime?", "gold": "Yes"}) + "\n")
    done = assay("refresh", "pool.toml", cwd=project)
    assert done.returncode == 2
    assert "filter 'format' left nothing of 1 problems: true_false 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert "true_false" in assay("sql", "select reason from decisions", "-s", "store", cwd=project).stdout


def test_a_store_of_a_newer_version(project: Path) -> None:
    (project / "store").mkdir()
    (project / "store" / "store.json").write_text('{"format": "assay store", "version": 99}')
    done = assay("sql", "select 1", "-s", "store", cwd=project)
    assert done.returncode == 2
    assert "99" in done.stderr
    assert "reads up to 1. Update assay" in done.stderr


def test_a_recipe_that_is_not_there(project: Path) -> None:
    done = assay("refresh", "pol.toml", cwd=project)
    assert done.returncode == 2
    assert "near it: pool.toml" in done.stderr


def test_recipes_of_the_package_go_by_name(project: Path) -> None:
    assert recipe_path("math_pool").is_file()
    assert recipe_path(str(project / "pool.toml")) == project / "pool.toml"


def test_replay_of_recorded_results(tmp_path: Path) -> None:
    """pass@1 and pass@4 by hand: items with 1, 4 and 0 of 4 right."""
    rows = [[True, False, False, False], [True] * 4, [False] * 4]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps({"item": i, "correct": r}) + "\n" for i, r in enumerate(rows)))
    done = assay("replay", "r.jsonl", "--ks", "1,4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "41.67" in done.stdout
    assert "66.67" in done.stdout


def test_importing_filters_loads_nothing_heavy() -> None:
    heavy = "('torch', 'vllm', 'prefect')"
    code = f"import sys, assay.filters.answer_format; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
