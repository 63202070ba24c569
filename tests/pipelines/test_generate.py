"""Sampling and grading against a real store and a real engine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import polars as pl
import pytest
from transformers import PreTrainedTokenizerBase

from assay.eval.evaluation import evaluate
from assay.flows.distill import verified_traces
from assay.flows.reasoner import build_tokenizer
from assay.pipelines import generate
from assay.pipelines.engines import Completion, ReplayEngine, Sampling, VllmEngine
from assay.pipelines.golds import Gold
from assay.pipelines.recipe import RefreshRecipe
from assay.pipelines.scoring import Scoring
from assay.pipelines.store import SCHEMAS, Store
from assay.pipelines.verify import Policy, Verifier

PROBLEMS = pl.DataFrame(
    {
        "id": [f"p{i}" for i in range(10)],
        "problem": [f"What is {i + 2} + {i}?" for i in range(10)],
        "answer": [str(2 * i + 2) for i in range(10)],
    }
)
SAMPLING = Sampling(max_tokens=48)


def take(store: Store, engine: object, samples: int, problems: pl.DataFrame = PROBLEMS, **more: object) -> pl.DataFrame:
    return generate.sample(
        store,
        engine,
        problems,
        mode="think",
        samples=samples,
        sampling=SAMPLING,  # type: ignore[arg-type]
        **more,
    )  # type: ignore[arg-type]


def test_only_what_is_missing_is_sampled(engine: VllmEngine, tmp_path: Path) -> None:
    store, calls = Store.open(tmp_path / "s", create=True), []
    first = take(store, engine, 2, progress=lambda d, t, note: calls.append((d, t)))
    assert calls[-1] == (20, 20)
    assert first.select("problem_id", "sample").rows() == [(f"p{i}", s) for i in range(10) for s in range(2)]
    calls.clear()
    more = take(store, engine, 3, progress=lambda d, t, note: calls.append((d, t)))
    assert calls[-1] == (10, 10)
    assert more.filter(pl.col("sample") < 2)["text"].to_list() == first["text"].to_list()
    plan = generate.plan(store, engine, PROBLEMS, mode="think", samples=4, sampling=SAMPLING)
    assert plan.describe().startswith("think: 40 samples wanted, 30 recorded, 10 to sample")
    assert store.scan("generations").collect().height == 30


def test_the_plan_tells_counts_tokens_time_and_memory_before_it_starts(engine: VllmEngine, tmp_path: Path) -> None:
    """With lengths as they are once some are recorded; the burst that measures the speed is not a sample."""
    store, notes = Store.open(tmp_path / "s", create=True), []
    engine.busy_seconds = engine.sampled_tokens = 0
    for samples in (100, 104):
        take(store, engine, samples, progress=lambda d, t, note: notes.append((d, t, note)))
    plans = [note for done, _, note in notes if done == 0]
    first = r"think: 1000 samples wanted, 0 recorded, 1000 to sample \(.* prompt tokens, at most 48,000 new ones\); "
    assert re.match(first + r"at most \d+ (s|min) at [\d,]+ tokens/s; \d+\.\d GiB held, a KV cache of [\d,]+", plans[0])
    assert (found := re.search(r"40 to sample .* about ([\d,]+) by the lengths so far; \d+ s at", plans[1]))
    mean = store.scan("generations").select(pl.col("token_ids").list.len().mean()).collect().item()
    assert int(found[1]) == pytest.approx(40 * mean, rel=0.1)
    assert re.fullmatch(r"[\d,]+ tokens/s", notes[-1][2])
    assert store.scan("generations").collect().height == 1040


def test_other_sampling_other_weights_other_seed_are_other_generations(engine: VllmEngine, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", create=True)
    keys = set(take(store, engine, 1)["key"])
    hotter = generate.plan(store, engine, PROBLEMS, mode="think", samples=1, sampling=Sampling(1.1, max_tokens=48))
    reseeded = generate.plan(store, engine, PROBLEMS, mode="think", samples=1, sampling=SAMPLING, seed=1)
    direct = generate.plan(store, engine, PROBLEMS, mode="direct", samples=1, sampling=SAMPLING)
    assert all(len(p.missing) == 10 and not keys & set(p.keys) for p in (hotter, reseeded, direct))


def test_two_problems_with_one_text_have_samples_of_their_own(engine: VllmEngine, tmp_path: Path) -> None:
    twins = pl.DataFrame({"id": ["a", "b"], "problem": ["What is 3 + 4?"] * 2, "answer": ["7", "8"]})
    store = Store.open(tmp_path / "s", create=True)
    rows = take(store, engine, 8, twins)
    assert rows["key"].n_unique() == 16
    with Verifier(workers=1) as verifier:
        graded = generate.grade(store, verifier, twins, rows)
    right = graded.group_by("problem_id").agg((pl.col("status") == "correct").sum())
    assert dict(right.rows())["a"] > dict(right.rows())["b"]


def test_verdicts_are_kept_until_the_gold_or_the_policy_changes(engine: VllmEngine, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", create=True)
    rows = take(store, engine, 2)
    with Verifier(workers=1) as verifier:
        first = generate.grade(store, verifier, PROBLEMS, rows)
        assert generate.grade(store, verifier, PROBLEMS, rows).equals(first)
        assert store.scan("verdicts").collect().height == 20
        repaired = PROBLEMS.with_columns(answer=pl.when(pl.col("id") == "p3").then(pl.lit("99")).otherwise("answer"))
        changed = generate.grade(store, verifier, repaired, rows)
        assert store.scan("verdicts").collect().height == 22
        assert set(changed.filter(pl.col("problem_id") == "p3")["status"]) <= {"wrong", "truncated"}
        generate.grade(store, verifier, PROBLEMS, rows, Policy(percent="required"))
        assert store.scan("verdicts").collect().height == 42
    assert first["problem_id"].to_list() == rows["problem_id"].to_list()


def test_what_was_recorded_is_read_by_a_replay_engine_without_a_model(engine: VllmEngine, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", create=True)
    rows = take(store, engine, 2)
    silent = ReplayEngine([], engine.tokenizer, engine.fingerprint, engine.max_model_len)
    assert take(store, silent, 2).equals(rows)


def test_a_prompt_too_long_gets_no_samples_and_stops_nobody(engine: VllmEngine, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", create=True)
    problems = pl.concat([PROBLEMS.head(1), pl.DataFrame({"id": ["long"], "problem": ["7" * 2000], "answer": ["1"]})])
    assert take(store, engine, 2, problems)["problem_id"].to_list() == ["p0", "p0"]


OPENED = "{{ messages[0].content }}<think>\n{% if not enable_thinking %}\n</think>\n\n{% endif %}"
UNENDED = "maybe \\boxed{4}, let me check"
SUM = pl.DataFrame({"id": ["a"], "problem": ["2+2?"], "answer": ["4"], "source": ["sums"]})


def opening() -> PreTrainedTokenizerBase:
    """A tokenizer whose chat template opens the thinking."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = OPENED
    return tokenizer


