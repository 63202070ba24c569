"""A run stopped at any moment and resumed is the uninterrupted run, bit by bit (check 32 of trainer_checks.md).

With dynamic sampling, so that surplus groups wait in the checkpoint, beside the curriculum's and the sampler's state.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from assay.flows.models import EnginePool
from assay.pipelines.errors import AssayWarning
from assay.pipelines.process_engine import serve
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier
from assay.rl.checkpoint import latest_checkpoint, load_model, load_state
from assay.rl.recipe import TrainRecipe
from assay.rl.trainer import Trainer

PROBLEMS = pl.DataFrame(
    [
        (f"p{i}", f"What is {a} + {b} - {c} + {d}?", str(a + b - c + d), 0.5)
        for i in range(24)
        for a, b, c, d in [(i % 9 + 3, i % 7 + 2, i % 4 + 1, i % 5 + 2)]
    ],
    schema=["id", "problem", "answer", "pass_rate"],
    orient="row",
)


def recipe(store: Path, model: Path) -> TrainRecipe:
    return TrainRecipe.model_validate({
        "name": "t", "model": str(model), "store": str(store), "steps": 5, "checkpoint_every": 1, "seed": 1,
        "sampling": {"prompts": 4, "group_size": 4, "max_tokens": 64, "instruction": ""},
        "changes": {"dynamic_sampling": True}, "optimizer": {"learning_rate": 1e-4}})  # fmt: skip


class Killed(BaseException):
    pass


def train(made: TrainRecipe, pool: EnginePool, store: Store, folder: Path) -> dict[str, torch.Tensor]:
    with Verifier(workers=1) as verifier, warnings.catch_warnings():
        warnings.simplefilter("ignore", AssayWarning)
        engine = pool.get(made.model)
        result = Trainer(made, load_model(made.model), engine, verifier, PROBLEMS, store, folder).train()
    return load_model(result.checkpoint).state_dict()


def recorded(store: Store, run: str) -> list[pl.DataFrame]:
    """Everything but times; a step that was done twice must have left the same rows twice."""
    timed = pl.col("metric").str.contains("second")
    steps = store.scan("steps").filter((pl.col("run") == run) & ~timed).drop("run").unique().sort("step", "metric")
    rollouts = store.scan("rollouts").filter(pl.col("run") == run).drop("run").unique().sort(pl.all())
    return [steps.collect(), rollouts.collect()]


@pytest.fixture(scope="module")
def whole(pool: EnginePool, reasoner: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The uninterrupted run: store, recipe, weights."""
    folder = tmp_path_factory.mktemp("whole")
    store, made = Store.open(folder / "s", create=True), recipe(folder / "s", reasoner)
    weights = train(made, pool, store, folder / "whole")
    states = [load_state(folder / "whole" / "checkpoints" / f"step-{n}") for n in (1, 2, 3, 4)]
    assert any(s["buffer"]["held"] for s in states)  # surplus waits
    return folder, store, made, weights


def same(whole: Any, run: str, weights: dict[str, torch.Tensor]) -> None:
    _, store, _, wanted = whole
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    for a, b in zip(recorded(store, "whole"), recorded(store, run)):
        assert a.equals(b)


@pytest.mark.parametrize(
    ("where", "call"), [("generate", 4), ("fsync", 12), ("rename", 3)], ids=["sampling", "saving", "after a save"]
)
def test_stopped_anywhere(
    whole: Any, pool: EnginePool, monkeypatch: pytest.MonkeyPatch, where: str, call: int
) -> None:
    folder, store, made, _ = whole
    engine, calls = pool.get(made.model), []
    owner: Any = {"generate": engine, "fsync": os, "rename": Path}[where]
    real = getattr(owner, where)

    def stops(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise Killed
        return real(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(owner, where, stops)
        with pytest.raises(Killed):
            train(made, pool, store, folder / where)
    same(whole, where, train(made, pool, store, folder / where))


def test_stopped_again_and_again_at_random(whole: Any, pool: EnginePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times in one run, wherever chance has it: in sampling, in a file's writing, its flushing or its renaming."""
    folder, store, made, _ = whole
    seed = time.time_ns()
    chance, engine = random.Random(seed), pool.get(made.model)
    places: list[tuple[Any, str, int]] = [(engine, "generate", 6), (os, "fsync", 30), (os, "open", 40),
                                          (Path, "rename", 8), (torch.Tensor, "backward", 9)]  # fmt: skip
    for _ in range(4):
        (owner, where, most), calls = chance.choice(places), itertools.count(1)
        real, last = getattr(owner, where), chance.randint(1, most)

        def stops(*arguments: Any, real: Any = real, calls: Any = calls, last: int = last, **named: Any) -> Any:
            if next(calls) == last:
                raise Killed
            return real(*arguments, **named)

        with monkeypatch.context() as patched, suppress(Killed):
            patched.setattr(owner, where, stops)
            train(made, pool, store, folder / "random")
    print(f"seed {seed}")  # shown where it fails
    same(whole, "random", train(made, pool, store, folder / "random"))


def test_killed_while_a_checkpoint_is_written(whole: Any, pool: EnginePool) -> None:
    """The trainer's process; it samples with the engine of this one."""
    folder, store, made, _ = whole
    worker, half = Path(__file__).parent / "resume_worker.py", folder / "killed" / "checkpoints" / ".step-3.tmp"
    with Listener(family="AF_UNIX") as door:
        engine = pool.get(made.model)
        serving = threading.Thread(target=lambda: serve(door.accept(), engine), daemon=True)
        serving.start()
        command = [sys.executable, str(worker), str(folder / "s"), str(folder / "killed"), made.model_dump_json()]
        process = subprocess.Popen([*command, str(door.address)], stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 300
        while not half.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(0.15)
        process.send_signal(signal.SIGKILL)
        error = process.communicate()[1]
    assert half.exists(), error
    serving.join(60)
    assert latest_checkpoint(folder / "killed" / "checkpoints") == folder / "killed" / "checkpoints" / "step-2"
    same(whole, "killed", train(made, pool, store, folder / "killed"))
