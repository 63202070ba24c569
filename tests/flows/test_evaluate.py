"""An evaluation with two benchmarks and every role, of the small reasoner through vLLM, to the report."""

from __future__ import annotations

import json
import random
from pathlib import Path

import polars as pl
import pytest

from assay.eval.benchmarks import contamination
from assay.eval.comparison import told
from assay.eval.evaluation import powers_of_two
from assay.eval.recipe import EvaluateRecipe
from assay.flows.console import Console
from assay.flows.evaluate import Results, evaluate_model
from assay.flows.reasoner import phrase, sample_chain
from assay.flows.results import load, save
from assay.pipelines.engines import VllmEngine
from assay.pipelines.settings import load as load_recipe
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier

RECIPE = """
name = "all"
store = "store"
samples = 4
max_tokens = 96
max_model_len = 512
instruction = ""
training_set = { store = "store", tasks = ["short"] }
budgets = { samples = 2, ks = [1, 2], tokens = [0, 16, 80], answer_tokens = 16, stop_text = "\\n</think>\\n\\n" }
"""
ROLES = {"base": "compared", "RL": "compared", "random": "control"}
ROLES |= {"teacher": "teacher", "old": "before", "new": "after"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> EvaluateRecipe:
    folder, rng, text = tmp_path_factory.mktemp("evaluate"), random.Random(5), RECIPE
    for name, role in ROLES.items():
        text += f'[[models]]\nname = "{name}"\npath = "reasoner"\nrole = "{role}"\n'
    for name, terms, count in (("short", 2, 12), ("long", 4, 8)):
        chains = [sample_chain(rng, terms) for _ in range(count)]
        rows = [{"question": phrase(c, rng), "gold": str(c.answer)} for c in chains]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        text += f'[[benchmarks]]\nname = "{name}"\npath = "{name}.jsonl"\nproblem = "question"\nanswer = "gold"\n'
    (folder / "all.toml").write_text(text)
    return load_recipe(folder / "all.toml", EvaluateRecipe)


@pytest.fixture(scope="module")
def results(recipe: EvaluateRecipe, pool: object, reasoner: Path) -> Results:
    """Every model is the reasoner, with seeds of its own."""
    found, store = Results(recipe), Store.open(recipe.store, create=True)
    engine: VllmEngine = pool.get(str(reasoner))  # type: ignore[attr-defined]
    with Verifier(workers=1) as verifier:
        for seed, name in enumerate(ROLES):
            own = recipe.model_copy(update={"seed": seed})
            evaluate_model(own, name, engine, verifier, store, found, Console(quiet=True))
    return found


def test_every_benchmark_has_its_own_figures(results: Results) -> None:
    data = results.report(powers_of_two(4))
    assert data.curves is not None
    assert data.curves.select("benchmark", "model").unique().height == 2 * len(ROLES)
    short = results.evaluations["base"].samples.filter(benchmark="short").partition_by("problem_id")
    verdicts = [[s == "correct" for s in item["status"] if s in ("correct", "wrong")] for item in short]
    flags = [flag for item in verdicts for flag in item]
    found = data.curves.filter(benchmark="short", model="base", metric="pass@k", k=1)
    per_item = [sum(item) / len(item) for item in verdicts if item]
    assert found["estimate"].item() == pytest.approx(sum(per_item) / len(per_item))
    told = data.outcomes.filter(benchmark="short", model="base").row(0, named=True)  # type: ignore[union-attr]
    assert (told["samples"], told["unscored"]) == (48, 48 - len(flags))
    assert data.budgets.filter(k=1).height == 2 * 3 * len(ROLES)  # type: ignore[union-attr]
    assert set(data.summary["evaluation"]["base"]) >= {"short pass@1", "long pass@4", "long maj@4"}  # type: ignore[index]


def test_who_is_compared_with_whom(results: Results) -> None:
    assert results.pairs() == [("RL", "base"), ("random", "base"), ("RL", "random")]
    data = results.report([1, 2, 4])
    found = told(data.difference)
    pairs = [(it["benchmark"], it["model"], it["base"]) for it in found]
    assert pairs == [(benchmark, *pair) for pair in results.pairs() for benchmark in ("short", "long")]
    for it in found:
        assert all("detectable" in line for line in it["lines"][:3])
        assert "cross" in it["lines"][3]
        assert it["lines"][4].startswith("few items: ")
    assert data.four_way.select("model", "base").unique().rows() == [("RL", "base")]  # type: ignore[union-attr]


def test_items_that_a_student_gained_and_lost_are_listed(results: Results) -> None:
    """As many as the table counts, and of an item that is listed the rates differ."""
    listed, students = results.changes(), results.report([1]).distillation
    assert listed is not None
    assert students is not None
    counted = students.filter(model="student after").select("task", "gained", "lost").rows()
    for task, *counts in counted:
        moved = listed.filter(task=task, student="new")["change"].to_list()
        assert [moved.count("gained"), moved.count("lost")] == counts
    assert listed.height > 0
    assert ((listed["after"] > listed["before"]) == (listed["change"] == "gained")).all()


def test_a_student_is_set_against_its_teacher_and_itself(results: Results) -> None:
    students = results.report([1]).distillation
    assert students is not None
    assert students["task"].to_list() == ["short", "long"] * 3
    after = students.filter(model="student after")
    assert after["trained"].to_list() == [True, False]
    for row in after.iter_rows(named=True):
        assert row["gain_low"] <= row["gain"] <= row["gain_high"]
        assert not row["forgotten"] or (row["gain_high"] < 0 and not row["trained"])
        assert row["gained"] + row["lost"] <= row["items"]


def test_results_are_kept_and_make_the_page_again(results: Results, tmp_path: Path) -> None:
    trained = results.items[0].frame["problem"]
    results.seen = contamination(results.items, trained)
    assert results.seen["contaminated"].to_list()[0] >= 11
    folder = save(results.report([1, 2, 4]), tmp_path / "one", "all")
    again = load(folder)
    assert again.difference.equals(results.report([1, 2, 4]).difference)  # type: ignore[union-attr]
    page = (folder / "report.html").read_text(encoding="utf-8")
    for words in ("RL against base, short", "Benchmark items stand in the training set", "Random rewards", "few items"):
        assert words in page
    assert pl.read_parquet(folder / "data" / "benchmarks.parquet")["hash"].n_unique() == 2


def test_what_was_evaluated_is_not_sampled_again(results: Results, recipe: EvaluateRecipe, engine: VllmEngine) -> None:
    counted, again = engine.sampled_tokens, Results(recipe)
    with Verifier(workers=1) as verifier:
        evaluate_model(recipe, "base", engine, verifier, Store.open(recipe.store), again, Console(quiet=True))
    assert engine.sampled_tokens == counted
    assert again.evaluations["base"].samples.equals(results.evaluations["base"].samples)