def replay(store: Store, tokenizer: PreTrainedTokenizerBase, mode: str, said: list[tuple[str, str]]) -> ReplayEngine:
    """Says these texts, with their finish reasons, of the one problem."""
    silent = ReplayEngine([], tokenizer, "recorded")
    keys = generate.plan(store, silent, SUM, mode=mode, samples=len(said), sampling=SAMPLING).keys
    done = [Completion(key, [1], [0.0], text, finish, 0.0) for key, (text, finish) in zip(keys, said)]
    return ReplayEngine(done, tokenizer, "recorded")


def ladder(mode: str = "think") -> RefreshRecipe:
    source = {"name": "sums", "path": "x", "problem": "q", "answer": "a"}
    model = {"path": "m", "mode": mode, "max_tokens": SAMPLING.max_tokens, "instruction": ""}
    return RefreshRecipe(name="r", store=Path("s"), sources=[source], model=model, ladder=["difficulty"])  # type: ignore[arg-type]


def test_a_thinking_that_the_prompt_opened_and_nothing_ended_is_no_answer(tmp_path: Path) -> None:
    """In an evaluation, in traces to learn from and in pass rates; direct mode has closed the block in the prompt."""
    said = [(UNENDED, "length"), (UNENDED, "stop"), ("maybe 5</think>\\boxed{4}", "stop")]
    usual = build_tokenizer()
    with Verifier(workers=1) as verifier:
        asked = [verifier.grade("4", text, finish_reason=reason, starts_in_thinking=True) for text, reason in said]
        assert [verdict.status for verdict in asked] == ["truncated", "wrong", "correct"]
        for tokenizer, mode, expected in (
            (opening(), "think", [verdict.status for verdict in asked]),
            (opening(), "direct", ["correct"] * 3),
            (usual, "think", ["correct"] * 3),
        ):
            store = Store.open(tmp_path / f"{tokenizer is usual}-{mode}", create=True)
            engine = replay(store, tokenizer, mode, said)
            done = evaluate(store, engine, verifier, SUM, model="m", n=3, sampling=SAMPLING, mode=mode)
            assert done.samples["status"].to_list() == expected
            graded = Scoring(store, ladder(mode), engine, verifier).graded(SUM, mode, 3)
            assert graded["status"].to_list() == expected
            if mode == "think":
                traces = verified_traces(store, engine, verifier, SUM, samples=3, sampling=SAMPLING)
                assert len(traces) == expected[1:].count("correct")


