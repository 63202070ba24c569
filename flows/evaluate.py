"""Evaluate models on benchmarks and write the report."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
from rich.markup import escape

from assay.eval import benchmarks, comparison, curves, distillation, thinking_budget
from assay.eval.benchmarks import Items
from assay.eval.evaluation import Evaluation, evaluate
from assay.eval.recipe import EvaluateRecipe, TrainingSet
from assay.eval.report import ReportData, gained
from assay.flows.console import Console
from assay.flows.models import EnginePool, verifier_of
from assay.flows.results import save
from assay.pipelines.engines import Engine, Sampling
from assay.pipelines.errors import SourceError
from assay.pipelines.prompts import render
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier

__all__ = ["Results", "evaluate_model", "run_evaluation", "students", "tell", "trained_on"]

READ_ITEMS, READ_SAMPLES = 40, 2  # in the report: of how many items, and how many of each model


class Results:
    """Evaluations and budget sweeps by model; of the compared ones the first is the base, the last the trained one."""

    def __init__(self, recipe: EvaluateRecipe | None = None) -> None:
        self.evaluations: dict[str, Evaluation] = {}
        self.weights: dict[str, str] = {}
        self.budgets: list[pl.DataFrame] = []
        self.items: list[Items] = []
        self.seen: pl.DataFrame | None = None
        self.tasks = recipe.training_set.tasks if recipe and recipe.training_set else ()
        self.roles = {m.name: m.role for m in recipe.models} if recipe else {}

    def look_for(self, told: TrainingSet, trained: pl.Series, console: Console) -> None:
        """Look for the benchmarks' items in the training set's texts, and say how many stand in it."""
        self.seen = benchmarks.contamination(self.items, trained, told.stages)
        console.say("\n".join(_seen_line(row) for row in self.seen.iter_rows(named=True)))

    def of(self, role: str) -> list[str]:
        """The models in a role."""
        return [name for name in self.evaluations if self.roles.get(name, "compared") == role]

    def pairs(self) -> list[tuple[str, str]]:
        """Who is compared with whom: every model with the base, controls too, and the last model with the controls."""
        compared, controls = self.of("compared"), self.of("control")
        pairs = [(name, base) for base in compared[:1] for name in [*compared[1:], *controls]]
        return pairs + [(name, control) for name in compared[1:][-1:] for control in controls]

    def compare(self, ks: list[int]) -> dict[tuple[str, str], curves.Comparison]:
        """Of every pair that has an item with a verdict for both."""
        items, found = self._of_all(lambda e: e.items), {}
        for model, base in self.pairs():
            with suppress(curves.NothingInCommon):
                found[model, base] = curves.compare(items, model, base, ks)
        return found

    def missing(self, found: dict[tuple[str, str], curves.Comparison]) -> Iterator[str]:
        """What has no figures for want of verdicts, in words."""
        for e in self.evaluations.values():
            silent = e.items.group_by("benchmark", maintain_order=True).agg(pl.col("n").sum()).filter(pl.col("n") == 0)
            yield from (f"{benchmark}, {e.model}: no sample has a verdict" for benchmark in silent["benchmark"])
        for model, base in self.pairs():
            seen = found[model, base].difference["benchmark"].to_list() if (model, base) in found else []
            for benchmark in self.evaluations[model].items["benchmark"].unique(maintain_order=True):
                if benchmark not in seen:
                    yield f"{benchmark}, {model} - {base}: no item has a verdict for both; not compared"

    def report(self, ks: list[int]) -> ReportData:
        """The report's frames, and in its summary the headline numbers of base and trained model."""
        compared, found = self.of("compared"), self.compare(ks)
        drawn = curves.curves(self._of_all(lambda e: e.items), ks)
        best = curves.headline(drawn)
        unpinned = [f'{i.exam.name}: no commit of the Hub is pinned; set revision = "{i.revision or "a commit"}" to '
                    "read the same again" for i in self.items if not i.exam.pinned()]  # fmt: skip
        budgets = pl.concat(self.budgets) if self.budgets else None
        compared_ones = {name for pair in found.values() for name in pair.difference["benchmark"]}
        notes = [*unpinned, *self.missing(found), *curves.few(drawn, compared_ones), *curves.partial(drawn)]
        if budgets is not None:
            notes += curves.few(budgets, what=", thinking budgets")
        summary: dict[str, Any] = {"controls": self.of("control"), "notes": notes, "models": self.weights}
        for name, model in zip(("base", "trained"), compared[:1] + compared[1:][-1:]):
            rows = best.filter(model=model).drop("model").to_dicts()
            summary[name] = {row.pop("metric"): row for row in rows}
        trained = found.get((compared[-1], compared[0])) if compared[1:] else None
        if trained is not None:
            first = trained.difference.filter(k=1).select("benchmark", "low", "high", value="difference")
            changes = {row.pop("benchmark"): row for row in first.to_dicts()}
            summary["differences_pass@1"] = changes
            if len(self.items) == 1:  # of several benchmarks, none is the change
                summary["difference_pass@1"] = next(iter(changes.values()), None)
        summary["budgets"] = [] if budgets is None else budgets.to_dicts()
        return ReportData(
            summary={"evaluation": summary}, curves=drawn, outcomes=self._of_all(lambda e: e.outcomes()),
            benchmarks=self._benchmarks(), budgets=budgets, samples=self._samples(), **self._students(),
            difference=pl.concat([c.difference for c in found.values()]) if found else None,
            four_way=None if trained is None else trained.four_way)  # fmt: skip

    def _of_all(self, part: Any) -> pl.DataFrame:
        return pl.concat([part(e) for e in self.evaluations.values()])

    def _students(self) -> dict[str, Any]:
        of = {role: [self.evaluations[name] for name in self.of(role)] for role in ("teacher", "before", "after")}
        if not of["after"]:
            return {}
        return students(of["teacher"][0], of["before"][0], of["after"], self.items, self.tasks)

    def _benchmarks(self) -> pl.DataFrame:
        frame = pl.DataFrame([{"benchmark": i.exam.name, "items": i.frame.height, "revision": i.revision,
                               "hash": i.hash[:12]} for i in self.items])  # fmt: skip
        if self.seen is None:
            return frame.with_columns(contaminated=pl.lit(None, pl.Int64))
        return frame.join(self.seen.drop("items"), on="benchmark", how="left", maintain_order="left")

    def _samples(self) -> pl.DataFrame:
        """Samples to read: of the items on which the models differ most, then of others."""
        rate = (pl.col("status") == "correct").mean()
        rows = self._of_all(lambda e: e.samples.with_columns(model=pl.lit(e.model)))
        rates = rows.group_by("problem_id", "model").agg(rate=rate).group_by("problem_id").agg(
            spread=pl.col("rate").max() - pl.col("rate").min())  # fmt: skip
        chosen = rates.sort("spread", "problem_id", descending=[True, False]).head(READ_ITEMS)
        gold = pl.when(pl.col("tests").is_null()).then(pl.col("answer")).otherwise(pl.lit("its tests"))
        about = pl.concat([i.frame for i in self.items]).select("problem", gold=gold, problem_id="id")
        read = chosen.join(rows.filter(pl.col("sample") < READ_SAMPLES), on="problem_id", maintain_order="left_right")
        return read.join(about, on="problem_id", maintain_order="left").select(
            "problem_id", "problem", "gold", "model", "status", "reason", "extracted", "tokens", completion="text",
            tags="benchmark")  # fmt: skip


