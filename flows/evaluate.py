"""Evaluate models on benchmarks and write the report."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl

from assay.eval import benchmarks, comparison, distillation, thinking_budget
from assay.eval.benchmarks import Items
from assay.eval.evaluation import Evaluation, compare, evaluate, powers_of_two
from assay.eval.recipe import EvaluateRecipe, TrainingSet
from assay.eval.report import ReportData
from assay.flows.console import Console
from assay.flows.models import EnginePool, verifier_of
from assay.flows.results import save
from assay.pipelines.engines import Engine, Sampling
from assay.pipelines.errors import SourceError
from assay.pipelines.store import Store
from assay.pipelines.verify import Policy, Verifier

__all__ = ["Results", "evaluate_model", "run_evaluation", "sample_rows"]

FOUR_WAY = {"both": "both", "a_only": "RL only", "b_only": "base only", "neither": "neither"}
STUDENTS = {"teacher": "teacher", "before": "student before"}


class Results:
    """Evaluations and budget sweeps by model; the first model that is compared is the base."""

    def __init__(self, recipe: EvaluateRecipe | None = None) -> None:
        self.evaluations: dict[str, Evaluation] = {}
        self.budgets: list[pl.DataFrame] = []
        self.items: list[Items] = []
        self.seen: pl.DataFrame | None = None
        self.tasks = recipe.training_set.tasks if recipe and recipe.training_set else ()
        self.roles = {m.name: m.role for m in recipe.models} if recipe else {}

    def of(self, role: str) -> list[Evaluation]:
        """The evaluations of the models in a role."""
        return [e for name, e in self.evaluations.items() if self.roles.get(name, "compared") == role]

    def pairs(self) -> list[tuple[Evaluation, Evaluation]]:
        """Who is compared with whom: every model with the base, controls too, and the last model with the controls."""
        if not self.of("compared"):
            return []
        (base, *others), controls = self.of("compared"), self.of("control")
        return [(e, base) for e in [*others, *controls]] + [(e, c) for e in others[-1:] for c in controls]

    def report(self, ks: list[int], headline_k: int) -> ReportData:
        """The report's frames: curves, votes, budgets and comparisons; the last compared model is the trained one."""
        everyone, compared = list(self.evaluations.values()), self.of("compared")
        found = [compare(model, base, ks) for model, base in self.pairs()]
        differences = pl.concat([c.difference for c in found]) if found else None
        summary: dict[str, Any] = {"controls": [e.model for e in self.of("control")]}
        if compared:
            summary["base"] = compared[0].headline(headline_k)
        parts: dict[str, Any] = {
            "curves": pl.concat([e.pass_at_k(ks) for e in everyone]),
            "majority": pl.concat([e.majority_at_k(ks) for e in everyone]),
            "best": pl.concat([e.best_of_k(ks) for e in everyone]),
            "outcomes": pl.concat([e.outcomes() for e in everyone]),
            "benchmarks": self._benchmarks(),
            "budgets": pl.concat(self.budgets) if self.budgets else None,
            "difference": differences,
            "four_way": _four_way(found[len(compared) - 2].four_way) if compared[1:] else None,
            "samples": sample_rows(self.evaluations, pl.concat([i.frame for i in self.items])),
        }
        if differences is not None and compared[1:]:
            first = differences.filter(pl.col("model") == compared[-1].model).row(0, named=True)
            summary["trained"] = compared[-1].headline(headline_k)
            summary["difference_pass@1"] = {"value": first["difference"], "low": first["low"], "high": first["high"]}
        summary["budgets"] = parts["budgets"].to_dicts() if self.budgets else []
        students = self.students()
        return ReportData(summary={"evaluation": summary}, distillation=students, **parts)

    def students(self) -> pl.DataFrame | None:
        """Teacher, student before and every student after by benchmark, with what each gained; None without them."""
        after = self.of("after")
        if not after:
            return None
        teacher, before = self.of("teacher")[0], self.of("before")[0]
        frames = [_accuracy(teacher, "teacher"), _accuracy(before, "student before")]
        for student in after:
            name = "student after" if len(after) == 1 else student.model
            gained = distillation.table(
                *distillation.scored(teacher.rates(), before.rates(), student.rates()), trained=self.tasks
            ).drop("teacher", "before", "after", "teacher_tokens", "before_tokens", "after_tokens")
            frames.append(_accuracy(student, name).join(gained, on="task", how="left"))
        return pl.concat(frames, how="diagonal")

    def comparisons(self, ks: list[int]) -> list[str]:
        """Every comparison in words: differences, what could have been seen, the crossing, a warning of few items."""
        lines = []
        for model, base in self.pairs():
            found = compare(model, base, ks).difference
            for (name,), rows in found.group_by(["benchmark"], maintain_order=True):
                lines.append(f"{name}: {model.model} - {base.model}")
                lines += [f"  {line}" for line in comparison.describe(rows)]
        return lines

    def _benchmarks(self) -> pl.DataFrame:
        rows = [(i.exam.name, i.frame.height, i.exam.revision, i.hash[:12]) for i in self.items]
        names = {"benchmark": pl.String, "items": pl.Int64, "revision": pl.String, "hash": pl.String}
        frame = pl.DataFrame(rows, schema=names, orient="row")
        if self.seen is None:
            return frame.with_columns(contaminated=pl.lit(None, pl.Int64))
        return frame.join(self.seen.drop("items"), on="benchmark", how="left", maintain_order="left")


