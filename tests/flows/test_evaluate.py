"""An evaluation with two benchmarks and every role, of the small reasoner through vLLM, to the report."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from assay.eval.benchmarks import Exam, Items, contamination
from assay.eval.checks import checks
from assay.eval.comparison import told
from assay.eval.curves import doubling
from assay.eval.evaluation import Evaluation
from assay.eval.recipe import EvaluateRecipe, TrainingSet
from assay.eval.report import ReportData
from assay.flows import evaluate as flow
from assay.flows.console import Console
from assay.flows.evaluate import Results, evaluate_model, run_evaluation, tell, trained_on
from assay.flows.reasoner import phrase, sample_chain
from assay.flows.results import load, merge, save
from assay.pipelines import snapshot
from assay.pipelines.engines import VllmEngine
from assay.pipelines.errors import SourceError, StoreError
from assay.pipelines.settings import load as load_recipe
from assay.pipelines.snapshot import Snapshot
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
    data = results.report(doubling(4))
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
    """As many as the table counts, of an item that is listed the rates differ, and the teacher's stands beside."""
    data = results.report([1])
    listed, students = data.distillation_items, data.distillation
    assert listed is not None
    assert students is not None
    counted = students.filter(model="student after").select("task", "gained", "lost").rows()
    for task, *counts in counted:
        moved = listed.filter(task=task, student="new")["change"].to_list()
        assert [moved.count("gained"), moved.count("lost")] == counts
    assert listed.height > 0
    assert ((listed["after"] > listed["before"]) == (listed["change"] == "gained")).all()
    texts = dict(results.items[0].frame.select("id", "problem").iter_rows())
    row = listed.filter(task="short").row(0, named=True)
    assert row["problem"] == texts[row["item"]]
    flags = results.evaluations["teacher"].items.filter(item=row["item"]).select("n", "c").row(0)
    assert row["teacher"] == flags[1] / flags[0]


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
    for words in ("RL against base, short", "Benchmark items stand in the training set", "Random rewards", "few items",
                  "Items gained and lost"):  # fmt: skip
        assert words in page
    assert pl.read_parquet(folder / "data" / "benchmarks.parquet")["hash"].n_unique() == 2


def test_what_was_evaluated_is_not_sampled_again(results: Results, recipe: EvaluateRecipe, engine: VllmEngine) -> None:
    counted, again = engine.sampled_tokens, Results(recipe)
    with Verifier(workers=1) as verifier:
        evaluate_model(recipe, "base", engine, verifier, Store.open(recipe.store), again, Console(quiet=True))
    assert engine.sampled_tokens == counted
    assert again.evaluations["base"].samples.equals(results.evaluations["base"].samples)


def graded(model: str, **right: list[bool | None]) -> Evaluation:
    """Twelve items of every benchmark, whose samples are right, wrong or cut as given."""
    names = {True: "correct", False: "wrong", None: "truncated"}
    rows = [{"benchmark": b, "problem_id": f"{b}{i}", "sample": s, "status": names[flag], "extracted": "7",
             "reason": None, "text": "", "tokens": 1, "answer_class": None if flag is None else int(flag), "score": 0.0}
            for b, flags in right.items() for i in range(12) for s, flag in enumerate(flags)]  # fmt: skip
    return Evaluation(model, pl.DataFrame(rows, schema_overrides={"answer_class": pl.Int64, "reason": pl.String}))


def by_hand(evaluations: list[Evaluation], roles: dict[str, str] | None = None) -> Results:
    found = Results()
    found.evaluations, found.roles = {e.model: e for e in evaluations}, roles or {}
    for name in evaluations[0].samples["benchmark"].unique(maintain_order=True):
        rows = [{"id": f"{name}{i}", "problem": "q", "answer": "7", "source": name, "tests": None} for i in range(12)]
        found.items.append(Items(Exam.model_construct(name=name, hub=None), pl.DataFrame(rows), "h" * 12))
    return found


CUT, HALF, RIGHT = [None, None], [True, False], [True, True]


@pytest.mark.parametrize(("evaluations", "roles", "notes"), [
    ([graded("m", x=CUT)], {}, ["x, m: no sample has a verdict"]),
    ([graded("base", x=CUT), graded("RL", x=HALF)], {}, [
        "x, base: no sample has a verdict", "x, RL - base: no item has a verdict for both; not compared"]),
    ([graded("base", x=HALF, y=HALF), graded("RL", x=HALF, y=CUT)], {}, [
        "y, RL: no sample has a verdict", "y, RL - base: no item has a verdict for both; not compared"]),
    ([graded("base", x=HALF), graded("RL", x=RIGHT), graded("random", x=CUT)], {"random": "control"}, [
        "x, random: no sample has a verdict", "x, random - base: no item has a verdict for both; not compared",
        "x, RL - random: no item has a verdict for both; not compared"]),
    ([graded("t", x=RIGHT), graded("old", x=HALF), graded("new", x=CUT)],
     {"t": "teacher", "old": "before", "new": "after"}, ["x, new: no sample has a verdict"]),
    ([graded("t", x=RIGHT), graded("old", x=CUT), graded("new", x=HALF)],
     {"t": "teacher", "old": "before", "new": "after"}, ["x, old: no sample has a verdict"]),
    ([graded("base", x=HALF), graded("RL", x=HALF)], {}, [])])  # fmt: skip
