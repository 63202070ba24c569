"""Training by recipe: what a run goes on with after it was stopped."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from assay.flows.models import EnginePool
from assay.flows.train import run_training
from assay.pipelines import snapshot as snapshots
from assay.pipelines.snapshot import FUNNEL, Snapshot
from assay.pipelines.store import Store
from assay.rl.recipe import TrainRecipe


def add_snapshot(store: Store, name: str, count: int) -> None:
    """A curated set of this many sums."""
    snapshots.record(store, Snapshot(name, None, "h", {"sources": []}, [], FUNNEL.to_frame(), datetime(2026, 1, count)))
    data = snapshots.folder_of(store, name) / "data"
    data.mkdir(parents=True)
    rows = [(f"{name}{i}", f"What is {i + 3} + 2?", str(i + 5), 0.5, "sums") for i in range(count)]
    pl.DataFrame(rows, schema=["id", "problem", "answer", "pass_rate", "source"], orient="row").write_parquet(
        data / "train.parquet"
    )


def test_a_run_goes_on_with_the_snapshot_it_began_with(
    pool: EnginePool, reasoner: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever was refreshed since; and it says what else is not as it was."""
    store = Store.open(tmp_path, create=True)
    add_snapshot(store, "first", 3)
    recipe = TrainRecipe.model_validate({
        "name": "t", "model": str(reasoner), "store": tmp_path, "steps": 1,
        "sampling": {"prompts": 2, "group_size": 2, "max_tokens": 32, "instruction": ""},
        "engine": {"max_model_len": 512}})  # fmt: skip
    run = run_training(recipe, pool=pool).run
    add_snapshot(store, "second", 5)
    warmer = recipe.optimizer.model_copy(update={"learning_rate": 2e-5})
    longer = recipe.model_copy(update={"steps": 2, "optimizer": warmer})
    assert run_training(longer, resume=run, pool=pool).steps == 2
    said = capsys.readouterr().out
    assert said.count("on 3 problems") == 2
    assert "other values than it began with, so not as it would have: optimizer" in said
    rows = store.scan("rollouts").select(pl.col("problem_id").str.slice(0, 5).unique()).collect()
    assert rows["problem_id"].to_list() == ["first"]
