"""What it gains to sample the next step while this one trains: the same training either way, in turns.

    python tests/rl/bench_overlap.py [ROUNDS]

One after the other in one process with two threads, against a trainer and a sampler of one thread each in two. Every
turn is a process of its own; its first step, which overlaps with nothing, is not counted. The time that the trainer
waits for the sampler is what remains to be hidden.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

STEPS, THREADS = 8, {"in turns": 2, "overlapped": 1}


def measured(way: str) -> dict[str, float]:
    """Tokens a second and the share of waiting, over all steps but the first."""
    done = subprocess.run([sys.executable, __file__, way], capture_output=True, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": str(THREADS[way])})  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def train(way: str) -> None:
    from bench_trl import LENGTH, PROMPTS, RATE, SIZE, problems

    from assay.flows.train import sampler
    from assay.pipelines.errors import AssayWarning
    from assay.pipelines.models import REASONER
    from assay.pipelines.store import Store
    from assay.pipelines.verify import Verifier
    from assay.rl.checkpoint import load_model
    from assay.rl.recipe import TrainRecipe
    from assay.rl.trainer import Trainer

    warnings.simplefilter("ignore", AssayWarning)
    laps: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        made = TrainRecipe.model_validate({
            "name": way, "model": str(REASONER), "store": folder, "steps": STEPS, "checkpoint_every": STEPS,
            "sampling": {"prompts": PROMPTS, "group_size": SIZE, "max_tokens": LENGTH, "instruction": "",
                         "overlap": way == "overlapped"},
            "optimizer": {"learning_rate": RATE, "micro_batch_tokens": 2048},
            "engine": {"max_model_len": 512}})  # fmt: skip
        store, run = Store.open(Path(folder), create=True), Path(folder) / "run"
        with sampler(made) as engine, Verifier(workers=1) as verifier:
            model = load_model(REASONER)
            Trainer(made, model, engine, verifier, problems(), store, run, lambda _, m: laps.append(
                (time.perf_counter(), m["sampled_tokens"], m["seconds_wait"]))).train()  # fmt: skip
    seconds = laps[-1][0] - laps[0][0]
    print(json.dumps({"speed": sum(t for _, t, _ in laps[1:]) / seconds,
                      "waiting": sum(w for _, _, w in laps[1:]) / seconds}))  # fmt: skip


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    ratios = []
    for i in range(rounds):
        plain, beside = measured("in turns"), measured("overlapped")
        ratios.append(beside["speed"] / plain["speed"])
        print(f"round {i}: in turns {plain['speed']:,.0f} tokens/s, overlapped {beside['speed']:,.0f} with "
              f"{beside['waiting']:.0%} of the time waiting: {ratios[-1]:.2f} times", flush=True)  # fmt: skip
    print(f"median of {rounds}: {statistics.median(ratios):.2f} times")


if __name__ == "__main__":
    train(sys.argv[1]) if sys.argv[-1] in THREADS else main()