def students(teacher: Evaluation, before: Evaluation, after: list[Evaluation], items: list[Items],
             trained: Collection[str] = ()) -> dict[str, Any]:  # fmt: skip
    """What a report shows of distillation.

    `distillation`: teacher, student before and every student after by benchmark, with what each gained over `before`;
    `distillation_items`: the items that each gained and lost, the greatest changes first.

    Args:
        trained: benchmarks of the trained task; a loss on others is forgetting.
    """
    frames, moved = [_accuracy(teacher, "teacher"), _accuracy(before, "student before")], []
    texts = pl.concat([i.frame for i in items]).select("problem", item="id")
    for student in after:
        name = "student after" if len(after) == 1 else student.model
        rates = distillation.scored(*(e.items.rename({"benchmark": "task"}) for e in (teacher, before, student)))
        own = distillation.changes(rates[0], rates[1], rates[2]).filter(pl.col("change") != "same")
        own = own.join(texts, on="item", how="left", maintain_order="left")
        moved.append(own.select(pl.lit(student.model).alias("student"), pl.all()))
        if any(part.is_empty() for part in rates[1:]):
            frames.append(_accuracy(student, name))  # nothing to set it against
            continue
        gained = distillation.table(*rates, trained=trained).drop(
            "teacher", "before", "after", "teacher_tokens", "before_tokens", "after_tokens")  # fmt: skip
        frames.append(_accuracy(student, name).join(gained, on="task", how="left"))
    return {"distillation": pl.concat(frames, how="diagonal"), "distillation_items": pl.concat(moved)}


def gains(distilled: pl.DataFrame | None) -> list[str]:
    """What each student gained by benchmark, in words."""
    rows = [] if distilled is None else distilled.to_dicts()
    return [f"{row['task']}, {row['model']}: {said}" for row in rows if (said := gained(row))]


def _accuracy(e: Evaluation, name: str) -> pl.DataFrame:
    rates = e.pass_at_k([1]).select("low", "high", task="benchmark", accuracy="estimate")
    tokens = e.samples.group_by(task="benchmark").agg(pl.col("tokens").mean())
    joined = rates.join(tokens, on="task", maintain_order="left")
    return joined.select("task", pl.lit(name).alias("model"), "accuracy", "low", "high", "tokens")