def test_a_model_without_a_verdict_is_said_and_the_page_is_written(
        evaluations: list[Evaluation], roles: dict[str, str], notes: list[str], tmp_path: Path) -> None:
    results = by_hand(evaluations, roles)
    data = results.report([1, 2])
    said = data.summary["evaluation"]["notes"]  # type: ignore[index]
    assert [note for note in said if not note.startswith("few items")] == notes
    assert (save(data, tmp_path, "cut") / "report.html").is_file()
    assert data.distillation_items is None
    if "after" in roles.values():
        assert data.distillation["model"].to_list()[0] == "teacher"  # type: ignore[index]
    if len(evaluations) == 3 and not results.of("after"):
        assert data.difference.select("model", "base").unique().rows() == [("RL", "base")]  # type: ignore[union-attr]
        assert data.summary["evaluation"]["difference_pass@1"]["value"] == 0.5  # type: ignore[index]


def test_the_change_of_several_benchmarks_is_each_ones_own() -> None:
    two = by_hand([graded("base", x=HALF, y=RIGHT), graded("RL", x=RIGHT, y=HALF)]).report([1, 2])
    found = two.summary["evaluation"]  # type: ignore[index]
    assert {name: change["value"] for name, change in found["differences_pass@1"].items()} == {"x": 0.5, "y": -0.5}
    assert set(found["differences_pass@1"]["x"]) == {"value", "low", "high"}
    assert "difference_pass@1" not in found  # of which?
    one = by_hand([graded("base", x=HALF), graded("RL", x=RIGHT)]).report([1, 2]).summary["evaluation"]  # type: ignore[index]
    assert one["difference_pass@1"] == one["differences_pass@1"]["x"]


def test_few_items_are_said_of_a_model_alone_and_of_a_sweep() -> None:
    results = by_hand([graded("m", x=HALF)])
    rough = "12 items: the interval is rough, half widths up to 0.28"
    assert results.report([1, 2]).summary["evaluation"]["notes"] == [f"few items: x: {rough}"]  # type: ignore[index]
    row = {"benchmark": "x", "model": "m", "budget": 8, "k": 1, "items": 40, "estimate": 0.5, "low": 0.4, "high": 0.6,
           "natural": 1.0, "forced": 0.0, "truncated": 0.0, "empty": 0.0}  # fmt: skip
    results.budgets = [pl.DataFrame([row])]
    assert results.report([1]).summary["evaluation"]["notes"][1] == (  # type: ignore[index]
        "few items: x, thinking budgets: 40 items: half widths up to 0.15, unpaired differences below about 0.22 are "
        "within the noise")
    compared = by_hand([graded("base", x=HALF), graded("RL", x=RIGHT)]).report([1]).summary["evaluation"]  # type: ignore[index]
    assert compared["notes"] == []  # the comparison says so


def test_a_benchmark_that_the_hub_may_change_is_warned_of(tmp_path: Path) -> None:
    results = by_hand([graded("m", x=HALF)])
    exam, commit = Exam.model_construct(name="x", hub="own/x", revision="main"), "a" * 40
    results.items = [replace(results.items[0], exam=exam, revision=commit)]
    data = results.report([1])
    assert f'x: no commit of the Hub is pinned; set revision = "{commit}"' in data.summary["evaluation"]["notes"][0]  # type: ignore[index]
    assert data.benchmarks["revision"].item() == commit  # type: ignore[index]
    results.items = [replace(results.items[0], exam=exam.model_copy(update={"revision": commit}))]
    assert not any("pinned" in note for note in results.report([1]).summary["evaluation"]["notes"])  # type: ignore[index]


def of_weights(evaluations: list[Evaluation], roles: dict[str, str] | None = None, **weights: str) -> ReportData:
    results = by_hand(evaluations, roles)
    results.weights = {e.model: weights.get(e.model, f"{e.model}-weights") for e in evaluations}
    return results.report([1, 2])


def test_a_control_of_another_result_is_set_beside() -> None:
    trained = of_weights([graded("base", x=HALF), graded("RL", x=RIGHT)])
    control = of_weights([graded("base", x=HALF), graded("random", x=HALF)], {"random": "control"})
    for parts in ([trained, control], [control, trained]):
        page = merge(parts)
        assert page.curves["model"].unique().sort().to_list() == ["RL", "base", "random"]  # type: ignore[index]
        assert not page.curves.select("benchmark", "model", "metric", "k").is_duplicated().any()  # type: ignore[union-attr]
        pairs = page.difference.select("model", "base").unique().sort("model").rows()  # type: ignore[union-attr]
        assert pairs == [("RL", "base"), ("random", "base")]
        found = page.summary["evaluation"]  # type: ignore[index]
        assert (found["controls"], found["trained"]["pass@1"]["value"]) == (["random"], 1.0)
        assert any("Random rewards" in check.claim for check in checks(page))


