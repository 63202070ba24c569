"""Evaluate models on benchmarks and write the report."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from assay.eval import thinking_budget
from assay.eval.evaluation import Evaluation, compare, evaluate, powers_of_two
from assay.eval.recipe import EvaluateRecipe
from assay.eval.report import ReportData
from assay.flows.console import Console
from assay.flows.models import EnginePool
from assay.flows.results import save
from assay.pipelines import sources
from assay.pipelines.engines import Engine, Sampling
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier

__all__ = ["Results", "run_evaluation", "sample_rows"]


class Results:
    """Evaluations and budget sweeps by model; the first model is the base."""

    def __init__(self) -> None:
        self.evaluations: dict[str, Evaluation] = {}
        self.budgets: list[pl.DataFrame] = []
        self.problems = pl.DataFrame()

    def report(self, ks: list[int], headline_k: int) -> ReportData:
        """The report's frames: curves, majority and budgets of every model, the last against the first."""
        base, *others = self.evaluations.values()
        parts: dict[str, Any] = {
            "curves": pl.concat([e.pass_at_k(ks) for e in self.evaluations.values()]),
            "majority": pl.concat([e.majority_at_k(ks) for e in self.evaluations.values()]),
            "budgets": pl.concat(self.budgets) if self.budgets else None,
            "samples": sample_rows(self.evaluations, self.problems),
        }
        summary: dict[str, Any] = {"base": base.headline(headline_k)}
        if others:
            found = compare(others[-1], base, ks)
            first = found.difference.row(0, named=True)
            summary |= {
                "trained": others[-1].headline(headline_k),
                "difference_pass@1": {"value": first["difference"], "low": first["low"], "high": first["high"]},
            }
            parts |= {"difference": found.difference, "four_way": _four_way(found.four_way)}
        summary["budgets"] = parts["budgets"].to_dicts() if self.budgets else []
        return ReportData(summary={"evaluation": summary}, **parts)


def _four_way(frame: pl.DataFrame) -> pl.DataFrame:
    names = {"both": "both", "a_only": "RL only", "b_only": "base only", "neither": "neither"}
    return frame.with_columns(cell=pl.col("solved_by").replace(names))


def run_evaluation(recipe: EvaluateRecipe, console: Console | None = None) -> Path:
    """Evaluate every model of the recipe; returns the folder with `report.html`, `summary.json` and the numbers."""
    console = console or Console()
    store = Store.open(recipe.store, create=True)
    with EnginePool(max_model_len=recipe.max_model_len, dtype=recipe.dtype) as pool, Verifier() as verifier:
        results = Results()
        for model in recipe.models:
            console.heading(f"Evaluate {model.name}")
            evaluate_model(recipe, model.name, pool.get(model.path), verifier, store, results, console)
    folder = recipe.store / "evaluations" / f"{recipe.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return save(results.report(powers_of_two(recipe.samples), powers_of_two(recipe.samples)[-1]), folder, recipe.name)


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
    problems = load_benchmarks(recipe)
    results.problems = problems
    sampling = Sampling(recipe.temperature, recipe.top_p, recipe.top_k, recipe.max_tokens)
    with console.progress() as bar:
        bar.start(f"{name} pass@k")
        done = evaluate(
            store,
            engine,
            verifier,
            problems,
            model=name,
            n=recipe.samples,
            sampling=sampling,
            instruction=recipe.instruction,
            seed=recipe.seed,
            progress=bar.update,
        )
        bar.end(_line(done))
        results.evaluations[name] = done
        if recipe.budgets.tokens:
            bar.start(f"{name} budgets")
            frame = _sweep(recipe, name, engine, verifier, problems, sampling, bar)
            results.budgets.append(frame)
            bar.end(_budget_line(frame))
    return done


def load_benchmarks(recipe: EvaluateRecipe) -> pl.DataFrame:
    """Items of all benchmarks: `id, problem, answer, source`."""
    frames = [sources.read(b)[0].head(recipe.items or 2**31) for b in recipe.benchmarks]
    return pl.concat(frames).select("id", "problem", "answer", "source")


def _sweep(
    recipe: EvaluateRecipe,
    name: str,
    engine: Engine,
    verifier: Verifier,
    problems: pl.DataFrame,
    sampling: Sampling,
    bar: Any,
) -> pl.DataFrame:
    b, count = recipe.budgets, 0
    problems = problems.head(b.items or problems.height)

    def on_done(_: object) -> None:
        nonlocal count
        count += 1
        bar.update(count, max(count, len(problems) * b.samples))

    samples = thinking_budget.sweep(
        engine,
        problems,
        b.tokens,
        b.samples,
        verifier=verifier,
        answer_tokens=b.answer_tokens,
        sampling=sampling,
        stop_text=b.stop_text or thinking_budget.QWEN3_STOP,
        instruction=recipe.instruction,
        seed=recipe.seed,
        on_done=on_done,
    )
    return thinking_budget.summarise(samples, b.ks).select(pl.lit(name).alias("model"), pl.all())


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
    about = problems.select(problem_id="id", problem="problem", gold="answer")
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
                pl.lit("").alias("tags"),
            )
        )
    return pl.concat(parts)


def _line(done: Evaluation) -> str:
    first = done.pass_at_k([1]).row(0, named=True)
    return f"pass@1 {first['estimate']:.3f} [{first['low']:.3f}, {first['high']:.3f}]"


def _budget_line(frame: pl.DataFrame) -> str:
    first = frame.filter(pl.col("k") == frame["k"].min())
    cost = frame.unique("budget").select(pl.col("new_tokens", "anew_tokens").sum()).row(0)
    curve = ", ".join(f"{b}: {e:.2f}" for b, e in first.select("budget", "estimate").iter_rows())
    return f"pass@1 by budget {curve} ({cost[0]:,} tokens; {cost[1]:,} when each is generated anew)"
