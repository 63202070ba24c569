"""The judge through a real engine."""

from __future__ import annotations

import polars as pl
import pytest
from transformers import AutoTokenizer

from assay.pipelines.engines import Completion, ReplayEngine
from assay.pipelines.errors import EngineError
from assay.pipelines.judge import judge
from assay.pipelines.store import Store
from assay.pipelines.verify import Policy, Verifier


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


def test_an_answer_is_judged_where_the_rules_find_no_match(reasoner) -> None:
    """Recorded words of a judge: equal answers are judged once, what the rules settle is not judged."""
    words = ["<think>Not no.</think> Yes.", "No, the city is another.", "Hard to say."]
    said = [Completion(str(n), [1], [0.0], word, "stop", 0.0) for n, word in enumerate(words)]
    items = [("the capital of Norway", f"\\boxed{{{city}}}") for city in ("Oslo", "Bergen", "Kristiania")]
    judged, tokenizer = Policy(verifier="judge"), AutoTokenizer.from_pretrained(reasoner)
    with Verifier(judge=lambda: ReplayEngine(said, tokenizer, "recorded")) as verifier:
        asked = [*items, items[0], ("42", "\\boxed{42}"), ("42", "<think>42"), ("7", "\\boxed{8}")]
        found = verifier.grade_many(asked, [judged] * 6 + [Policy()])
        assert [v.status for v in found] == ["correct", "wrong", "unverifiable", "correct", "correct", "wrong", "wrong"]
        assert [v.reason for v in found[:3]] == words
        assert [v.extracted for v in found[:3]] == ["Oslo", "Bergen", "Kristiania"]
        assert verifier.name_for(judged).endswith("+judge-recorded")
        assert verifier.name_for(Policy()) == verifier.name
    with Verifier() as verifier, pytest.raises(EngineError, match="add \\[judge\\]"):
        verifier.grade(*items[0], judged)