def test_a_verdict_that_did_not_know_of_the_opened_thinking_is_not_taken(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", create=True)
    engine = replay(store, opening(), "think", [(UNENDED, "stop")])
    rows = take(store, engine, 1, SUM)
    with Verifier(workers=1) as verifier:
        old = generate.grade(store, verifier, SUM, rows, starts_in_thinking=False)
        new = generate.grade(store, verifier, SUM, rows, starts_in_thinking=True)
        again = [generate.grade(store, verifier, SUM, rows, starts_in_thinking=told) for told in (False, True)]
    assert [frame["status"].item() for frame in (old, new)] == ["correct", "wrong"]
    assert all(map(pl.DataFrame.equals, (old, new), again))
    assert old["verifier"].item() == generate.verdict_name(verifier, Gold("4", Policy()))
    assert store.scan("verdicts").collect().height == 2


def test_without_a_tokenizer_each_models_words_tell_who_opened_the_thinking(tmp_path: Path) -> None:
    """By most of what ended: one stray end of a thinking tells nothing. As in pass rates without an engine."""
    store = Store.open(tmp_path / "s", create=True)
    ended, begun = "so</think>\\boxed{4}", "<think>so</think>\\boxed{4}"
    said = {"opened": [ended, ended, begun, UNENDED], "own": [begun, begun, ended, UNENDED], "none": [UNENDED]}
    rows = [{"key": f"{model}{n}", "problem_id": "a", "model": model, "mode": "think", "sample": n, "text": text,
             "finish_reason": "length" if text == UNENDED and model == "opened" else "stop"}
            for model, texts in said.items() for n, text in enumerate(texts)]  # fmt: skip
    blank = dict.fromkeys(SCHEMAS["generations"])
    frame = pl.DataFrame([blank | row for row in rows], schema=SCHEMAS["generations"])
    with Verifier(workers=1) as verifier:
        graded = generate.grade(store, verifier, SUM, frame)
        store.append("generations", frame)
        beside = Scoring(store, ladder(), None, verifier).beside(SUM, "none")
    status = dict(graded.select("key", "status").iter_rows())
    assert [status[key] for key in ("opened3", "own3", "none0")] == ["truncated", "correct", "correct"]
    assert beside["status"].to_list().count("truncated") == 1


@pytest.mark.slow
def test_a_killed_run_is_completed_to_the_rows_of_an_uninterrupted_one(engine: VllmEngine, tmp_path: Path) -> None:
    """SIGKILL in the middle of the sampling; nothing is doubled and nothing differs."""
    script = textwrap.dedent("""
        import sys, polars as pl
        from assay.pipelines import generate
        from assay.pipelines.engines import Sampling, VllmEngine
        from assay.pipelines.store import Store
        from assay.pipelines.models import REASONER
        problems = pl.read_parquet(sys.argv[2])
        engine = VllmEngine(REASONER, max_model_len=512, dtype="float32", max_num_seqs=16)
        generate.sample(Store.open(sys.argv[1], create=True), engine, problems, mode="think", samples=24,
                        sampling=Sampling(max_tokens=48), progress=lambda d, t, note: print(d, flush=True))
        """)
    PROBLEMS.write_parquet(tmp_path / "problems.parquet")
    arguments = [sys.executable, "-c", script, str(tmp_path / "killed"), str(tmp_path / "problems.parquet")]
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    assert any(line.strip() == "30" for line in child.stdout)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    killed, whole = Store.open(tmp_path / "killed"), Store.open(tmp_path / "whole", create=True)
    recorded = killed.scan("generations").collect()
    assert 30 <= recorded.height < 240
    assert killed.check() == []
    done, expected = take(killed, engine, 24), take(whole, engine, 24)
    columns = ["key", "problem_id", "sample", "seed", "token_ids", "text", "finish_reason"]
    assert done.select(columns).equals(expected.select(columns))
    assert killed.scan("generations").collect()["key"].n_unique() == killed.scan("generations").collect().height == 240
