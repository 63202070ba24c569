"""Recorded results: the published figures to the printed digit, comparisons and their crossing, and the page."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from assay.eval.comparison import told
from assay.eval.recorded import read
from assay.flows.cli import app
from assay.flows.replay import Replay
from assay.pipelines.errors import SourceError


def lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def per_cent(found: pl.DataFrame, group: str, metric: str = "pass@k") -> list[float]:
    return (found.filter(model=group, metric=metric)["estimate"] * 100).round(2).to_list()


def test_published_figures_to_the_printed_digit(shared: Path) -> None:
    monkeys = Replay(shared / "data/replay/large_language_monkeys_pass_at_k.parquet")
    found = monkeys.statistics([1, 10, 100, 1000, 10_000])
    assert per_cent(found, "Pythia 160M") == [0.27, 2.51, 16.19, 41.02, 57.03]
    assert per_cent(found, "Pythia 12B") == [2.32, 15.68, 48.34, 72.33, 87.50]
    assert per_cent(found, "Pythia 70M") == [0.06, 0.60, 3.61, 12.41, 26.56]
    qwen, name = Replay(shared / "data/replay/qwen_math_cot_100x8.jsonl"), "qwen_math_cot_100x8"
    found = qwen.statistics(list(range(1, 9)))
    assert [per_cent(found, name)[k - 1] for k in (1, 2, 4, 8)] == [91.0, 93.29, 95.10, 96.0]
    assert per_cent(found, name, "maj@k") == [91.0, 91.0, 91.60, 92.01, 92.13, 92.32, 92.35, 92.50]
    assert per_cent(found, name, "best-of-k") == [91.0, 92.79, 93.39, 93.61, 93.71, 93.79, 93.88, 94.0]


def test_a_crossing_of_recorded_models_has_its_interval(shared: Path) -> None:
    monkeys = Replay(shared / "data/replay/large_language_monkeys_pass_at_k.parquet")
    found = monkeys.between("2.8B", "6.9B", [1, 100, 10_000]).difference
    assert found["difference"].to_list()[0] > 0 > found["difference"].to_list()[-1]
    row = found.row(0, named=True)
    assert row["crossing_low"] is None or row["crossing_low"] <= row["crossing"]
    assert 1 <= row["crossing"] < 100
    (it,) = told(found)
    assert (it["model"], it["base"]) == ("Pythia 2.8B", "Pythia 6.9B")
    assert it["lines"][0].startswith("k = 1: +0.18 [")
    assert it["lines"][-1].startswith(f"the curves cross after k = {row['crossing']} [")


def test_rates_by_model_cross_where_the_counts_do(tmp_path: Path) -> None:
    # a solves every item at times, b half of them always: b leads until pass@k of 3 in 10 exceeds a half
    rates = {"a": {f"t{i}": 30.0 for i in range(40)}, "b": {f"t{i}": 100.0 * (i < 20) for i in range(40)}}
    (tmp_path / "rates.json").write_text(json.dumps(rates))
    assert read(tmp_path / "rates.json", samples=10).group_by("model").agg(pl.col("c").sum()).sort("model").rows() == [
        ("a", 120), ("b", 200)]  # fmt: skip
    found = Replay(tmp_path / "rates.json", samples=10).between("a", "b", [1, 2, 10]).difference
    assert found["crossing"].to_list() == [1] * 3  # pass@2 = 1 - 7/10 6/9 = 0.533
    with pytest.raises(SourceError, match=r"share of 0\.3 of 7 samples is no whole number"):
        read(tmp_path / "rates.json", samples=7)


def test_the_command_compares_two_files_and_writes_the_page(tmp_path: Path) -> None:
    for name, shift in (("rl", 0), ("base", 1)):
        rows = [{"id": i, "correct": [int((i + j + shift) % 3 == 0) for j in range(4)]} for i in range(40)]
        lines(tmp_path / f"{name}.jsonl", rows)
    arguments = ["replay", str(tmp_path / "rl.jsonl"), "--against", str(tmp_path / "base.jsonl"), "--ks", "1,4"]
    done = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "rl - base base" not in done.output
    assert "rl - base\n  k = 1: " in done.output
    assert "no crossing" in done.output or "the curves cross" in done.output
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "rl against base" in page
    assert {p.stem for p in (tmp_path / "out" / "plots").iterdir()} == {
        "headline", "pass_at_k", "difference", "four_way"}  # fmt: skip


def test_a_group_must_be_one(tmp_path: Path) -> None:
    rows = [{"model": m, "id": i, "correct": [1]} for m in ("tiny 1B", "tiny 2B", "large") for i in range(3)]
    found = Replay(lines(tmp_path / "r.jsonl", rows))
    assert found.between("1B", "large", [1]).difference["model"].to_list() == ["tiny 1B"]
    with pytest.raises(SourceError, match="--between tiny: 2 models have it"):
        found.between("tiny", "large", [1])
    with pytest.raises(SourceError, match="no such model; did you mean 'large'"):
        found.between("lage", "tiny 1B", [1])
