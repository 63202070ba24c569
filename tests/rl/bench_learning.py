"""What every preset learns from the same number of sampled tokens: pass@1 and pass@8 before and after, three seeds.

    python tests/rl/bench_learning.py [FOLDER]         about an hour on one core; what FOLDER has is not done again
    python tests/rl/bench_learning.py FOLDER --report  the table so far, and FOLDER/learning.png

The small reasoner, the demo's pool refreshed once, its exam. Beside the presets: the curriculum against uniform
sampling, and a reward by chance, which must not gain. Nothing is tuned for a preset; learning rates are two
hundred times the recipe's defaults (a model of 0.8M parameters).
"""

import json
import os
import shutil
import sys
import time
import warnings
from pathlib import Path

import altair as alt
import numpy as np
import polars as pl

from assay.eval.benchmarks import Exam, load
from assay.eval.evaluation import evaluate
from assay.eval.intervals import clustered_mean
from assay.eval.pass_at_k import pass_at_k
from assay.flows.console import Console
from assay.flows.demo import Demo
from assay.flows.models import EnginePool
from assay.flows.train import curated
from assay.pipelines.engines import Sampling
from assay.pipelines.errors import AssayWarning
from assay.pipelines.models import REASONER
from assay.pipelines.verify import Verifier
from assay.rl.checkpoint import load_model
from assay.rl.presets import PRESETS
from assay.rl.recipe import TrainRecipe
from assay.rl.trainer import Trainer

SEEDS, TOKENS, STEPS, ITEMS, SAMPLES = (0, 1, 2), 58_000, 16, 100, 16
START = "start"
BESIDE = {
    "dr_grpo, uniform": {"algorithm": "dr_grpo", "curriculum": {"order": "none", "prioritised": False}},
    "dr_grpo, random reward": {"algorithm": "dr_grpo", "rewards": {"overlong_buffer": 32, "control": "random"}},
}
RUNS = {**{name: {"algorithm": name} for name in PRESETS}, **BESIDE}
KINDS = {"curriculum": ("dr_grpo", "dr_grpo, uniform"), "reward": ("dr_grpo", "dr_grpo, random reward")}


def recipe(name: str, seed: int, folder: Path) -> TrainRecipe:
    return TrainRecipe.model_validate({
        "name": name, "model": str(REASONER), "store": str(folder / "store"), "seed": seed, "steps": STEPS,
        "max_sampled_tokens": TOKENS, "checkpoint_every": STEPS,
        "sampling": {"prompts": 16, "group_size": 8, "max_tokens": 128, "max_refills": 2, "instruction": ""},
        "optimizer": {"learning_rate": 2e-4, "warmup_steps": 2, "micro_batch_tokens": 2048},
        "critic": {"learning_rate": 2e-3}, "rewards": {"overlong_buffer": 32}, "engine": {"max_model_len": 512},
        **RUNS[name]})  # fmt: skip


def trained(name: str, seed: int, folder: Path, engine, verifier, store) -> dict:
    """Train; the engine holds the outcome's weights afterwards."""
    run = folder / "runs" / f"{name}-{seed}"
    shutil.rmtree(run, ignore_errors=True)
    made = recipe(name, seed, folder)
    trainer = Trainer(made, load_model(made.model), engine, verifier, curated(store), store, run)
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    shutil.rmtree(run)
    return {"steps": trainer.step, "tokens": trainer.tokens, "seconds": seconds}


def solved(seed: int, items: pl.DataFrame, engine, verifier, store) -> dict:
    """Scored and correct samples of every item, `n` and `c`."""
    done = evaluate(store, engine, verifier, items, model="", n=SAMPLES, sampling=Sampling(max_tokens=128),
                    instruction="", seed=seed)  # fmt: skip
    return done.items.select("n", "c").to_dict(as_series=False)


