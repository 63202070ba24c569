"""Tokens a second (rollout and update) of this trainer and of TRL's `GRPOTrainer`, in turns in one process.

    python tests/rl/bench_trl.py [ROUNDS]

Same model, problems, completions a prompt, length limit, float32, Dr. GRPO without KL, AdamW, and the same verifier as
the reward. TRL samples with `transformers`: its colocated vLLM fails without a GPU and its vLLM server wants NCCL. The
first step of every round warms up and is not counted. Processor seconds are of this process with all its threads; the
verifier's worker is beside it in both.
"""

import random
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import polars as pl
import torch

from assay.flows.models import EnginePool
from assay.flows.reasoner import phrase, sample_chain
from assay.pipelines.errors import AssayWarning
from assay.pipelines.models import REASONER
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier
from assay.rl.checkpoint import load_model
from assay.rl.recipe import TrainRecipe
from assay.rl.trainer import Trainer

STEPS, PROMPTS, SIZE, LENGTH, RATE = 5, 16, 8, 128, 1e-5


def problems() -> pl.DataFrame:
    rng = random.Random(0)
    chains = [sample_chain(rng, rng.randint(3, 5)) for _ in range(PROMPTS * STEPS)]
    rows = [(f"p{i}", phrase(c, rng), str(c.answer), 0.5) for i, c in enumerate(chains)]
    return pl.DataFrame(rows, schema=["id", "problem", "answer", "pass_rate"], orient="row")


class Laps:
    """Tokens, wall and processor seconds of every step but the first."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []
        self.tokens: list[int] = []

    def mark(self, tokens: int) -> None:
        self.marks.append((time.perf_counter(), time.process_time()))
        self.tokens.append(tokens)

    def speed(self) -> tuple[float, float, float]:
        (wall, processor), (end, done) = self.marks[0], self.marks[-1]
        tokens = sum(self.tokens[1:])
        return tokens / (end - wall), tokens / (done - processor), tokens / (len(self.tokens) - 1)


def ours(folder: Path, pool: EnginePool, verifier: Verifier) -> Laps:
    made = TrainRecipe.model_validate({
        "name": "ours", "model": str(REASONER), "store": str(folder), "steps": STEPS, "checkpoint_every": STEPS,
        "sampling": {"prompts": PROMPTS, "group_size": SIZE, "max_tokens": LENGTH, "instruction": ""},
        "optimizer": {"learning_rate": RATE, "micro_batch_tokens": 2048}, "engine": {"max_model_len": 512},
        "curriculum": {"order": "none", "prioritised": False}})  # fmt: skip
    laps, store = Laps(), Store.open(folder, create=True)
    Trainer(made, load_model(REASONER), pool.get(str(REASONER)), verifier, problems(), store, folder / "run",
            lambda _, metrics: laps.mark(int(metrics["sampled_tokens"]))).train()  # fmt: skip
    return laps


def theirs(folder: Path, verifier: Verifier, batch: int) -> Laps:
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    laps, seen = Laps(), []

    def reward(completions, completion_ids, answer, **_) -> list[float]:
        seen.append(sum(map(len, completion_ids)))
        texts = [c[0]["content"] for c in completions]
        ends = ["stop" if ids[-1] == tokenizer.eos_token_id else "length" for ids in completion_ids]
        return [float(v.status == "correct") for v in verifier.grade_many(list(zip(answer, texts)), None, ends)]

    class Mark(TrainerCallback):
        def on_step_end(self, *_, **__) -> None:
            laps.mark(sum(seen))
            seen.clear()

    tokenizer = AutoTokenizer.from_pretrained(REASONER)
    rows = [{"prompt": [{"role": "user", "content": p}], "answer": a}
            for p, a in problems().select("problem", "answer").iter_rows()]  # fmt: skip
    config = GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, max_steps=STEPS, per_device_train_batch_size=batch,
        gradient_accumulation_steps=PROMPTS * SIZE // batch, num_generations=SIZE, max_completion_length=LENGTH,
        learning_rate=RATE, lr_scheduler_type="constant", adam_beta2=0.95, beta=0.0, loss_type="dr_grpo",
        scale_rewards="none", gradient_checkpointing=False, report_to="none", save_strategy="no",
        logging_strategy="no", disable_tqdm=True)  # fmt: skip
    GRPOTrainer(load_model(REASONER), reward_funcs=reward, args=config, train_dataset=Dataset.from_list(rows),
                processing_class=tokenizer, callbacks=[Mark()]).train()  # fmt: skip
    return laps


def main() -> None:
    rounds, ratios = int(sys.argv[1]) if len(sys.argv) > 1 else 3, []
    print(f"{PROMPTS} prompts x {SIZE} completions of at most {LENGTH} tokens, {torch.get_num_threads()} threads, "
          f"{STEPS - 1} steps a round")  # fmt: skip
    with EnginePool(max_model_len=512, dtype="float32") as pool, Verifier(workers=1) as verifier:
        for i in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                trl = max(theirs(Path(folder) / f"trl{b}", verifier, b).speed() for b in (PROMPTS * SIZE, 32))
                own = ours(Path(folder) / "ours", pool, verifier).speed()
            ratios.append((own[0] / trl[0], own[1] / trl[1]))
            print(f"round {i}: ours {own[0]:,.0f} tokens/s, {own[2]:,.0f} a step; TRL {trl[0]:,.0f}, {trl[2]:,.0f}; "
                  f"{ratios[-1][0]:.2f} times by wall time, {ratios[-1][1]:.2f} by processor", flush=True)  # fmt: skip
    wall, processor = (statistics.median(r) for r in zip(*ratios))
    print(f"median of {rounds}: {wall:.2f} times TRL's tokens/s by wall time, {processor:.2f} by processor time")


if __name__ == "__main__":
    warnings.simplefilter("ignore", AssayWarning)
    main()
