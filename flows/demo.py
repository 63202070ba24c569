"""The whole way on a small scale: refresh a messy pool, train on what is left, measure what the training did."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay.eval.evaluation import Evaluation
from assay.eval.recipe import Budgets, EvaluateRecipe
from assay.eval.report import ReportData
from assay.flows import evaluate as evaluation
from assay.flows import reasoner, train
from assay.flows.console import Console
from assay.flows.demo_pool import write_pool
from assay.flows.distill import distill
from assay.flows.models import EnginePool
from assay.flows.results import merge, save
from assay.pipelines import ledger
from assay.pipelines import snapshot as snapshots
from assay.pipelines.models import REASONER
from assay.pipelines.recipe import RefreshRecipe
from assay.pipelines.settings import load
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier
from assay.rl.recipe import TrainRecipe
from assay.rl.trainer import TrainingResult

__all__ = ["RECIPES", "Demo", "run_demo"]

RECIPES = Path(__file__).parent / "recipes"
KS = [1, 2, 4, 8]


def run_demo(
    out: Path,
    *,
    fresh_model: bool = False,
    seed: int = 0,
    overrides: tuple[str, ...] = (),
    install_seconds: float = 0.0,
    problems: int = 640,
    console: Console | None = None,
) -> Path:
    """Run everything into `out`; returns the folder with `report.html` and `summary.json`.

    Args:
        fresh_model: make the small reasoner anew (minutes) instead of taking the one in the package.
        problems: sound ones in the raw pool.
        overrides: of the recipes, e.g. `train.steps=20` or `evaluate.items=100`.
    """
    demo = Demo(out, seed, overrides, console or Console(), problems)
    demo.seconds["install"] = install_seconds
    with EnginePool(max_model_len=512, dtype="float32") as pool:
        model = demo.timed("cold_start", lambda: demo.cold_start(fresh_model))
        demo.timed("refresh", lambda: demo.refresh(model, pool))
        result = demo.timed("train", lambda: demo.train(model, pool))
        results, student = demo.timed("evaluate", lambda: demo.evaluate(model, result, pool))
    return demo.report(result, results, student)


@dataclass
class Demo:
    """One run of the demo; each part can be run alone."""

    out: Path
    seed: int
    overrides: tuple[str, ...]
    console: Console
    problems: int = 640
    seconds: dict[str, float] = field(default_factory=dict)

    def timed(self, part: str, run: Any) -> Any:
        """Run a part and keep its seconds."""
        began = time.perf_counter()
        made = run()
        self.seconds[part] = time.perf_counter() - began
        return made

    @property
    def store(self) -> Store:
        """The demo's store."""
        return Store.open(self.out / "store", create=True)

    def cold_start(self, fresh: bool) -> Path:
        """The small reasoner: shipped, or made anew."""
        self.console.heading("1. Cold start")
        if not fresh:
            self.console.say(f"  the small reasoner of the package ({reasoner.describe(REASONER)})")
            return REASONER
        folder = self.out / "models" / "reasoner"
        with self.console.progress() as bar:
            bar.start("fine-tune", reasoner.STEPS)
            reasoner.make_checkpoint(
                folder, on_step=lambda s, loss: bar.update(s + 1, reasoner.STEPS, f"loss {loss:.3f}")
            )
            bar.end(f"{reasoner.describe(folder)}")
        return folder

    def refresh(self, model: Path, pool: EnginePool) -> None:
        """Write the raw pool, then refresh it."""
        from assay.flows.refresh import run_refresh

        self.console.heading("2. Refresh")
        write_pool(self.out / "raw", self.problems, seed=self.seed)
        recipe = self._load("demo_refresh", RefreshRecipe, model=model)
        run_refresh(recipe, lambda: pool.get(str(model)), self.console)

    def train(self, model: Path, pool: EnginePool) -> TrainingResult:
        """Train on the latest snapshot."""
        self.console.heading("3. Train")
        recipe = self._load("demo_train", TrainRecipe, model=model, more=(f"seed={self.seed}",))
        return train.run_training(recipe, self.console, pool=pool)

    def evaluate(self, model: Path, result: TrainingResult, pool: EnginePool) -> tuple[evaluation.Results, Evaluation]:
        """Base, trained, and a student distilled from the trained one."""
        self.console.heading("4. Evaluate")
        recipe = self._load("demo_evaluate", EvaluateRecipe, base=model, trained=result.checkpoint)
        results = evaluation.Results(recipe)
        with Verifier() as verifier:
            for m in recipe.models:
                evaluation.evaluate_model(recipe, m.name, pool.get(m.path), verifier, self.store, results, self.console)
            if recipe.training_set:
                results.look_for(recipe.training_set, evaluation.trained_on(recipe.training_set), self.console)
            problems = train.curated(self.store)
            student = distill(
                self.store,
                pool,
                verifier,
                problems,
                teacher=str(result.checkpoint),
                student=str(model),
                folder=self.out / "models" / "student",
                instruction=recipe.instruction,
                seed=self.seed,
                console=self.console,
            )
            alone = recipe.model_copy(update={"samples": 4, "budgets": Budgets()})
            after = evaluation.evaluate_model(
                alone, "student", pool.get(str(student)), verifier, self.store, evaluation.Results(), self.console
            )
        return results, after

    def report(self, result: TrainingResult, results: evaluation.Results, student: Evaluation) -> Path:
        """`report.html`, `summary.json`, PNG, Parquet and CSV into the demo's folder."""
        self.console.heading("5. Report")
        began = time.perf_counter()
        parts = [
            curation_report(self.store),
            train.training_report(self.store, result),
            results.report(KS),
            distilled(results, student),
        ]
        data = merge(parts)
        evaluation.tell(data, self.console)
        self.seconds["total"] = sum(self.seconds.values()) + time.perf_counter() - began
        data = replace(data, summary={"seconds": self.seconds, **(data.summary or {})})
        folder = save(data, self.out, "assay demo")
        self.console.say(f"  report   {folder / 'report.html'}\n  summary  {folder / 'summary.json'}")
        return folder

    def _load(self, name: str, kind: Any, more: tuple[str, ...] = (), **variables: Path) -> Any:
        given = {"out": self.out.resolve(), **variables}
        known = (RECIPES / f"{name}.toml").read_text(encoding="utf-8")
        sets = [f"{k}={v}" for k, v in given.items() if f"{k} = " in known]
        job = name.removeprefix("demo_") + "."
        own = [text.removeprefix(job) for text in self.overrides if text.startswith(job)]
        return load(RECIPES / f"{name}.toml", kind, [*sets, *more, *own])