def _accuracy(e: Evaluation, name: str) -> pl.DataFrame:
    rates = e.pass_at_k([1]).select("low", "high", task="benchmark", accuracy="estimate")
    tokens = e.samples.group_by("benchmark").agg(pl.col("tokens").mean()).rename({"benchmark": "task"})
    joined = rates.join(tokens, on="task", maintain_order="left")
    return joined.select("task", pl.lit(name).alias("model"), "accuracy", "low", "high", "tokens")


def _four_way(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(cell=pl.col("solved_by").replace(FOUR_WAY))


def run_evaluation(recipe: EvaluateRecipe, console: Console | None = None) -> Path:
    """Evaluate every model of the recipe; returns the folder with `report.html`, `summary.json` and the numbers."""
    console = console or Console()
    store = Store.open(recipe.store, create=True)
    results, ks = Results(recipe), powers_of_two(max(_samples(recipe, exam) for exam in recipe.benchmarks))
    own = {"stop_text": _stop_text(recipe)} if recipe.budgets.procedure == "vllm" else {}
    with EnginePool(max_model_len=recipe.max_model_len, dtype=recipe.dtype, **own) as pool, \
            verifier_of(recipe.judge) as verifier:  # fmt: skip
        for model in recipe.models:
            console.heading(f"Evaluate {model.name}")
            evaluate_model(recipe, model.name, pool.of(model), verifier, store, results, console)
    if recipe.training_set is not None:
        results.seen = benchmarks.contamination(results.items, _trained(recipe.training_set))
        console.say("\n".join(_seen_line(row) for row in results.seen.iter_rows(named=True)))
    for line in results.comparisons(ks):
        console.say(f"  {line}")
    folder = recipe.store / "evaluations" / f"{recipe.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return save(results.report(ks, ks[-1]), folder, recipe.name)


def evaluate_model(
    recipe: EvaluateRecipe,
    name: str,
    engine: Engine,
    verifier: Verifier,
    store: Store,
    results: Results,
    console: Console,
) -> Evaluation:
    """All benchmarks of the recipe with one model; adds to `results`."""
    results.items = results.items or [benchmarks.load(exam, recipe.items) for exam in recipe.benchmarks]
    parts = []
    with console.progress() as bar:
        for items in results.items:
            label = name if len(results.items) == 1 else f"{name} {items.exam.name}"
            bar.start(f"{label} pass@k")
            parts.append(_passes(recipe, name, engine, verifier, store, items, bar.update))
            bar.end(_line(parts[-1]))
            if budgets := items.exam.budgets if items.exam.budgets is not None else recipe.budgets.tokens:
                bar.start(f"{label} budgets")
                samples = _sweep(recipe, engine, verifier, store, items, budgets, bar.update)
                frame = thinking_budget.summarise(samples, recipe.budgets.ks)
                who = [pl.lit(items.exam.name).alias("benchmark"), pl.lit(name).alias("model")]
                results.budgets.append(frame.select(*who, pl.all()))
                bar.end(f"{_budget_line(frame)}; {thinking_budget.cost(samples)}")
    results.evaluations[name] = Evaluation(name, pl.concat([part.samples for part in parts]))
    return results.evaluations[name]


def _passes(recipe: EvaluateRecipe, name: str, engine: Engine, verifier: Verifier, store: Store, items: Items,
            progress: Any) -> Evaluation:  # fmt: skip
    return evaluate(
        store,
        engine,
        verifier,
        items.frame,
        model=name,
        n=_samples(recipe, items.exam),
        sampling=Sampling(recipe.temperature, recipe.top_p, recipe.top_k, recipe.max_tokens),
        instruction=_instruction(recipe, items),
        seed=recipe.seed,
        policy=_policy(items),
        progress=progress,
    )


def _sweep(
    recipe: EvaluateRecipe,
    engine: Engine,
    verifier: Verifier,
    store: Store,
    items: Items,
    budgets: tuple[int, ...],
    progress: Callable[[int, int, str], None],
) -> pl.DataFrame:
    b, count = recipe.budgets, 0
    problems = items.frame.head(b.items or items.frame.height)

    def on_done(_: object) -> None:
        nonlocal count
        count += 1
        progress(count, max(count, len(problems) * b.samples), "")

    return thinking_budget.sweep(
        engine,
        problems,
        budgets,
        b.samples,
        verifier=SimpleNamespace(grade_many=partial(verifier.grade_many, policies=_policy(items))),
        answer_tokens=b.answer_tokens,
        sampling=Sampling(recipe.temperature, recipe.top_p, recipe.top_k),
        stop_text=_stop_text(recipe),
        extensions=b.extensions,
        wait_text=b.wait_text,
        instruction=_instruction(recipe, items),
        seed=recipe.seed,
        on_done=on_done,
        store=store,
        procedure=b.procedure,
    )


def _samples(recipe: EvaluateRecipe, exam: benchmarks.Exam) -> int:
    return exam.samples or recipe.samples


def _instruction(recipe: EvaluateRecipe, items: Items) -> str | None:
    return recipe.instruction if items.exam.instruction is None else items.exam.instruction


def _policy(items: Items) -> Policy:
    return items.exam.grading()


def _stop_text(recipe: EvaluateRecipe) -> str:
    return recipe.budgets.stop_text or thinking_budget.STOPS[recipe.budgets.stop]


def _trained(told: TrainingSet) -> pl.Series:
    """The texts of a snapshot's problems."""
    from assay.pipelines import snapshot

    file = snapshot.folder_of(Store.open(told.store), told.snapshot) / "data" / "train.parquet"
    if not file.is_file():
        raise SourceError(f"{file}: not there; the snapshot holds no problems. Name another in [training_set].")
    return pl.read_parquet(file, columns=["problem"])["problem"]


def sample_rows(
    evaluations: dict[str, Evaluation], problems: pl.DataFrame, items: int = 40, each: int = 2
) -> pl.DataFrame:
    """Samples to read: of the items on which the models differ most, then of others."""
    rates = [
        e.samples.group_by("problem_id").agg((pl.col("status") == "correct").mean().alias(name))
        for name, e in evaluations.items()
    ]
    joined = rates[0]
    for other in rates[1:]:
        joined = joined.join(other, on="problem_id")
    names = list(evaluations)
    spread = (pl.max_horizontal(names) - pl.min_horizontal(names)).alias("spread")
    chosen = joined.with_columns(spread).sort("spread", "problem_id", descending=[True, False]).head(items)
    gold = pl.when(pl.col("tests").is_null()).then(pl.col("answer")).otherwise(pl.lit("its tests"))
    about = problems.select(problem_id="id", problem="problem", gold=gold)
    parts = []
    for name, e in evaluations.items():
        rows = e.samples.filter(pl.col("sample") < each).join(chosen.select("problem_id"), on="problem_id", how="semi")
        parts.append(
            rows.join(about, on="problem_id", maintain_order="left").select(
                "problem_id",
                "problem",
                "gold",
                pl.lit(name).alias("model"),
                pl.col("text").alias("completion"),
                "status",
                "reason",
                "tokens",
                pl.col("benchmark").alias("tags"),
            )
        )
    return pl.concat(parts)


def _line(done: Evaluation) -> str:
    row, rates = done.outcomes().row(0, named=True), done.pass_at_k([1])
    said = "".join(f"pass@1 {e:.3f} [{low or 0:.3f}, {high or 1:.3f}]"
                   for e, low, high in rates.select("estimate", "low", "high").iter_rows()) or "no verdict"  # fmt: skip
    told = ", ".join(f"{row[s]:,} {s}" for s in ("truncated", "unverifiable", "timeout") if row[s])
    return f"{said}; {row['unscored']:,} of {row['samples']:,} samples unscored" + (f" ({told})" if told else "")


def _budget_line(frame: pl.DataFrame) -> str:
    first = frame.filter(pl.col("k") == frame["k"].min())
    rates = [f"{b}: {'-' if e is None else f'{e:.2f}'}" for b, e in first.select("budget", "estimate").iter_rows()]
    return f"pass@1 by budget {', '.join(rates)}"


def _seen_line(row: dict[str, Any]) -> str:
    if not row["contaminated"]:
        return f"  {row['benchmark']}: no item found in the training set"
    share = f"{row['contaminated']:,} of {row['items']:,} items ({row['share']:.1%})"
    return f"  [bold]{row['benchmark']}: contaminated[/bold], {share} stand in the training set"
