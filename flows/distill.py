"""Distillation: the teacher's verified traces fine-tune a fresh student."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from assay.flows.console import Console
from assay.flows.models import EnginePool
from assay.pipelines import generate
from assay.pipelines.engines import Engine, Sampling
from assay.pipelines.errors import SourceError
from assay.pipelines.prompts import opens_thinking, render
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier
from assay.rl.batches import Example
from assay.rl.checkpoint import load_model, save_model
from assay.rl.sft import fine_tune

__all__ = ["distill", "verified_traces"]


def verified_traces(store: Store, engine: Engine, verifier: Verifier, problems: pl.DataFrame, *, samples: int,
                    sampling: Sampling, instruction: str | None = None, seed: int = 0,
                    progress: generate.Progress | None = None) -> list[Example]:  # fmt: skip
    """The engine's completions of `problems` that the verifier found correct, each distinct one once.

    Args:
        problems: columns `id`, `problem`, `answer`.
    """
    rows = generate.sample(store, engine, problems, mode="think", samples=samples, sampling=sampling, seed=seed,
                           instruction=instruction, progress=progress)  # fmt: skip
    graded = generate.grade(store, verifier, problems, rows, starts_in_thinking=opens_thinking(engine.tokenizer))
    right = rows.filter((graded["status"] == "correct") & (rows["finish_reason"] == "stop"))
    right = right.unique(["problem_id", "text"], keep="first", maintain_order=True)
    texts = dict(problems.select("id", "problem").iter_rows())
    return [
        Example(render(engine.tokenizer, texts[i], "think", instruction), ids)
        for i, ids in right.select("problem_id", "token_ids").iter_rows()
    ]


def distill(store: Store, pool: EnginePool, verifier: Verifier, problems: pl.DataFrame, *, teacher: str, student: str,
            folder: Path, samples: int = 4, max_tokens: int = 192, instruction: str | None = None, seed: int = 0,
            epochs: int = 3, batch_size: int = 32, learning_rate: float = 1e-4,
            console: Console | None = None) -> Path:  # fmt: skip
    """Fine-tune the weights of `student` on `teacher`'s verified traces; returns `folder` with the new model.

    Raises:
        SourceError: not one trace was correct.
    """
    console = console or Console()
    with console.progress() as bar:
        bar.start("teacher traces")
        engine = pool.get(teacher)
        traces = verified_traces(store, engine, verifier, problems, samples=samples, sampling=Sampling(
            max_tokens=max_tokens), instruction=instruction, seed=seed, progress=bar.update)  # fmt: skip
        if not traces:
            raise SourceError(f"{teacher}: none of {samples} samples of {len(problems)} problems is correct; there is "
                              "nothing to distil. Take more samples, or easier problems.")  # fmt: skip
        bar.end(f"{len(traces):,} distinct correct traces of {len(problems):,} problems")
        steps = max(1, epochs * len(traces) // batch_size)
        bar.start("student", steps)
        model = load_model(student)
        losses = fine_tune(model, traces, steps=steps, batch_size=batch_size, learning_rate=learning_rate, warmup=5,
                           seed=seed, on_step=lambda s, loss: bar.update(s + 1, steps, f"loss {loss:.3f}"))  # fmt: skip
        save_model(folder, model, engine.tokenizer)
        bar.end(f"{steps} steps, loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return folder
