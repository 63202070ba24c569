"""Generation through the store against the same requests given to vLLM's own `generate`, alternating in one run.

Tokens a second of wall time, and of this process's CPU time, which a busy machine disturbs less.

    python tests/pipelines/bench_generate.py [REQUESTS] [ROUNDS] [MODEL]

The small reasoner makes 10,000 tokens a second here, in completions of 22: what is between the requests weighs as it
never does with a model of use.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import polars as pl

from assay.pipelines import generate
from assay.pipelines.engines import Sampling, VllmEngine, _sampling_params
from assay.pipelines.models import REASONER
from assay.pipelines.store import Store

SAMPLING = Sampling(max_tokens=128)


def own(engine: VllmEngine, plan: generate.Plan) -> int:
    """Tokens that vLLM's `generate` samples for the plan."""
    outputs = engine._llm.generate(
        [{"prompt_token_ids": w.request.prompt_ids} for w in plan.wanted],
        [_sampling_params(w.request, engine.max_model_len) for w in plan.wanted],
        use_tqdm=False,
    )
    return sum(len(o.outputs[0].token_ids) for o in outputs)


def through(engine: VllmEngine, store: Store, problems: pl.DataFrame, seed: int) -> int:
    """Tokens that `sample` adds to the store."""
    notes: list[str] = []
    rows = generate.sample(
        store, engine, problems, mode="think", samples=8, sampling=SAMPLING, seed=seed,
        progress=lambda done, total, note: notes.append(note),
    )  # fmt: skip
    return int(rows["token_ids"].list.len().sum())


def main(count: int = 1024, rounds: int = 6, model: str | Path = REASONER) -> None:
    """Prints tokens/s of both in every round and the median ratios."""
    engine, ratios, cpu_ratios = VllmEngine(model, max_model_len=512, dtype="float32"), [], []
    texts = [f"What is {i % 47} + {i % 13} - {i % 7}?" for i in range(count // 8)]
    problems = pl.DataFrame({"id": [f"p{i}" for i in range(len(texts))], "problem": texts})
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds + 1):
            store = Store.open(Path(folder) / str(turn), create=True)
            plan = generate.plan(store, engine, problems, mode="think", samples=8, sampling=SAMPLING, seed=turn)
            speeds, cpu = {}, {}
            for which in ("vllm", "assay") if turn % 2 else ("assay", "vllm"):
                engine._llm.reset_prefix_cache()
                began, cpu_began = time.perf_counter(), time.process_time()
                tokens = own(engine, plan) if which == "vllm" else through(engine, store, problems, turn)
                speeds[which] = tokens / (time.perf_counter() - began)
                cpu[which] = tokens / (time.process_time() - cpu_began)
            if turn:  # the first warms up
                ratios.append(speeds["assay"] / speeds["vllm"])
                cpu_ratios.append(cpu["assay"] / cpu["vllm"])
                plain, stored = speeds["vllm"], speeds["assay"]
                print(f"generate {plain:,.0f} tokens/s, through the store {stored:,.0f}: {ratios[-1]:.3f}", end="")
                print(f", by CPU time {cpu_ratios[-1]:.3f}", flush=True)
    print(f"median ratio {median(ratios):.3f}, by CPU time {median(cpu_ratios):.3f}; 0.95 wanted")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
