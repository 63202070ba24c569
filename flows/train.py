"""Train by a recipe: load the model, start the sampler, run the trainer, leave a checkpoint and a report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from assay.eval.report import ReportData
from assay.flows.console import Console
from assay.flows.models import EnginePool, verifier_of
from assay.flows.results import save
from assay.pipelines import snapshot as snapshots
from assay.pipelines.engines import Engine, VllmEngine
from assay.pipelines.errors import StoreError
from assay.pipelines.golds import with_policies
from assay.pipelines.process_engine import ProcessEngine
from assay.pipelines.store import Store
from assay.rl import ranks
from assay.rl.checkpoint import load_model
from assay.rl.clock import Clock
from assay.rl.recipe import TrainRecipe
from assay.rl.trainer import Trainer, TrainingResult
from assay.rl.update import Updater

CURVES = (
    *("reward", "success", "entropy", "approx_kl", "kl", "ratio_error", "clip_share_low", "clip_share_high"),
    *("length", "length_correct", "length_wrong", "truncated_share", "unverifiable_share", "zero_std_share"),
    *("tokens_per_second", "policy_loss", "grad_norm"),
)
"""Metrics that a report draws; the store has all of them."""

FREE = ("name", "store", "snapshot", "steps", "max_sampled_tokens", "checkpoint_every", "memory", "engine", "variables")
"""What a run that goes on may change without becoming another run."""

__all__ = ["curated", "follow", "run_training", "sampler", "steps_of"]


def curated(store: Store, snapshot: str = "latest") -> pl.DataFrame:
    """The kept problems of a snapshot, with their pass rates and their sources' policies."""
    made = snapshots.load(store, snapshot)
    problems = pl.read_parquet(snapshots.folder_of(store, made.id) / "data" / "train.parquet")
    return with_policies(problems, made.recipe["sources"])


def run_training(
    recipe: TrainRecipe, console: Console | None = None, resume: str | None = None, pool: EnginePool | None = None
) -> TrainingResult:
    """Train to the recipe's last step. Under `torchrun` (`ranks.group`), rank 0 does this while the others `follow`.

    Args:
        resume: name (or unique beginning) of a run in the store, to go on from its last checkpoint.
        pool: engines to use; by default one of the recipe's own settings.
    """
    console, store = console or Console(), Store.open(recipe.store)
    started = f"{recipe.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = _run_folder(store, resume) if resume else store.path / "runs_data" / started
    recipe = _as_begun(recipe, store, folder, console)
    problems = curated(store, recipe.snapshot)
    console.say(
        f"  {recipe.algorithm} on {len(problems)} problems, {recipe.steps} steps of {recipe.sampling.prompts} x "
        f"{recipe.sampling.group_size} completions, run {folder.name}"
    )
    with sampler(recipe, pool) as engine, verifier_of(recipe.judge) as verifier, console.progress() as bar:
        verifier.start()
        bar.start("train", recipe.steps)

        def on_step(step: int, m: dict[str, float]) -> None:
            bar.update(
                step,
                recipe.steps,
                f"reward {m['reward']:.3f} length {m['length']:.0f} {m['tokens_per_second']:,.0f} tokens/s",
            )

        model = load_model(recipe.model).to(_device())
        trainer = Trainer(recipe, model, engine, verifier, problems, store, folder, on_step, console.say)
        result = trainer.train()
        bar.end(
            f"{result.steps} steps, {result.tokens_per_second:,.0f} tokens/s, first ratio error "
            f"{result.ratio_error_first_step:.1e}, {result.share_outside:.1%} outside engine and torch"
        )
    ranks.release()
    save(training_report(store, result), folder, recipe.name)
    return result


def follow(recipe: TrainRecipe) -> None:
    """What every rank but the first does: its share of each update."""
    model = load_model(recipe.model).to(_device())
    ranks.follow(Updater(model, recipe, recipe.preset(), Clock()))


@contextmanager
def sampler(recipe: TrainRecipe, pool: EnginePool | None = None) -> Iterator[Engine]:
    """The sampler; in a process of its own where it works beside the trainer, or the trainer is of several ranks."""
    e, apart = recipe.engine, recipe.sampling.overlap or recipe.engine.devices or not ranks.alone()
    settings: dict[str, Any] = {
        "max_model_len": e.max_model_len,
        "dtype": recipe.dtype,
        "max_num_seqs": e.max_num_seqs,
        "gpu_memory_utilization": e.gpu_memory_utilization,
    }
    if pool and not apart:
        yield pool.get(recipe.model)
        return
    new = partial(ProcessEngine, devices=e.devices) if apart else VllmEngine
    with closing(new(recipe.model, **settings)) as engine:
        yield engine


def _as_begun(recipe: TrainRecipe, store: Store, folder: Path, console: Console) -> TrainRecipe:
    """With its snapshot by id; a run that goes on keeps that of its beginning, and is told of other values."""
    file, snapshot = folder / "config.json", recipe.snapshot
    if file.is_file():
        begun = TrainRecipe.model_validate_json(file.read_text(encoding="utf-8"))
        snapshot = begun.snapshot if snapshot == "latest" else snapshot
        changed = [k for k in TrainRecipe.model_fields if k not in FREE and getattr(begun, k) != getattr(recipe, k)]
        if changed:
            said = "goes on with other values than it began with, so not as it would have"
            console.say(f"  {said}: {', '.join(changed)}")
    return recipe.model_copy(update={"snapshot": snapshots.find(store, snapshot)})


def _run_folder(store: Store, name: str) -> Path:
    found = sorted(p for p in (store.path / "runs_data").glob(f"{name}*") if p.is_dir())
    if len(found) != 1:
        raise StoreError(
            f"{store.path}: {len(found)} runs begin with {name!r}"
            + (f" ({', '.join(p.name for p in found)})" if found else "")
            + "; name exactly one."
        )
    return found[0]


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def steps_of(store: Store, run: str) -> pl.DataFrame:
    """`step, metric, value` of a run; a step that was done twice (after a resume) counts as done last."""
    rows = store.scan("steps").filter(pl.col("run") == run).unique(["step", "metric"], keep="last", maintain_order=True)
    return rows.select("step", "metric", "value").collect()


def training_report(store: Store, result: TrainingResult) -> ReportData:
    """The run's curves and headline figures."""
    steps = steps_of(store, result.run).filter(pl.col("metric").is_in(CURVES))
    return ReportData(summary={"training": training_summary(store, result)}, steps=steps)


def training_summary(store: Store, result: TrainingResult) -> dict[str, object]:
    """`training` of summary.json."""
    row = store.scan("runs").filter(pl.col("run") == result.run).collect().row(-1, named=True)
    recipe = TrainRecipe.model_validate_json(row["config"])
    return {
        "run": result.run,
        "steps": result.steps,
        "algorithm": recipe.algorithm,
        "ratio_error_first_step": result.ratio_error_first_step,
        "tokens_per_second": result.tokens_per_second,
        "share_outside_engine_and_torch": result.share_outside,
        "checkpoint": str(result.checkpoint),
    }
