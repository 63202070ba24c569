"""What a refresh would do, in words, before it does it."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from assay.pipelines import sources
from assay.pipelines.curation import read_benchmark
from assay.pipelines.engines import model_fingerprint
from assay.pipelines.models import resolve
from assay.pipelines.recipe import NEEDS_MODEL, RefreshRecipe
from assay.pipelines.store import Store

__all__ = ["describe_refresh"]


def describe_refresh(recipe: RefreshRecipe) -> str:
    """Sources with their rows, what the store knows already, the ladder, and the most that will be sampled."""
    known, read = _known(recipe), {s.name: sources.read(s) for s in recipe.sources}
    lines = [f"refresh {recipe.name} into {recipe.store}"]
    for name, (problems, unparsable) in read.items():
        new = problems.filter(~pl.col("id").is_in(known.implode())).height
        faulty = f", {unparsable.height:,} unparsable" if unparsable.height else ""
        lines.append(f"  source     {name:<20} {problems.height:>8,} problems, {new:,} new{faulty}")
    for benchmark in recipe.benchmarks:
        _, found = read_benchmark(benchmark)
        said = f"  benchmark  {benchmark.name:<20} {found['rows']:>8,} items, hash {found['hash']}"
        lines += [said, *([f"             {found['faults']}"] if found["faults"] else [])]
    lines.append(f"  ladder     {' -> '.join(recipe.ladder)}")
    return "\n".join([*lines, *_sampling(recipe, pl.concat([p["id"] for p, _ in read.values()]))])


def _known(recipe: RefreshRecipe) -> pl.Series:
    if not (recipe.store / "store.json").exists():
        return pl.Series("id", [], pl.String)
    return Store.open(recipe.store).scan("problems").select("id").unique().collect()["id"]


def _sampling(recipe: RefreshRecipe, ids: pl.Series) -> list[str]:
    """An upper bound: filters before the model's will take problems out."""
    model = recipe.model
    if model is None or not set(recipe.ladder) & set(NEEDS_MODEL):
        return ["  sampling   none: no filter needs a model"]
    most = min(len(ids), recipe.max_scored or len(ids))
    settings = recipe.difficulty
    jobs = [(model.mode, settings.max_samples if settings.adaptive else settings.samples, model.max_tokens)]
    if "shortcut" in recipe.ladder:
        jobs.append(("direct", recipe.shortcut.samples, recipe.shortcut.max_tokens))
    lines, tokens = [f"  model      {model.path} through {model.engine}"], 0
    for mode, samples, longest in jobs:
        recorded = _recorded(recipe, ids, mode, samples)
        new = min(most * samples, len(ids) * samples - recorded)  # with max_scored, recorded ones may be of others
        tokens += new * longest
        lines.append(f"  sampling   {mode:<20} {new:>8,} samples at most, {recorded:,} recorded")
    judged = ", and what is judged" if recipe.contamination.judge or recipe.judge else ""
    return [*lines, f"             at most {tokens:,} new tokens{judged}"]


def _recorded(recipe: RefreshRecipe, ids: pl.Series, mode: str, samples: int) -> int:
    """Samples of these problems that the store holds of the model whose files are there now."""
    assert recipe.model is not None
    path = Path(resolve(recipe.model.path)) if recipe.model.engine == "vllm" else None
    if not (recipe.store / "store.json").exists() or path is None:
        return 0
    name = model_fingerprint(path) if path.is_dir() else str(path)
    own = pl.col("problem_id").is_in(ids.implode()) & (pl.col("sample") < samples)
    rows = Store.open(recipe.store).scan("generations").filter(own, pl.col("mode") == mode, pl.col("model") == name)
    return int(rows.select(pl.len()).collect().item())
