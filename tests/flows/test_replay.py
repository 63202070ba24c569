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
from assay.pipelines.errors import AssayError, SourceError


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


def run(*arguments: object) -> tuple[int, str]:
    """The exit code of `assay replay`, and what it printed or was refused with."""
    done = CliRunner().invoke(app, ["replay", *map(str, arguments)])
    refused = f"{type(done.exception).__name__}: {done.exception}" if done.exception else ""
    return done.exit_code, done.output + refused


def test_two_files_of_one_name_are_two_models(tmp_path: Path) -> None:
    for folder, right in (("a", 1), ("b", 0)):
        (tmp_path / folder).mkdir()
        lines(tmp_path / folder / "r.jsonl", [{"id": i, "correct": [right, right]} for i in range(4)])
    found = Replay(tmp_path / "a/r.jsonl", against=tmp_path / "b/r.jsonl")
    assert found.models == ["a/r", "b/r"]
    assert found.between("a/r", "b/r", [1]).difference["difference"].to_list() == [1.0]
    rows = [{"model": "base", "id": i, "correct": [1]} for i in range(4)]  # a model called as the other file is
    found = Replay(lines(tmp_path / "rl.jsonl", rows), against=lines(tmp_path / "base.jsonl", rows))
    assert found.models == ["rl base", "base"]
    with pytest.raises(SourceError, match="it is the same file"):
        Replay(tmp_path / "a/r.jsonl", against=tmp_path / "b/../a/r.jsonl")


@pytest.mark.parametrize(("arguments", "said"), [
    (["--ks", "a"], "--ks a: 'a' is no number of samples; give whole numbers from 1"),
    (["--ks", "1,,2"], "--ks 1,,2: ''"), (["--ks", "1.5"], "'1.5'"), (["--ks", "0,1"], "'0'"),
    (["--column", "ok"], "--column ok: give role=column, as in --column correct=ok"),
    (["--ks", "3"], "k = 3: no item of r has so many scored samples; the most is 2"),
    (["-o", "FILE"], "cannot be a folder"), (["-o", "FILE/in"], "cannot be a folder")])  # fmt: skip
def test_a_mistake_on_the_command_line_is_one_message(tmp_path: Path, arguments: list[str], said: str) -> None:
    path = lines(tmp_path / "r.jsonl", [{"id": 1, "correct": [1, 0]}])
    code, told = run(path, *[word.replace("FILE", str(path)) for word in arguments])
    assert code != 0
    assert said in told
    assert "Error: " in told.splitlines()[-1]
    assert told.splitlines()[-1].startswith(("AssayError", "SourceError"))


def test_a_report_has_a_file_of_its_own(tmp_path: Path) -> None:
    for out, said in ((tmp_path, "a folder; give the file to write"), (tmp_path / "r/x.html", "cannot be a folder")):
        (tmp_path / "r").write_text("")
        (tmp_path / "summary.json").write_text("{}")
        done = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(out)])
        assert isinstance(done.exception, AssayError)
        assert said in str(done.exception)


def test_without_ks_the_file_says_how_far(tmp_path: Path) -> None:
    path = lines(tmp_path / "r.jsonl", [{"id": i, "correct": [1, 0, 0] + [1] * (i % 2)} for i in range(40)])
    assert Replay(path).ks() == [1, 2, 3]  # half of the items have four
    code, told = run(path)
    assert code == 0
    assert "40" in told
    assert " of 40" not in told
    code, told = run(path, "--ks", "3,4", "-o", tmp_path / "out")
    assert code == 0
    assert "20 of 40" in told
    written = (tmp_path / "out/summary.json").read_text()
    assert "20 of 40 items" in written
    assert "few items: r: 20 items: the interval is rough, half widths up to 0.22" in written
    assert "few items: r: 20 items: the interval is rough, half widths up to 0.22" in told
    assert "r, r: pass@4 is over the 20 of 40 items that have so many scored samples" in told
    silent = [{"id": 1, "model": model, "correct": [right]} for model, right in (("a", None), ("b", 1))]
    assert "a: no sample has a verdict" in run(lines(tmp_path / "s.jsonl", silent))[1]
    assert "nothing to estimate" in run(lines(tmp_path / "t.jsonl", [{"correct": [None]}]))[1]


def test_wrong_answers_that_are_equal_vote_together(tmp_path: Path) -> None:
    """Three of five say a half, and the two right ones are outvoted; by their text they would win."""
    row = {"correct": [0, 0, 0, 1, 1], "answers": ["1/2", "0.5", "\\frac{1}{2}", "7", "7"]}
    found = Replay(lines(tmp_path / "r.jsonl", [row]))
    assert found.items["answers"].to_list() == [["1/2", "1/2", "1/2", "7", "7"]]
    majority = found.statistics([1, 5]).filter(metric="maj@k")["estimate"].to_list()
    assert majority == [pytest.approx(0.4), 0.0]
    many = {"correct": [0] * 70, "answers": [str(i) for i in range(70)]}
    found = Replay(lines(tmp_path / "s.jsonl", [many]))
    assert "1 items have over 64 wrong answers; these vote by their text" in found.described(found.statistics([1]))


def test_the_crossing_is_found_whichever_ks_are_asked(shared: Path) -> None:
    path = shared / "data/replay/large_language_monkeys_pass_at_k.parquet"
    for arguments in ([], ["--ks", "1,4"]):
        code, told = run(path, "--between", "2.8B", "6.9B", *arguments)
        assert code == 0
        assert "the curves cross after k = 22 [before 1, beyond 10,000]" in told
    assert "pass@k ┆ 10000 " in run(path)[1]


def test_benchmarks_are_told_apart(tmp_path: Path) -> None:
    rows = [{"benchmark": b, "model": m, "id": i, "correct": [int(m == "rl"), 0, None if b == "math" and i < 9 else 0]}
            for b in ("aime", "math") for m in ("base", "rl") for i in range(10)]  # fmt: skip
    path = lines(tmp_path / "r.jsonl", rows)
    code, told = run(path, "--between", "rl", "base", "--ks", "1,3")
    assert code == 0
    table = " ".join(told.split())
    assert "│ aime ┆ base ┆ pass@k ┆ 3 ┆ 0.00 [0.00, 27.75] ┆ 10 │" in table
    assert "│ math ┆ base ┆ pass@k ┆ 3 ┆ 0.00 [nan, nan] ┆ 1 of 10 │" in table
    assert "aime: rl - base\n  k = 1: +33.33" in told
    assert "math: rl - base\n  k = 1: +48.33" in told  # (9 / 2 + 1 / 3) / 10
    assert told.count("k = 3: too few items have so many scored samples in both; not compared") == 1
