"""What the filters must reach, on the package's own cases and, where it is there, on real data."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.flows import bench
from assay.flows.cli import app
from assay.pipelines.errors import SourceError

# Every free answer that is taken for something else, by a piece of it: what it is.
READ = {
    "the former equal the latter": "yes or no",
    "a bridge deal each player receives an ace": "yes or no",
    "can it always be concluded they span": "yes or no, with the reason",
    "fails to have an inverse? Explain. | No": "yes or no, with the reason",
    "fails to be invertible? Explain. | No": "yes or no, with the reason",
    "Suppose basketball teams": "yes or no",
    "State whether or not the vector field": "yes or no",
    "Could the system of linear equations be consistent": "yes or no, with the reason",
    "| This is not a subspace": "yes or no, told in a sentence",
    "Does it follow that $P(0<X<1)>P(1<X<2)$": "yes or no",
    "an indicator function? If yes, then of what event": "yes or no, and what follows from it",
    "关于函数 $f(x)=\\sin x+": "which of four numbered statements are true: the gold is their numbers",
    "What is the meaning of $\\mathbf{u} \\times": "an explanation",
    "Here are some vectors": "a description in a sentence",
    "Explain why or why not. | Yes $B=C$": "an explanation",
    "then discuss whether or not this is a simple linear": "a discussion",
    "Explain how, if $V$ is the set of all such functions": "an explanation",
    "Explain why it is not possible": "an explanation",
    "and so it has no inverse when": "an explanation",
    "fails to be invertible? Explain. | Since": "an explanation",
    "写出空间中的一个四棱柱为平行六面体的两个充要条件": "two answers",
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
    assert page.splitlines()[1].split()[:2] == ["formats", "504"]


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


@pytest.mark.parametrize("measured", [bench.false_positives, bench.other_formats])
def test_false_positives_are_few_and_each_was_read(pool, measured) -> None:
    figure = measured(pool)
    assert figure.of > 4000
    assert 0 < len(figure.misses) / figure.of == figure.value
    assert figure.holds, figure.misses
    assert [miss for miss in figure.misses if not any(piece in miss for piece in READ)] == []


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


@pytest.fixture(scope="module")
def embed():
    from assay.pipelines.curation import embed

    return partial(embed, "all-minilm-l6-v2")


def test_own_paraphrases(embed) -> None:
    items = [str(row["problem"]) for row in bench.rows_of(bench.CASES / "benchmark.jsonl")]
    told, clean = bench.paraphrases(items, bench.rows_of(bench.CASES / "decontamination.jsonl"), embed)
    assert (told.of, clean.of) == (11, 20)
    assert told.holds, told.value
    assert clean.holds, clean.misses


@pytest.mark.slow
def test_paraphrases_of_math500(embed, shared: Path) -> None:
    items = [str(row["problem"]) for row in bench.rows_of(shared / "data/benchmarks/math500.jsonl")]
    cases = bench.rows_of(shared / "cases" / "decontamination.jsonl") + bench.rows_of(bench.CASES / "paraphrases.jsonl")
    told, clean = bench.paraphrases(items, cases, embed)
    assert (told.of, clean.of) == (81, 600)
    assert told.holds, told.value
    assert clean.holds, clean.misses


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
