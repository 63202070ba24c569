"""The demo, whole: every part is the real one; only the training is cut short here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assay.filters import difficulty
from assay.flows.demo import run_demo
from assay.pipelines import ledger
from assay.pipelines import snapshot as snapshots
from assay.pipelines.store import Store

pytestmark = pytest.mark.slow(first=True)
SHORT = (
    "train.steps=6",
    "train.sampling.prompts=16",
    "evaluate.samples=8",
    "evaluate.items=120",
    "evaluate.budgets.items=80",
)
FOUND = {
    "multiple_choice": {"multiple_choice"},
    "true_false": {"true_false"},
    "proof": {"proof"},
    "contaminated": {"exact", "ngram"},
    "wrong_gold": {"suspect_gold", "too_hard"},
    "no_cot": {"solvable_without_cot"},
    "too_hard": {"too_hard", "suspect_gold"},
}
"""The reasons that find what was planted; a wrong gold that the model cannot solve either looks too hard."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, pool: Any) -> Path:
    """A demo with six training steps."""
    pool.close()  # the demo starts its own engine
    return run_demo(tmp_path_factory.mktemp("demo") / "out", overrides=SHORT, problems=160)


@pytest.fixture(scope="module")
def store(folder: Path) -> Store:
    return Store.open(folder / "store")


@pytest.fixture(scope="module")
def planted(folder: Path, store: Store) -> pl.DataFrame:
    """`label, id, filter, reason, text_hash` of every planted row; the first decision that rejected it."""
    labels = pl.read_ndjson(folder / "raw" / "planted.jsonl")
    decisions = store.scan("decisions").filter(~pl.col("keep")).collect()
    first = decisions.unique("problem_id", keep="first", maintain_order=True)
    problems = store.scan("problems").select("id", "text_hash", "source", key="source_key").collect()
    rows = labels.join(problems, on=["source", "key"], how="left")
    return rows.join(first.select("filter", "reason", id="problem_id"), on="id", how="left")


def test_everything_planted_is_found(planted: pl.DataFrame) -> None:
    for label, reasons in FOUND.items():
        rows = planted.filter(pl.col("label") == label)
        assert rows.height >= 5, label
        missed = rows.filter(~pl.col("reason").is_in(reasons) | pl.col("reason").is_null())
        assert missed.is_empty(), f"{label}: {missed.select('key', 'filter', 'reason').rows()}"


def test_planted_duplicates_keep_exactly_one(planted: pl.DataFrame, store: Store) -> None:
    texts = planted.filter(pl.col("label") == "duplicate")["text_hash"]
    assert texts.len() >= 10
    problems = store.scan("problems").filter(pl.col("text_hash").is_in(texts.implode())).collect()
    dropped = store.scan("decisions").filter((pl.col("filter") == "duplicates") & ~pl.col("keep")).collect()
    left = problems.filter(~pl.col("id").is_in(dropped["problem_id"].implode()))
    assert left["text_hash"].sort().to_list() == texts.unique().sort().to_list()


def test_planted_faulty_rows_are_in_the_ledger_with_their_line(folder: Path, store: Store) -> None:
    labels = pl.read_ndjson(folder / "raw" / "planted.jsonl").filter(pl.col("label") == "unparsable")
    evidence = store.scan("decisions").filter((pl.col("filter") == "parse") & ~pl.col("keep")).collect()["evidence"]
    assert evidence.len() == labels.height == 4
    for line in labels["line"]:
        assert any(f"drills.jsonl, row {line}:" in e for e in evidence), (line, evidence.to_list())


def test_the_band_holds_for_every_problem(folder: Path, store: Store) -> None:
    """No kept problem is outside 20-80%, and none inside was dropped as too easy or too hard."""
    made = snapshots.load(store)
    kept = pl.read_parquet(snapshots.folder_of(store, made.id) / "data" / "train.parquet")
    assert kept["pass_rate"].is_between(0.2, 0.8).all()
    assert kept.height == json.loads((folder / "summary.json").read_text())["curation"]["rows_out"] >= 100
    verdicts = store.scan("verdicts").unique("key", keep="last")
    graded = store.scan("generations").filter(pl.col("mode") == "think").join(verdicts, on="key").collect()
    rates = difficulty.pass_rates(graded.filter(pl.col("model") == made_model(store)).select("problem_id", "status"))
    dropped = store.scan("decisions").filter((pl.col("filter") == "difficulty") & ~pl.col("keep")).collect()
    outside = dropped.join(rates, on="problem_id").filter(pl.col("pass_rate").is_between(0.2, 0.8))
    assert dropped["reason"].n_unique() >= 2
    assert outside.is_empty()