def test_of_one_model_in_two_results_the_later_counts_and_of_two_by_one_name_both() -> None:
    first = of_weights([graded("base", x=HALF), graded("RL", x=RIGHT)])
    again = of_weights([graded("base", x=HALF), graded("RL", x=HALF)])
    value = lambda page, model: page.curves.filter(model=model, metric="pass@k", k=1)["estimate"].to_list()  # noqa: E731
    assert value(merge([first, again]), "RL") == [0.5]
    other = of_weights([graded("base", x=HALF), graded("RL", x=HALF)], RL="0123456789")
    page = merge([first, other])
    assert (value(page, "RL"), value(page, "RL @01234567")) == ([1.0], [0.5])
    assert page.difference["model"].unique().sort().to_list() == ["RL", "RL @01234567"]  # type: ignore[index]
    assert page.four_way.filter(model="RL @01234567")["cell"].to_list()[1] == "RL @01234567 only"  # type: ignore[union-attr]
    assert "RL @01234567: another result's RL, of other or unknown weights" in page.summary["evaluation"]["notes"]  # type: ignore[index]
    unknown = of_weights([graded("RL", x=HALF)], RL="")
    assert value(merge([first, unknown]), "RL @2") == [0.5]  # who knows


def test_other_items_by_the_name_of_a_benchmark_are_refused() -> None:
    first = of_weights([graded("m", x=HALF)])
    for column, value, said in (("hash", "other", "12, hash hhhhhhhhhhhh, in one result and 12, hash other, in"),
                                ("items", 5, "12, hash hhhhhhhhhhhh, in one result and 5, hash h")):  # fmt: skip
        other = replace(first, benchmarks=first.benchmarks.with_columns(pl.lit(value).alias(column)))  # type: ignore[union-attr]
        with pytest.raises(SourceError, match=f"benchmark 'x' has {said.replace('12, hash', '12 items, hash', 1)}"):
            merge([first, other])
    assert merge([first, first]).curves.equals(first.curves)  # type: ignore[union-attr]


def test_curves_of_two_training_runs_stand_in_one_page() -> None:
    steps = pl.DataFrame({"step": [1], "metric": ["reward"], "value": [0.5]})
    runs = [ReportData({"training": {"run": run, "steps": 1}}, steps=steps) for run in ("dr-1", "random-2")]
    page = merge(runs)
    assert page.steps["metric"].to_list() == ["reward, dr-1", "reward, random-2"]  # type: ignore[index]
    assert page.summary["evaluation"]["notes"] == [  # type: ignore[index]
        "training: several results have it, and the figures are the last one's"]
    assert merge(runs[:1]).steps.equals(steps)  # type: ignore[union-attr]
    assert merge([runs[0], of_weights([graded("m", x=HALF)])]).steps.equals(steps)  # type: ignore[union-attr]


def test_intervals_are_not_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """A model that solves half of the items always against one that solves all at times: they cross after k = 1."""
    both = [graded("base", x=[False] * 3 + [True]), graded("RL", x=RIGHT * 2)]
    rows = both[1].samples.with_columns(status=pl.when(pl.col("problem_id").is_in([f"x{i}" for i in range(6)])).then(
        pl.lit("wrong")).otherwise("status"))  # fmt: skip
    tell(by_hand([both[0], Evaluation("RL", rows)]).report([1, 4]), Console())
    assert "the curves cross after k = 1 [before 1, 2]" in capsys.readouterr().out


def test_a_training_set_is_found_by_latest_and_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    store, none = Store.open(tmp_path / "s", create=True), pl.DataFrame(schema={"reasons": pl.String})
    for day, name in enumerate(("20260101-a", "20260102-b"), 1):
        made = Snapshot(name, None, "h", {"name": "r"}, [], none, datetime(2026, 1, day))
        snapshot.record(store, made)
        (snapshot.folder_of(store, name) / "data").mkdir(parents=True)
        pl.DataFrame({"problem": [name]}).write_parquet(snapshot.folder_of(store, name) / "data/train.parquet")
    for asked, name in (("latest", "20260102-b"), ("20260101", "20260101-a")):
        assert trained_on(TrainingSet(store=tmp_path / "s", snapshot=asked)).to_list() == [name]
    with pytest.raises(StoreError, match="no snapshot starts with 'x'"):
        trained_on(TrainingSet(store=tmp_path / "s", snapshot="x"))


def test_a_wrong_training_set_is_told_before_anything_is_loaded(
        recipe: EvaluateRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "EnginePool", lambda **_: pytest.fail("a model was loaded"))
    wrong = recipe.training_set.model_copy(update={"store": tmp_path / "none"})  # type: ignore[union-attr]
    with pytest.raises(StoreError, match="none"):
        run_evaluation(recipe.model_copy(update={"training_set": wrong}))