def curation_report(store: Store, snapshot: str = "latest") -> ReportData:
    """Funnel, pass rates and counts of a snapshot."""
    made = snapshots.load(store, snapshot)
    funnel = made.funnel
    band = made.recipe["difficulty"]["band"]
    removed = {r["filter"]: r["rows_in"] - r["rows_out"] for r in funnel.to_dicts()}
    curation = {
        "snapshot": made.id,
        "rows_in": funnel["rows_in"][0],
        "rows_out": funnel["rows_out"][-1],
        "removed": removed,
    }
    rates = ledger.pass_rates(store, made.id)
    return ReportData(summary={"curation": curation}, funnel=funnel, pass_rates=rates, band=(band[0], band[1]))


def distilled(results: evaluation.Results, student: Evaluation) -> ReportData:
    """Teacher, student before and student after, with the share of the gap that was recovered."""
    teacher, before = results.evaluations["RL"], results.evaluations["base"]
    shown = evaluation.students(teacher, before, [student], results.items, results.tasks)
    frame = shown["distillation"]
    summary: dict[str, Any] = {
        row["model"].replace(" ", "_"): {"value": row["accuracy"], "low": row["low"], "high": row["high"]}
        for row in frame.iter_rows(named=True)}  # fmt: skip
    names = ("gain", "gain_low", "gain_high", "mdd", "gap_recovered", "gap_low", "gap_high", "gained", "lost")
    summary |= {name: frame[name][-1] for name in names}
    return ReportData(summary={"distillation": summary}, **shown)