def run_evaluation(recipe: EvaluateRecipe, console: Console | None = None) -> Path:
    """Evaluate every model of the recipe; returns the folder with `report.html`, `summary.json` and the numbers."""
    console = console or Console()
    store = Store.open(recipe.store, create=True)
    results, each = Results(recipe), {exam.samples or recipe.samples for exam in recipe.benchmarks}
    ks = sorted({k for n in each for k in curves.doubling(n)})
    trained = None if recipe.training_set is None else trained_on(recipe.training_set)  # a wrong path, before hours
    own = {"stop_text": _stop_text(recipe)} if recipe.budgets.procedure == "vllm" else {}
    with EnginePool(max_model_len=recipe.max_model_len, dtype=recipe.dtype, **own) as pool, \
            verifier_of(recipe.judge) as verifier:  # fmt: skip
        for model in recipe.models:
            console.heading(f"Evaluate {model.name}")
            evaluate_model(recipe, model.name, pool.of(model), verifier, store, results, console)
    if recipe.training_set is not None and trained is not None:
        results.look_for(recipe.training_set, trained, console)
    data = results.report(ks)
    tell(data, console)
    folder = recipe.store / "evaluations" / f"{recipe.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return save(data, folder, recipe.name)


def tell(data: ReportData, console: Console) -> None:
    """Comparisons, gains and notes on the console, whose markup would take an interval for a tag."""
    for told in comparison.told(data.difference):
        console.say(escape("\n  ".join([f"  {told['benchmark']}: {told['model']} - {told['base']}", *told["lines"]])))
    for line in [*gains(data.distillation), *(((data.summary or {}).get("evaluation") or {}).get("notes") or ())]:
        console.say(escape(f"  {line}"))


def evaluate_model(recipe: EvaluateRecipe, name: str, engine: Engine, verifier: Verifier, store: Store,
                   results: Results, console: Console) -> Evaluation:  # fmt: skip
    """All benchmarks of the recipe with one model; adds to `results`."""
    if not results.items:
        results.items = [benchmarks.load(exam, recipe.items) for exam in recipe.benchmarks]
        console.say(escape("\n".join(f"  {items.version()}" for items in results.items)))
    asked = {id(i): recipe.budgets.tokens if i.exam.budgets is None else i.exam.budgets for i in results.items}
    if any(0 in budgets for budgets in asked.values()):
        render(engine.tokenizer, "", "direct")  # a template without a direct mode is told of before anything is sampled
    parts, sampling = [], Sampling(recipe.temperature, recipe.top_p, recipe.top_k, recipe.max_tokens)
    with console.progress() as bar:
        for items in results.items:
            label = name if len(results.items) == 1 else f"{name} {items.exam.name}"
            bar.start(f"{label} pass@k")
            parts.append(evaluate(
                store, engine, verifier, items.frame, model=name, n=items.exam.samples or recipe.samples,
                sampling=sampling, instruction=_instruction(recipe, items), seed=recipe.seed,
                policy=items.exam.grading(), progress=bar.update))  # fmt: skip
            bar.end(_line(parts[-1]))
            if budgets := asked[id(items)]:
                bar.start(f"{label} budgets")
                samples = _sweep(recipe, engine, verifier, store, items, budgets, bar.update)
                frame = thinking_budget.summarise(samples, recipe.budgets.ks)
                who = [pl.lit(items.exam.name).alias("benchmark"), pl.lit(name).alias("model")]
                results.budgets.append(frame.select(*who, pl.all()))
                bar.end(f"{_budget_line(frame)}; {thinking_budget.cost(samples)}")
    results.weights[name] = engine.fingerprint
    results.evaluations[name] = Evaluation(name, pl.concat([part.samples for part in parts]))
    return results.evaluations[name]


def _sweep(recipe: EvaluateRecipe, engine: Engine, verifier: Verifier, store: Store, items: Items,
           budgets: tuple[int, ...], progress: Any) -> pl.DataFrame:  # fmt: skip
    b, done = recipe.budgets, count(1)
    problems = items.frame.head(b.items or items.frame.height)

    def on_done(_: object) -> None:
        now = next(done)
        progress(now, max(now, len(problems) * b.samples), "")

    return thinking_budget.sweep(
        engine, problems, budgets, b.samples, answer_tokens=b.answer_tokens, stop_text=_stop_text(recipe),
        verifier=verifier, policy=items.exam.grading(),
        sampling=Sampling(recipe.temperature, recipe.top_p, recipe.top_k), extensions=b.extensions,
        wait_text=b.wait_text, instruction=_instruction(recipe, items), seed=recipe.seed, on_done=on_done, store=store,
        procedure=b.procedure)  # fmt: skip


def _instruction(recipe: EvaluateRecipe, items: Items) -> str | None:
    return recipe.instruction if items.exam.instruction is None else items.exam.instruction


def _stop_text(recipe: EvaluateRecipe) -> str:
    return recipe.budgets.stop_text or thinking_budget.STOPS[recipe.budgets.stop]


def trained_on(told: TrainingSet) -> pl.Series:
    """The texts of a snapshot's problems."""
    from assay.pipelines import snapshot

    store = Store.open(told.store)
    file = snapshot.folder_of(store, snapshot.find(store, told.snapshot)) / "data" / "train.parquet"
    if not file.is_file():
        raise SourceError(f"{file}: not there; the snapshot holds no problems. Name another in [training_set].")
    return pl.read_parquet(file, columns=["problem"])["problem"]


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
