"""The snapshot's folder as a data set, opened by the real loader, and a card whose counts are the rows'."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
import yaml

from assay.pipelines import snapshot as snapshots
from assay.pipelines.errors import StoreError
from assay.pipelines.snapshot import FUNNEL, Snapshot
from assay.pipelines.store import SCHEMAS, Store

NO_HITS = pl.DataFrame(schema=dict.fromkeys(("snapshot", "problem_id", "reason", "evidence"), pl.String))


def made(name: str = "20260314-030000-aaaaaa") -> Snapshot:
    funnel = [("parse", 5, 4, {"unparsable_problem": 1}), ("difficulty", 4, 2, {"too_hard": 1, "too_easy": 1})]
    return Snapshot(
        id=name,
        parent=None,
        recipe_hash="f" * 64,
        recipe={"name": "a | b", "store": "/home/me/s", "difficulty": {"band": [0.2, 0.8], "unknown": None},
                "sources": [{"path": "/home/me/sums.jsonl"}], "model": {"path": "owner/name"}},
        benchmarks=[{"name": "math500", "revision": "v1", "hash": "0" * 64, "rows": 500}],
        funnel=pl.DataFrame([(*row[:3], json.dumps(row[3])) for row in funnel], schema=FUNNEL, orient="row"),
        time=datetime(2026, 3, 14, 3),
    )


def problems(names: str, **columns: object) -> pl.DataFrame:
    rows = [{"id": n, "problem": f"{n}?\n$x$", "answer": "1", "source": "s", "license": "MIT"} for n in names]
    full = pl.DataFrame(rows, schema=dict.fromkeys(("id", "problem", "answer", "source", "license"), pl.String))
    missing = {name: pl.lit(None, dtype) for name, dtype in SCHEMAS["problems"].items() if name not in full.columns}
    return full.with_columns(**missing, **columns).with_columns(first_seen=pl.lit(datetime(2026, 1, 1)))


def kept(names: str = "ab") -> pl.DataFrame:
    return problems(names, pass_rate=pl.lit(0.5), bucket=pl.lit("medium"), sources=pl.lit(["s", "t"]))


def rejected(names: str = "cde") -> pl.DataFrame:
    return problems(names, filter=pl.lit("difficulty"), reason=pl.lit("too_hard"), evidence=pl.lit("0/8 correct"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


@pytest.mark.parametrize(("names", "others"), [("ab", "cde"), ("ab", "")])
def test_the_folder_is_a_data_set(store, tmp_path, monkeypatch, names, others):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import get_dataset_config_names, load_dataset

    folder = str(snapshots.write(store, made(), kept(names), rejected(others), NO_HITS))
    cache = str(tmp_path / "cache")
    assert get_dataset_config_names(folder) == ["default", "rejected"][: 1 + bool(others)]
    rows = load_dataset(folder, cache_dir=cache)["train"]
    assert rows["id"][:] == list(names)
    assert rows[0]["problem"] == "a?\n$x$"
    assert (rows[0]["pass_rate"], rows[0]["bucket"], rows[0]["sources"]) == (0.5, "medium", ["s", "t"])
    if others:
        out = load_dataset(folder, "rejected", split="train", cache_dir=cache)
        assert out["id"][:] == list(others)
        assert {"filter", "reason", "evidence"} <= set(out.column_names)
    assert pl.read_parquet(f"{folder}/rejected/train.parquet").height == len(others)


def front_matter(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


def test_the_cards_counts_are_the_rows(store):
    folder = snapshots.write(store, made(), kept("ab"), rejected("cde"), NO_HITS)
    text = (folder / "README.md").read_text()
    heights = {
        "default": pl.read_parquet(folder / "data/train.parquet").height,
        "rejected": pl.read_parquet(folder / "rejected/train.parquet").height,
    }
    assert heights == {"default": 2, "rejected": 3}
    declared = {i["config_name"]: i["splits"][0]["num_examples"] for i in front_matter(text)["dataset_info"]}
    assert declared == heights
    for config, rows in heights.items():
        assert f"| {config} | {rows} |" in text
    assert "| s | MIT | 2 | 3 |" in text
    assert "| medium | 2 |" in text


def test_the_card_tells_where_it_comes_from(store):
    hits = pl.DataFrame([("old-1", "p", "ngram", None)], schema=NO_HITS.schema, orient="row")
    text = snapshots.card(replace(made(), parent="old-1"), kept(), rejected(), hits)
    assert "| difficulty | 4 | 2 | too_hard 1, too_easy 1 |" in text
    assert f"| math500 | v1 | {'0' * 64} | 500 | 0 | 0 |" in text
    assert "/home/me" not in text
    assert "after snapshot old-1" in text
    recipe = json.loads(text.split("```json\n")[1].split("```")[0])
    assert recipe == {
        "name": "a | b",
        "difficulty": {"band": [0.2, 0.8]},
        "sources": [{"path": "sums.jsonl"}],
        "model": {"path": "owner/name"},
    }
    assert "| old-1 | ngram | 1 |" in text
    assert front_matter(text)["license"] == "mit"
    mixed = kept().with_columns(license=pl.when(pl.col("id") == "a").then(pl.lit("MIT")))
    text = snapshots.card(made(), mixed, rejected(), NO_HITS)
    assert front_matter(text)["license"] == "other"
    assert "| s | not stated | 1 | 0 |" in text


def test_record_and_load_give_the_same_back(store):
    snapshots.write(store, made(), kept(), rejected(), NO_HITS)
    snapshots.record(store, original := made())
    found = snapshots.load(store)
    assert found.funnel.equals(original.funnel)
    assert replace(found, funnel=original.funnel) == original


def test_ids_by_prefix_and_latest(store):
    with pytest.raises(StoreError, match="no snapshot yet"):
        snapshots.find(store)
    first, second, hollow = "20260101-000000-aaa", "20260102-000000-bbb", "20260103-000000-ccc"
    for number, name in enumerate((first, second, hollow)):
        snapshots.record(store, replace(made(name), time=datetime(2026, 1, 1 + number)))
        if name != hollow:
            snapshots.write(store, made(name), kept(), rejected(), NO_HITS)
    assert snapshots.find(store) == second  # the last one was left empty and has no rows
    assert snapshots.find(store, "20260101") == first
    with pytest.raises(StoreError, match="several snapshots start with '2026'"):
        snapshots.find(store, "2026")
    with pytest.raises(StoreError, match=r"no snapshot starts with 'x'.*-ccc"):
        snapshots.find(store, "x")


def test_the_snapshot_before_is_of_the_same_recipe_and_on_the_disk(store):
    def at(day: int, name: str) -> Snapshot:
        return replace(made(f"2026010{day}-{name}"), time=datetime(2026, 1, day), recipe={"name": name})

    days = [at(1, "pool"), at(2, "other"), at(3, "pool"), at(4, "pool")]
    for day in days:
        snapshots.record(store, day)
    for written in days[:2]:
        snapshots.write(store, written, kept(), rejected(), NO_HITS)
    assert snapshots.previous(store, days[3]) == days[0].id
    assert snapshots.previous(store, days[0]) is None


def test_ids_sort_by_time_and_tell_recipes_apart():
    early, late = datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 1)
    assert snapshots.new_id("a", early) < snapshots.new_id("a", late)
    assert snapshots.new_id("a", early) != snapshots.new_id("b", early)
    assert snapshots.new_id("a", early) != snapshots.new_id("a", early.replace(microsecond=1))
