"""What a refresh would do, in words, before it does it."""

from __future__ import annotations

import polars as pl

from assay.pipelines import sources
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
        rows = sources.read(benchmark)[0].height
        lines.append(f"  benchmark  {benchmark.name:<20} {rows:>8,} items")
    lines.append(f"  ladder     {' -> '.join(recipe.ladder)}")
    return "\n".join([*lines, *_sampling(recipe, sum(p.height for p, _ in read.values()))])


def _known(recipe: RefreshRecipe) -> pl.Series:
    if not (recipe.store / "store.json").exists():
        return pl.Series("id", [], pl.String)
    return Store.open(recipe.store).scan("problems").select("id").unique().collect()["id"]


def _sampling(recipe: RefreshRecipe, problems: int) -> list[str]:
    if recipe.model is None or not set(recipe.ladder) & set(NEEDS_MODEL):
        return ["  sampling   none: no filter needs a model"]
    most = min(problems, recipe.max_scored or problems)
    direct = recipe.shortcut.samples if "shortcut" in recipe.ladder else 0
    tokens = most * (recipe.difficulty.samples * recipe.model.max_tokens + direct * recipe.shortcut.max_tokens)
    return [
        f"  model      {recipe.model.path} through {recipe.model.engine}",
        f"  sampling   at most {most:,} problems x {recipe.difficulty.samples} samples"
        + (f" + {direct} direct" if direct else "")
        + f", at most {tokens:,} new tokens; what is recorded is not sampled again",
    ]
