"""Programs among the problems: their pass rates, their rewards and their scores come from running their tests."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import polars as pl
import pytest
from transformers import AutoTokenizer

from assay.flows.train import curated
from assay.pipelines import generate
from assay.pipelines.curation import Refresh
from assay.pipelines.engines import Completion, ReplayEngine
from assay.pipelines.recipe import RefreshRecipe, Source
from assay.pipelines.settings import load
from assay.pipelines.store import SCHEMAS, Store
from assay.pipelines.verify import Policy, Verifier
from assay.rl.recipe import TrainRecipe
from assay.rl.rollouts import RolloutMaker

SOURCES = {
    "programs": [{"q": "Write twice(x).", "t": ["assert twice(2) == 4", "assert twice(3) == 6"]},
                 {"q": "Write inc(x).", "t": ["assert inc(2) == 3"]}],
    "lists": [{"q": "Which x solve x^2 - 3x + 2 = 0, falling?", "a": "2, 1"}],
}  # fmt: skip
RECIPE = """
name = "mixed"
store = "store"
ladder = ["format", "answer", "difficulty"]
model = { path = "reasoner", instruction = "Answer." }
difficulty = { samples = 2, band = [0.0, 0.9] }
[[sources]]
name = "programs"
path = "programs.jsonl"
kind = "code"
problem = "q"
tests = "t"
[[sources]]
name = "lists"
path = "lists.jsonl"
problem = "q"
answer = "a"
policy = { ordered_lists = true }
"""
SAID = {
    "Write twice(x).": ["```python\ndef twice(x): return 2 * x\n```", "```python\ndef twice(x): return x * x\n```"],
    "Write inc(x).": ["```python\ndef inc(x): return x + 1\n```"] * 2,
    SOURCES["lists"][0]["q"]: ["\\boxed{2, 1}", "\\boxed{1, 2}"],
}


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=1) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def store(verifier, tmp_path_factory) -> Store:
    """A pool of programs and lists, curated on recorded completions."""
    folder = tmp_path_factory.mktemp("pool")
    for name, rows in SOURCES.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "mixed.toml").write_text(RECIPE)
    store = Store.open(folder / "store", create=True)
    run = Refresh(store, load(folder / "mixed.toml", RefreshRecipe), verifier=verifier)
    for step in run.steps:
        run.run(step)
        if step == "parse":
            store.append("generations", recorded(run.pool))
    run.finish()
    return store


def recorded(problems: pl.DataFrame) -> pl.DataFrame:
    asked = problems.select("id", "problem").iter_rows()
    said = [(name, n, text) for name, problem in asked for n, text in enumerate(SAID[problem])]
    rows = [{"key": f"{name}.{n}", "problem_id": name, "model": "m", "mode": "think", "sample": n, "text": text,
             "finish_reason": "stop"} for name, n, text in said]  # fmt: skip
    return pl.DataFrame([dict.fromkeys(SCHEMAS["generations"]) | row for row in rows], schema=SCHEMAS["generations"])


def test_pass_rates_of_programs_come_from_their_tests(store: Store) -> None:
    decided = store.scan("decisions").filter(pl.col("filter") == "difficulty").collect()
    assert dict(decided["reason"].value_counts().rows()) == {None: 2, "too_easy": 1}
    kept = curated(store)
    assert dict(kept.select("problem", "pass_rate").iter_rows()) == {
        "Write twice(x).": 0.5,
        SOURCES["lists"][0]["q"]: 0.5,
    }
    by = store.scan("verdicts").select(pl.col("verifier").str.split(":").list.first()).collect().to_series()
    assert dict(by.str.slice(0, 7).value_counts().rows()) == {"assay-c": 4, "assay-2": 2}


def test_rewards_of_programs_come_from_their_tests(store: Store, verifier: Verifier, reasoner: Path) -> None:
    problems = curated(store)
    recipe = TrainRecipe(name="t", model=str(reasoner), store=store.path, sampling={"group_size": 2})  # type: ignore[arg-type]
    engine = ReplayEngine([], AutoTokenizer.from_pretrained(reasoner), "recorded")
    maker = RolloutMaker(engine, verifier, problems, recipe, recipe.preset(), lambda _: nullcontext())
    done = [Completion("", [1], [0.0], text, "stop", 0.0) for asked in problems["problem"] for text in SAID[asked]]
    assert [v.status for v in maker._verdicts(range(2), done)] == ["correct", "wrong"] * 2
    assert sorted(gold.answer for gold in maker.golds) == ["", "2, 1"]


def test_scores_of_a_benchmark_of_programs_come_from_their_tests(store: Store, verifier: Verifier) -> None:
    exam = Source(name="exam", path=Path("x"), problem="q", tests="t", kind="code")
    assert exam.grading() == Policy(verifier="code")
    items = pl.DataFrame({"id": ["a"], "answer": ["assert twice(5) == 10"]})
    asked = recorded(pl.DataFrame({"id": ["a"], "problem": ["Write twice(x)."]}))
    graded = generate.grade(store, verifier, items, asked, exam.grading())
    assert graded["status"].to_list() == ["correct", "wrong"]
    assert verifier.equivalence_classes(["def f(): 1"], exam.grading()) == [-1]
