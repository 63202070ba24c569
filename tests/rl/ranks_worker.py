"""Run by test_ranks.py, also under torchrun: `ranks_worker.py OUT` trains on made-up groups and writes the outcome.

Rank 0 leads and writes, the others follow. Then `assay train OUT/train.toml` in the same processes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from conftest import make_groups, make_recipe, tiny_model

from assay.flows.cli import app
from assay.flows.reasoner import build_tokenizer
from assay.rl import ranks
from assay.rl.checkpoint import save_checkpoint
from assay.rl.clock import Clock
from assay.rl.update import Updater

ALGORITHMS = ("dr_grpo", "gspo", "ppo")


class Probe(Updater):
    @ranks.together
    def gradient_now(self) -> torch.Tensor:
        grads = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in self.model.parameters()]
        return torch.cat([g.flatten() for g in grads])


def probe(algorithm: str) -> tuple[Probe, list[Any]]:
    """Twelve rows of unequal length in micro-batches of few tokens: the ranks' micro-batches are not equally many."""
    model = tiny_model()
    recipe = make_recipe(algorithm=algorithm, optimizer={"micro_batch_tokens": 30, "updates_per_step": 2})
    return Probe(model, recipe, recipe.preset(), Clock()), make_groups(tiny_model(), count=3)


def train(algorithm: str, folder: Path) -> dict[str, Any]:
    updater, groups = probe(algorithm)
    for step in range(2):
        metrics = updater.update(groups, updater.estimate(groups), step)
    gradient, state = updater.gradient_now(), updater.state()
    weights = {k: v.clone() for k, v in updater.weights().items()}
    save_checkpoint(folder / algorithm, updater.model, build_tokenizer(), {"updater": state}, weights)
    updater.load(folder / algorithm)
    third = updater.update(groups, updater.estimate(groups), 2)
    ranks.release()
    return {"metrics": metrics, "gradient": gradient, "weights": weights, "third": third,
            "start": tiny_model().state_dict()}  # fmt: skip


if __name__ == "__main__":
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    with ranks.group():
        if ranks.first():
            torch.save({a: train(a, out) for a in ALGORITHMS}, out / f"of-{ranks.world()}.pt")
        else:
            for algorithm in ALGORITHMS:
                ranks.follow(probe(algorithm)[0])
        app(["train", str(out / "train.toml"), "--set", "name=two"], standalone_mode=False)