def run_all(folder: Path) -> None:
    """Seed by seed, so that a run cut short has every preset as often as any other."""
    file, demo = folder / "runs.jsonl", Demo(folder, 0, (), Console())
    with EnginePool(max_model_len=512, dtype="float32") as pool, Verifier(workers=1) as verifier:
        if not list(folder.glob("store/snapshots/*")):
            demo.refresh(REASONER, pool)
        exam = Exam(name="exam", path=str(folder / "raw" / "benchmark.jsonl"), problem="question", answer="gold")
        items = load(exam, ITEMS).frame
        for seed in SEEDS:
            for name in (START, *RUNS):
                if (name, seed) in {(row["name"], row["seed"]) for row in read(file)}:
                    continue
                engine, began = pool.get(str(REASONER)), time.perf_counter()
                done = {} if name == START else trained(name, seed, folder, engine, verifier, demo.store)
                row = {"name": name, "seed": seed, **done, **solved(seed, items, engine, verifier, demo.store)}
                with file.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(row) + "\n")
                print(f"{name} {seed}: {sum(row['c']) / sum(row['n']):.3f}, {time.perf_counter() - began:.0f} s "
                      f"{done}", flush=True)  # fmt: skip


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def passes(rows: list[dict], name: str, seeds: list[int], k: int) -> np.ndarray:
    """pass@k of every item, its mean over the seeds; an item with fewer scored samples counts those it has."""
    found = [np.array([row["n"], row["c"]]) for row in rows if row["name"] == name and row["seed"] in seeds]
    assert len(found) == len(seeds)
    return np.mean([pass_at_k(np.maximum(n, k), c, k) for n, c in found], axis=0)


def table(rows: list[dict]) -> pl.DataFrame:
    """A row a run and k: after, the paired difference to the start on the same items, and how seeds differ."""
    out = []
    for name in (name for name in RUNS if any(row["name"] == name for row in rows)):
        mine = [row for row in rows if row["name"] == name]
        seeds = sorted(row["seed"] for row in mine)
        for k in (1, 8):
            gain = passes(rows, name, seeds, k) - passes(rows, START, seeds, k)
            each = [float((passes(rows, name, [s], k) - passes(rows, START, [s], k)).mean()) for s in seeds]
            mean = clustered_mean(gain)
            out.append({"run": name, "k": k, "seeds": len(seeds), "steps": np.mean([r["steps"] for r in mine]),
                        "tokens": np.mean([r["tokens"] for r in mine]),
                        "after": float(passes(rows, name, seeds, k).mean()), "gain": mean.estimate, "low": mean.low,
                        "high": mean.high, "worst": min(each), "best": max(each)})  # fmt: skip
    return pl.DataFrame(out)


def report(folder: Path) -> None:
    rows = read(folder / "runs.jsonl")
    found, seeds = table(rows), sorted({r["seed"] for r in rows if r["name"] == START})
    for k in (1, 8):
        print(f"start: pass@{k} {passes(rows, START, seeds, k).mean():.3f}, {ITEMS} items x {SAMPLES} samples a seed")
    print("| run | steps | pass@1 | gain [95%] | seeds from, to | pass@8 | gain [95%] |\n|---|---|---|---|---|---|---|")
    for name in found["run"].unique(maintain_order=True):
        one, eight = found.filter(run=name).sort("k").to_dicts()
        print(f"| {name} | {one['steps']:.0f} | {one['after']:.3f} | {said(one)} | {one['worst']:+.3f}, "
              f"{one['best']:+.3f} | {eight['after']:.3f} | {said(eight)} |")  # fmt: skip
    for what, (a, b) in KINDS.items():
        both = sorted({r["seed"] for r in rows if r["name"] == a} & {r["seed"] for r in rows if r["name"] == b})
        for k in (1, 8) if both else ():
            mean = clustered_mean(passes(rows, a, both, k) - passes(rows, b, both, k))
            print(f"{what}: {a} - {b}, pass@{k} {mean.estimate:+.3f} [{mean.low:+.3f}, {mean.high:+.3f}]")
    plot(found).save(str(folder / "learning.png"), ppi=110)


def said(row: dict) -> str:
    return f"{row['gain']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"


def plot(found: pl.DataFrame) -> alt.Chart:
    order = found.filter(k=1).sort("gain", descending=True)["run"].to_list()
    base = alt.Chart().encode(y=alt.Y("run:N", sort=order, title=None))  # without data: each panel gives its own
    zero = alt.Chart().mark_rule(color="#888").encode(x=alt.datum(0))
    bars = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", title="gain over the start, 95% interval over items"), x2="high:Q"
    )
    points = base.mark_point(filled=True, size=60, opacity=1).encode(x="gain:Q")
    layers = alt.layer(zero, bars, points, data=found.with_columns(k=pl.format("pass@{}", "k")))
    return layers.properties(width=320, height=300).facet(column=alt.Column("k:N", title=None))


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else "bench-rl").resolve()
    warnings.simplefilter("ignore", AssayWarning)
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "600")  # a busy machine
    if "--report" not in sys.argv:
        where.mkdir(parents=True, exist_ok=True)
        run_all(where)
    report(where)
