"""What the filters must reach, on the package's own cases and, where it is there, on real data."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.flows import bench
from assay.flows.cli import app
from assay.pipelines.errors import SourceError

# Every free answer that is taken for a choice or for true/false, by how it begins, and why it is.
READ = {
    "asdiv: gold": "the gold is Yes, which a guess hits half of the time",
    "college_math: gold": "the gold is Yes or No, some with their reason",
    "gaokao_math_cloze: options 1 to 4": "which of four numbered statements are true: the gold is their numbers",
}


@pytest.fixture(scope="module")
def pool(shared: Path):
    return bench.real_pool(shared / "data")


def test_own_cases_reach_what_they_must() -> None:
    figures = list(bench.measure(None, None))
    assert [f for f in figures if not f.holds] == []
    assert {f"contamination, {kind}" for kind in bench.KINDS} < {f.what for f in figures}
    page = bench.table(figures)
    assert "FALLS SHORT" not in page
    assert page.splitlines()[1].split()[:2] == ["formats", "386"]


def test_a_figure_that_falls_short_says_so_and_fails_the_command(tmp_path: Path, monkeypatch) -> None:
    short = bench.Figure("x", "y", 0.5, 10, 0.9, misses=["a row"])
    most = bench.Figure("x", "y", 0.5, 10, 0.4, most=True)
    assert not short.holds
    assert not most.holds
    assert not bench.Figure("x", "y", 1.0, 0, 0.9).holds
    monkeypatch.setattr(bench, "measure", lambda *_: iter([short]))
    done = CliRunner().invoke(app, ["bench", "filters", "--misses"])
    assert done.exit_code == 1
    assert "FALLS SHORT" in done.output
    assert "x: a row" in done.output


def test_formats(shared: Path) -> None:
    figure = bench.formats(bench.rows_of(shared / "cases" / "formats.jsonl"))
    assert figure.holds, figure.misses


def test_multiple_choice_recall(pool) -> None:
    figure = bench.multiple_choice(pool)
    assert figure.of > 700
    assert figure.holds, figure.misses


def test_false_positives_are_few_and_each_was_read(pool) -> None:
    figure = bench.false_positives(pool)
    assert figure.of > 4000
    assert figure.holds, figure.misses
    assert [miss for miss in figure.misses if not miss.startswith(tuple(READ))] == []


def test_free_answers_read_as_proofs_are_a_figure_of_their_own(pool) -> None:
    figure = bench.other_formats(pool)
    assert 0 < len(figure.misses) / figure.of == figure.value < 0.01
    assert "only reported" in bench.table([figure])
    assert figure.holds


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", "/nope"], "holds no source"),
        (["--data", "DATA", "--cases", "/nope"], "no such file"),
        (["--cases", "/nope"], "needs --data"),
    ],
)
def test_folders_that_are_not_there_are_told(options: list[str], said: str, shared: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "filters", *(str(shared / "data") if o == "DATA" else o for o in options)])
    assert isinstance(done.exception, SourceError)
    assert said in str(done.exception)


def test_contamination(shared: Path) -> None:
    items = [str(row["problem"]) for row in bench.rows_of(shared / "data/benchmarks/math500.jsonl")]
    figures = list(bench.contaminated(items, bench.rows_of(shared / "cases" / "decontamination.jsonl")))
    assert {f.what for f in figures} >= {f"contamination, {kind}" for kind in bench.KINDS}
    assert [(f.what, f.value, f.misses) for f in figures if not f.holds] == []


def test_copies_planted_in_the_real_pool(pool) -> None:
    recall, precision = bench.copies(pool)
    assert recall.of > 900
    assert recall.holds, recall.value
    assert precision.holds, precision.misses


def test_the_review_command(tmp_path: Path) -> None:
    from assay.pipelines.store import Store

    store = Store.open(tmp_path / "store", create=True)
    done = CliRunner().invoke(app, ["review", "-s", str(store.path)])
    assert f"{store.path / 'review.toml'}: 0 new, 0 undecided" in " ".join(done.output.split())
