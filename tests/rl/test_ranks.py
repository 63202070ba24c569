"""Two ranks under torchrun (FSDP2, gloo) train as one process does: checks 3, 21, 33 and 38 of trainer_checks.md."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

WORKER = Path(__file__).parent / "ranks_worker.py"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """By number of ranks, by algorithm. A rank alone in a collective would hang: the time limit is the test."""
    out = tmp_path_factory.mktemp("ranks")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(WORKER)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launch.append(str(out))
    done = subprocess.run(launch, capture_output=True, text=True, timeout=400, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    run_alone(out)
    return {n: torch.load(out / f"of-{n}.pt", weights_only=False) for n in (1, 2)}


def run_alone(out: Path) -> None:
    """In this process: another start of the interpreter takes longer than the work."""
    spec = importlib.util.spec_from_file_location("ranks_worker", WORKER)
    worker = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(worker)  # type: ignore[union-attr]
    torch.save({a: worker.train(a, out / "alone") for a in worker.ALGORITHMS}, out / "of-1.pt")


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


@pytest.mark.slow
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
