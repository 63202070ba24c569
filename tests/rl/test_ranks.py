"""Two ranks under torchrun (FSDP2, gloo) train as one process does: checks 3, 21, 33 and 38 of trainer_checks.md.

Updates on made-up groups, and then `assay train` whole, with the sampler in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from assay.flows.models import EnginePool
from assay.flows.train import run_training
from assay.pipelines import snapshot as snapshots
from assay.pipelines.models import REASONER
from assay.pipelines.settings import load
from assay.pipelines.snapshot import FUNNEL, Snapshot
from assay.pipelines.store import Store
from assay.rl.checkpoint import load_model
from assay.rl.recipe import TrainRecipe

WORKER = Path(__file__).parent / "ranks_worker.py"
PROBLEMS = pl.DataFrame(
    [(f"p{i}", f"What is {i % 9 + 3} + {i % 7 + 2} - {i % 5 + 1}?", str(i % 9 + i % 7 - i % 5 + 4), 0.5)
     for i in range(24)],
    schema=["id", "problem", "answer", "pass_rate"], orient="row")  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """By number of ranks, by algorithm. A rank alone in a collective would hang: the time limit is the test."""
    out = tmp_path_factory.mktemp("ranks")
    write_recipe(out)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(WORKER)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launch.append(str(out))
    done = subprocess.run(launch, capture_output=True, text=True, timeout=400, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    run_alone(out)
    return {n: torch.load(out / f"of-{n}.pt", weights_only=False) for n in (1, 2)} | {"folder": out}


def write_recipe(out: Path) -> None:
    """A curated set of 24 problems and a recipe that trains on it."""
    store = Store.open(out / "store", create=True)
    snapshots.record(store, Snapshot("s", None, "h", {"sources": []}, [], FUNNEL.to_frame(), datetime(2026, 1, 1)))
    data = snapshots.folder_of(store, "s") / "data"
    data.mkdir(parents=True)
    PROBLEMS.with_columns(source=pl.lit("sums")).write_parquet(data / "train.parquet")
    (out / "train.toml").write_text(
        f'name = "one"\nmodel = "{REASONER}"\nstore = "{out / "store"}"\nsteps = 3\ncheckpoint_every = 2\n'
        "[sampling]\nprompts = 4\ngroup_size = 4\nmax_tokens = 64\ninstruction = ''\n"
        "[optimizer]\nlearning_rate = 1e-4\n[engine]\nmax_model_len = 512\n"
    )


def run_alone(out: Path) -> None:
    """In this process: another start of the interpreter takes longer than the work."""
    spec = importlib.util.spec_from_file_location("ranks_worker", WORKER)
    worker = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(worker)  # type: ignore[union-attr]
    torch.save({a: worker.train(a, out / "alone") for a in worker.ALGORITHMS}, out / "of-1.pt")


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


@pytest.mark.slow(first=True)
@pytest.mark.parametrize("algorithm", ["dr_grpo", "gspo", "ppo"])
def test_two_ranks_have_the_gradient_and_the_weights_of_one(outcomes: Any, algorithm: str) -> None:
    one, two = outcomes[1][algorithm], outcomes[2][algorithm]
    assert float((two["gradient"] - one["gradient"]).norm() / one["gradient"].norm()) < 1e-5
    assert set(one["weights"]) == set(two["weights"])
    moved, apart = (flat(one["weights"]) - flat(one["start"])), flat(two["weights"]) - flat(one["weights"])
    assert float(moved.norm()) > 0.1
    assert float(apart.norm() / moved.norm()) < 1e-3  # AdamW divides rounding by itself where a gradient is near 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dr_grpo", "gspo", "ppo"])
def test_metrics_are_of_all_ranks_and_a_loaded_checkpoint_goes_on(outcomes: Any, algorithm: str) -> None:
    """Also after a save and a load: AdamW's moments and the critic's."""
    one, two = outcomes[1][algorithm], outcomes[2][algorithm]
    assert one["metrics"]["sequences"] == two["metrics"]["sequences"] == 6  # of two updates, 8 and 4 rows
    for when in ("metrics", "third"):
        for name, value in one[when].items():
            assert two[when][name] == pytest.approx(value, rel=1e-3, abs=2e-5), (when, name)


@pytest.mark.slow
def test_assay_train_on_two_ranks_is_that_of_one_process(outcomes: Any, pool: EnginePool) -> None:
    """The same samples, so the same metrics; weights as near as the gradients are."""
    store = Store.open(outcomes["folder"] / "store")
    one = run_training(load(outcomes["folder"] / "train.toml", TrainRecipe, []), pool=pool)
    runs = store.scan("runs").select("run").collect()["run"].to_list()
    (two,) = (run for run in runs if run.startswith("two-"))
    rollouts = [store.scan("rollouts").filter(run=run).drop("run", "advantage").collect() for run in (one.run, two)]
    assert rollouts[0].equals(rollouts[1])
    assert rollouts[0].height == 3 * 4 * 4
    kept = ~pl.col("metric").str.contains("second")
    steps = [store.scan("steps").filter(kept, run=run).drop("run").sort("step", "metric").collect().rows()
             for run in (one.run, two)]  # fmt: skip
    assert len(steps[0]) == len(steps[1]) > 30
    for mine, theirs in zip(*steps):
        assert (*mine[:2], pytest.approx(mine[2], rel=1e-3, abs=2e-5)) == theirs
    there = one.checkpoint.parents[2] / two / "checkpoints" / "step-3"
    start, alone, ranks = (flat(load_model(folder).state_dict()) for folder in (REASONER, one.checkpoint, there))
    assert float((ranks - alone).norm() / (alone - start).norm()) < 1e-3
