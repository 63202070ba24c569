"""The sampler in a process of its own, and one step's rollouts beside another's update."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from assay.flows.models import EnginePool
from assay.pipelines.engines import Request, Sampling, model_fingerprint
from assay.pipelines.errors import EngineError
from assay.pipelines.process_engine import ProcessEngine
from assay.pipelines.prompts import render
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier
from assay.rl.checkpoint import load_model
from assay.rl.recipe import TrainRecipe
from assay.rl.trainer import Trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::assay.pipelines.errors.AssayWarning")]
PROBLEMS = pl.DataFrame(
    [(f"p{i}", f"What is {i % 9 + 3} + {i % 7 + 2} - {i % 5 + 1}?", str(i % 9 + i % 7 - i % 5 + 4), 0.5)
     for i in range(24)],
    schema=["id", "problem", "answer", "pass_rate"], orient="row")  # fmt: skip


@pytest.fixture(scope="module")
def apart(reasoner: Path) -> Iterator[ProcessEngine]:
    engine = ProcessEngine(str(reasoner), max_model_len=512, dtype="float32")
    yield engine
    engine.close()


@pytest.fixture
def fresh(apart: ProcessEngine, reasoner: Path) -> ProcessEngine:
    """With the reasoner's own weights again."""
    apart.load_weights(load_model(reasoner).state_dict().items(), model_fingerprint(reasoner))
    return apart


def recipe(store: Path, model: Path, **sampling: Any) -> TrainRecipe:
    size = {"prompts": 4, "group_size": 4, "max_tokens": 64, "instruction": "", "overlap": True, "max_refills": 1}
    return TrainRecipe.model_validate({
        "name": "t", "model": str(model), "store": str(store), "steps": 5, "checkpoint_every": 2,
        "changes": {"dynamic_sampling": True}, "optimizer": {"learning_rate": 1e-4},
        "sampling": {**size, **sampling}})  # fmt: skip


def train(made: TrainRecipe, engine: ProcessEngine, store: Store, folder: Path) -> Trainer:
    with Verifier(workers=1) as verifier:
        trainer = Trainer(made, load_model(made.model), engine, verifier, PROBLEMS, store, folder)
        trainer.train()
    return trainer


def test_it_samples_as_the_engine_here_does_before_and_after_new_weights(
    pool: EnginePool, fresh: ProcessEngine, reasoner: Path
) -> None:
    prompt = render(fresh.tokenizer, "What is 3 + 4 - 2?")
    asked = [Request(str(i), prompt, Sampling(max_tokens=48), i) for i in range(8)]
    weights = {k: v * 1.5 if "mlp" in k else v for k, v in load_model(reasoner).state_dict().items()}
    here, said = pool.get(str(reasoner)), []
    for engine in (here, fresh):
        said.append([[c.token_ids for c in engine.generate(asked)]])
        engine.load_weights(weights.items(), "other")
        said[-1].append([c.token_ids for c in engine.generate(asked)])
    assert said[0] == said[1]
    assert said[0][0] != said[0][1]
    assert fresh.fingerprint == "other"
    assert fresh.busy_seconds > 0
    assert fresh.sampled_tokens >= sum(map(len, said[1][0] + said[1][1]))


@pytest.mark.parametrize(("bound", "dropped"), [(1, True), (3, False)])
def test_every_step_is_one_update_behind_and_every_token_is_accounted_for(
    fresh: ProcessEngine, reasoner: Path, tmp_path: Path, bound: int, dropped: bool
) -> None:
    store = Store.open(tmp_path / "s", create=True)
    trainer = train(recipe(tmp_path / "s", reasoner, max_staleness=bound), fresh, store, tmp_path / "r")
    rows = store.scan("rollouts").select("step", "weights_version", "tokens").collect()
    lag = rows.select(pl.col("step") - 1 - pl.col("weights_version")).to_series()
    assert set(lag.filter(rows["step"] == 1)) == {0}
    later = lag.filter(rows["step"] > 1)
    assert later.min() == 1
    assert 1 <= later.max() <= bound  # type: ignore[operator]
    steps = store.scan("steps").collect().pivot("metric", index="step", values="value").sort("step")
    left = sum(tokens for _, tokens, _ in trainer.buffer.state()["held"])
    assert steps["trained_tokens"].sum() == rows["tokens"].sum()
    kept = steps.select("trained_tokens", "wasted_tokens", "stale_tokens").sum().row(0)
    assert sum(kept) + left == steps["sampled_tokens"].sum() == trainer.tokens
    assert (steps["stale_groups"].sum() > 0) == (steps["stale_tokens"].sum() > 0) == dropped


def test_a_resumed_run_is_bit_identical(fresh: ProcessEngine, reasoner: Path, tmp_path: Path) -> None:
    """The rollouts that were made ahead are in the checkpoint."""
    store, made = Store.open(tmp_path / "s", create=True), recipe(tmp_path / "s", reasoner)
    train(made, fresh, store, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole" / "checkpoints" / "step-2", tmp_path / "cut" / "checkpoints" / "step-2")
    train(made, fresh, store, tmp_path / "cut")
    weights = [load_model(tmp_path / run / "checkpoints" / "step-5").state_dict() for run in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    rows = [store.scan("rollouts").filter(pl.col("run") == run, pl.col("step") > 2).drop("run").collect()
            for run in ("whole", "cut")]  # fmt: skip
    assert rows[0].equals(rows[1])


def test_a_lost_process_and_a_model_that_is_none_are_said(apart: ProcessEngine, tmp_path: Path) -> None:
    nothing = ProcessEngine(str(tmp_path), max_model_len=64)
    with pytest.raises(Exception, match=r"no config\.json"):
        nothing.memory()
    nothing.close()
    apart.process.kill()
    with pytest.raises(EngineError, match="the sampler's process has ended"):
        apart.memory()