def made_model(store: Store) -> str:
    direct = store.scan("generations").filter(pl.col("mode") == "direct").collect()["model"]
    return str(direct.mode()[0])


def test_the_summary_has_everything(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary["seconds"]) == {"install", "cold_start", "refresh", "train", "evaluate", "total"}
    assert summary["curation"]["rows_in"] > summary["curation"]["rows_out"]
    ladder = {"parse", "format", "answer", "duplicates", "contamination", "shortcut", "suspect_gold", "difficulty"}
    assert set(summary["curation"]["removed"]) == ladder
    lost = sum(summary["curation"]["removed"].values())
    assert summary["curation"]["rows_in"] - lost == summary["curation"]["rows_out"]
    training = summary["training"]
    assert training["steps"] == 6
    assert training["algorithm"] == "dr_grpo"
    assert training["ratio_error_first_step"] < 1e-4
    assert training["share_outside_engine_and_torch"] < 0.10
    for model in ("base", "trained"):
        for metric in ("pass@1", "pass@8", "maj@8"):
            cell = summary["evaluation"][model][metric]
            assert 0 <= cell["low"] <= cell["value"] <= cell["high"] <= 1
    difference = summary["evaluation"]["difference_pass@1"]
    assert difference["low"] <= difference["value"] <= difference["high"]
    assert {"teacher", "student_before", "student_after", "gap_recovered"} <= set(summary["distillation"])


def test_accuracy_rises_with_the_thinking_budget(folder: Path) -> None:
    frame = pl.read_parquet(folder / "frames" / "budgets.parquet").filter(
        (pl.col("model") == "base") & (pl.col("k") == 1)
    )
    curve = dict(frame.select("budget", "estimate").iter_rows())
    assert curve[10] < curve[20] < curve[30] < curve[64]
    assert curve[64] - curve[0] > 0.3
    cost = frame.select(pl.col("new_tokens", "anew_tokens").sum()).row(0)
    assert cost[0] < 0.5 * cost[1]


def test_the_report_and_its_files(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    for word in ("funnel", "thinking budget", "pass@k", "Distillation", "ratio error"):
        assert word.lower() in page.lower()
    assert len(list((folder / "plots").glob("*.png"))) >= 9
    assert pl.read_parquet(folder / "data" / "pass_at_k.parquet").height > 0


def test_prefect_has_the_funnel_the_card_and_the_link(folder: Path) -> None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        artifacts = client.request("POST", "/artifacts/filter", json={}).json()
    kinds = {(a["key"], a["type"]) for a in artifacts}
    assert {("demo-funnel", "table"), ("demo-card", "markdown"), ("demo-snapshot", "markdown")} <= kinds
    bars = next(a["data"] for a in artifacts if a["key"] == "demo-pass-rates")
    assert "| medium | " in bars
    assert "█" * 40 in bars
    table = next(json.loads(a["data"]) for a in artifacts if a["key"] == "demo-funnel")
    assert [row["filter"] for row in table][:3] == ["parse", "format", "answer"]


def test_the_ledger_tells_a_problem_s_way(store: Store, planted: pl.DataFrame) -> None:
    copied = planted.filter(pl.col("label") == "contaminated")["id"][0]
    told = ledger.why(store, copied)
    assert "contamination" in told
    assert "exam" in told


def test_the_trained_checkpoint_loads(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = json.loads((folder / "summary.json").read_text())["training"]["checkpoint"]
    assert AutoModelForCausalLM.from_pretrained(checkpoint).num_parameters() > 700_000
    assert AutoTokenizer.from_pretrained(checkpoint).encode("3+4", add_special_tokens=False)
