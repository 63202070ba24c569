"""The ledger over a store written by hand: a problem's way, and every kind of change between two snapshots."""

import json
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from assay.pipelines import ledger
from assay.pipelines import snapshot as snapshots
from assay.pipelines.errors import StoreError
from assay.pipelines.snapshot import FUNNEL, Snapshot
from assay.pipelines.store import SCHEMAS, Store

TIME = datetime(2026, 1, 1)


def fill(store: Store, table: str, *rows: dict[str, object]) -> None:
    store.append(table, pl.DataFrame(list(rows), schema=SCHEMAS[table]))


def decisions(store: Store, snapshot: str, filter_name: str, **words: str) -> None:
    """`x="3/8"` keeps x with that evidence, `x="!too_hard 0/8"` rejects it."""
    rows = []
    for problem, text in words.items():
        reason, _, evidence = text[1:].partition(" ") if text.startswith("!") else (None, "", text)
        keep = {"keep": reason is None, "reason": reason, "evidence": evidence or None}
        rows.append({"snapshot": snapshot, "problem_id": problem, "filter": filter_name, "time": TIME} | keep)
    fill(store, "decisions", *rows)


def record(store: Store, name: str) -> None:
    funnel = pl.DataFrame([("parse", 6, 6, "{}")], schema=FUNNEL, orient="row")
    snapshots.record(store, Snapshot(name, None, "h", {}, [], funnel, TIME))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "store", create=True)
    for name in ("one", "two"):
        record(store, name)
    decisions(store, "one", "parse", stays="", comes="", goes="", walks="", rate="", left="")
    decisions(store, "one", "format", stays="", comes="", goes="", walks="!proof", rate="", left="")
    decisions(store, "one", "difficulty", stays="3/8", comes="!too_hard 0/8", goes="4/8", rate="2/8", left="4/8")
    decisions(store, "two", "parse", stays="", comes="", goes="", walks="", rate="", new="")
    decisions(store, "two", "format", stays="", comes="", goes="", walks="", rate="", new="")
    decisions(store, "two", "difficulty", stays="3/8", comes="2/8", goes="!too_easy 8/8", walks="!too_hard 1/8",
              rate="9/16", new="5/8")  # fmt: skip
    decisions(store, "one", ledger.BACK_SCAN, stays="!ngram")
    return store


def test_diff_names_every_kind_of_change(store):
    found = {row[0]: row[1:] for row in ledger.diff(store, "one", "two").rows()}
    assert found == {
        "comes": ("in", "difficulty: too_hard, 0/8", "kept, 2/8"),
        "goes": ("out", "kept, 4/8", "difficulty: too_easy, 8/8"),
        "walks": ("moved", "format: proof", "difficulty: too_hard, 1/8"),
        "rate": ("moved", "kept, 2/8", "kept, 9/16"),
        "left": ("out", "kept, 4/8", "not in the pool"),
        "new": ("in", "not in the pool", "kept, 5/8"),
    }
    assert ledger.diff(store, "one", "one").is_empty()


def test_changes_are_counted_without_their_evidence(store):
    decisions(store, "two", "parse", other="")
    decisions(store, "two", "difficulty", other="3/4")
    assert ledger.changes(ledger.diff(store, "one", "two")).rows() == [
        ("in", "not in the pool", "kept", 2),
        ("in", "difficulty: too_hard", "kept", 1),
        ("out", "kept", "difficulty: too_easy", 1),
        ("moved", "format: proof", "difficulty: too_hard", 1),
        ("moved", "kept", "kept", 1),
        ("out", "kept", "not in the pool", 1),
    ]


def test_pass_rates_are_those_that_difficulty_saw(store):
    evidence = "3/8 correct, 95% 0.12-0.71, 2 truncated"
    decisions(store, "two", "difficulty", seen=evidence, easy="!too_easy 4/4 correct, 95% 0.5-1.00",
              unknown="!unknown_pass_rate 0 of 8 samples scored")  # fmt: skip
    found = ledger.pass_rates(store, "two")
    assert found.sort("pass_rate").rows() == [("seen", 0.375, True), ("easy", 1.0, False)]


def test_refreshes_that_decided_the_same_are_told_once(store):
    for name in ("three", "four"):
        record(store, name)
    for name in ("three", "four", "cut off"):
        decisions(store, name, "format", stays="!proof")
    lines = ledger.why(store, "stays").splitlines()
    assert lines[-4:] == [
        "snapshot three to four (2 refreshes): rejected",
        "  format        rejected as proof",
        "snapshot cut off: rejected, in a refresh that did not finish",
        "  format        rejected as proof",
    ]


