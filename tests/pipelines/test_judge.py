"""The judge through a real engine."""

from __future__ import annotations

import polars as pl

from assay.pipelines.judge import judge
from assay.pipelines.store import Store


def test_a_model_that_cannot_judge_is_unclear_and_is_asked_once(engine, tmp_path) -> None:
    """The small reasoner only adds up: its word is neither yes nor no, and is never taken for one."""
    store = Store.open(tmp_path / "store", create=True)
    pairs = [("What is 3 + 4?", "What is 4 + 3?"), ("What is 3 + 4?", "What is 4 + 3?"), ("1 + 1", "2 + 2")]
    assert judge(store, engine, pairs, max_tokens=8) == [None] * 3
    recorded = store.scan("generations").collect()
    assert recorded["problem_id"].str.starts_with("judge-").all()
    assert recorded.height == 2
    sampled = engine.sampled_tokens
    assert judge(store, engine, pairs[:1], max_tokens=8) == [None]
    assert engine.sampled_tokens == sampled
    long = [("1 + 1 " * 200, "2 + 2")]
    assert judge(store, engine, long, max_tokens=8) == [None]
    assert store.scan("generations").select(pl.len()).collect().item() == 2