def test_standing_is_the_first_rejection(store):
    decisions(store, "two", "suspect_gold", walks="!suspect_gold 5 of 8")
    found = {row["problem_id"]: row for row in ledger.standing(store, "two").to_dicts()}
    assert not found["walks"]["kept"]
    assert (found["walks"]["filter"], found["walks"]["reason"]) == ("difficulty", "too_hard")
    assert found["stays"]["kept"]
    assert ledger.standing(store, "one").filter(pl.col("problem_id") == "stays")["kept"].item()


def test_funnel_reads_the_record(store):
    assert ledger.funnel(store, "one").rows() == [("parse", 6, 6, "{}")]


def test_why_tells_the_whole_way(store):
    fill(store, "problems", {
        "id": "comes", "text_hash": "t", "problem": "What is\n1+1?", "answer": "2", "source": "gsm",
        "source_key": "17", "license": "MIT", "options": ["1", "2"], "first_seen": TIME,
    })  # fmt: skip
    generation = {"problem_id": "comes", "model": "m", "mode": "think"}
    fill(store, "generations", *({"key": f"k{i}", "sample": i} | generation for i in range(4)))
    wrong = {"verifier": "v1", "status": "wrong", "extracted": "3"}
    fill(store, "verdicts", *({"key": f"k{i}"} | wrong for i in range(3)))
    fill(store, "verdicts", {"key": "k0", "verifier": "v2", "status": "correct", "extracted": "2"})
    rollout = {"run": "r", "problem_id": "comes", "reward": 1.0}
    fill(store, "rollouts", rollout | {"step": 1, "sample": 0}, rollout | {"step": 2, "sample": 0, "reward": 0.0})
    assert ledger.why(store, "com").splitlines() == [
        "problem comes",
        "  from gsm, row 17, licence MIT",
        "  What is 1+1?",
        "  options: 1 | 2",
        "  gold: 2",
        "snapshot one: rejected",
        "  parse         kept",
        "  format        kept",
        "  difficulty    rejected as too_hard: 0/8",
        "snapshot two: kept",
        "  parse         kept",
        "  format        kept",
        "  difficulty    kept: 2/8",
        "samples of m, think: 4: 2 wrong, 1 correct, 1 not graded; answers 3 x2, 2 x1",
        "trained in run r: 2 samples in 2 steps, mean reward 0.50",
    ]


def test_a_row_that_never_became_a_problem_has_a_way_too(store):
    decisions(store, "two", "parse", badrow="!unparsable_line data.jsonl, row 3: line: not JSON")
    text = ledger.why(store, "bad")
    assert "never became a problem" in text
    assert "rejected as unparsable_line: data.jsonl, row 3: line: not JSON" in text


def test_a_later_finding_does_not_rewrite_the_snapshot(store):
    text = ledger.why(store, "stays")
    assert "snapshot one: kept" in text
    assert "  back_scan     rejected as ngram" in text


def test_evidence_of_copies_and_benchmark_items_is_told_in_words(store):
    hit = {"benchmark": "math500", "index": 11, "stage": "ngram", "score": 0.934, "text": "Find x " * 90}
    also = {"benchmark": "exam", "index": 0, "stage": "exact", "score": 1.0, "text": "Find x"}
    like = hit | {"stage": "near", "score": 0.6, "text": "Find y"}
    decisions(store, "two", "duplicates", stays="!near_duplicate " + json.dumps({"kept": "goes", "similarity": 0.857}))
    decisions(store, "two", "contamination", goes="!ngram " + json.dumps(hit | {"also": [also]}), new=json.dumps(like))
    decisions(store, "two", "odd", rate='{"x": 1}')
    assert "rejected as near_duplicate: a copy of goes, similarity 86%" in ledger.why(store, "stays")
    words = "is item 12 of math500 (ngram, 93% of its windows) and item 1 of exam (exact); the first reads: Find x"
    assert words in ledger.why(store, "goes")
    assert "kept: resembles item 12 of math500 (near, 60% alike)" in ledger.why(store, "new")
    assert 'kept: {"x": 1}' in ledger.why(store, "rate")


def test_ids_that_are_unknown_or_ambiguous(store):
    fill(store, "problems", *({"id": name, "first_seen": TIME} for name in ("abc1", "abc2", "abc")))
    assert ledger.find_problem(store, "abc") == "abc"
    assert ledger.find_problem(store, "abc2") == "abc2"
    with pytest.raises(StoreError, match="3 problems start with 'ab'; give more of the id: abc, abc1, abc2"):
        ledger.find_problem(store, "ab")
    with pytest.raises(StoreError, match="no problem starts with 'zzz'"):
        ledger.why(store, "zzz")
