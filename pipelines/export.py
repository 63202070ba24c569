"""A curated set for another trainer: its rows in that trainer's format, a reward function, and a configuration.

    OUT/data/train.parquet   (OpenRLHF: train.jsonl)
    OUT/reward.py            calls `grade` of this module, so assay must be installed where the trainer runs
    OUT/grpo.yaml | run.sh   the configuration, with the sampling that the pass rates were measured with
    OUT/README.md            what it is and how to start

`hub` is the snapshot's own folder, which is a data set of the Hub as it is. Programs are left out: their reward runs
tests in a sandbox, which these trainers do not have.

Where the model's chat template ends the prompt with `<think>`, a thinking without an end has no answer. OpenRLHF's
prompt shows it; TRL's and verl's `reward.py` say it in STARTS_IN_THINKING, which is what the recorded samples show.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from assay.pipelines import snapshot as snapshots
from assay.pipelines.errors import StoreError
from assay.pipelines.generate import begun_in_prompt
from assay.pipelines.hints import did_you_mean
from assay.pipelines.recipe import Model
from assay.pipelines.snapshot import Snapshot, folder_of
from assay.pipelines.store import Store
from assay.pipelines.verify import Policy, Verifier

__all__ = ["FORMATS", "grade", "write_export"]

SAMPLES = 8


def write_export(store: Store, snapshot: str, form: str, out: Path) -> Path:
    """Writes the snapshot's kept rows into the folder `out` for the trainer `form`; returns the folder.

    Args:
        snapshot: an id, the beginning of one, or `latest`.
        form: one of `FORMATS`.

    Raises:
        StoreError: no such snapshot or format, the folder holds something already, or no row has a checkable answer.
    """
    made = snapshots.load(store, snapshot)
    if form not in FORMATS:
        raise StoreError(f"--format {form}: no such format{did_you_mean(form, FORMATS)} Formats: {', '.join(FORMATS)}.")
    if out.exists() and any(out.iterdir()):
        raise StoreError(f"{out}: holds something already; give another folder.")
    source = folder_of(store, made.id)
    if form == "hub":
        return Path(shutil.copytree(source, out, dirs_exist_ok=True))
    rows = pl.read_parquet(source / "data" / "train.parquet").filter(pl.col("kind") == "math")
    if rows.is_empty():
        raise StoreError(f"{source}: holds programs alone; `--format hub` hands them over.")
    (out / "data").mkdir(parents=True)
    FORMATS[form](made, _prompted(made, rows), out)
    reward = f'"""Reward by assay\'s verifier, which must be installed here."""\n\n{REWARDS[form].lstrip()}'
    opened = str(_opened(store, made, rows))
    (out / "reward.py").write_text(reward.replace("{opened}", opened), encoding="utf-8")
    (out / "README.md").write_text(_readme(made, rows, form), encoding="utf-8")
    return out


def _prompted(made: Snapshot, rows: pl.DataFrame) -> pl.DataFrame:
    """With `prompt`, the messages that the pass rates were measured with, and `policy`, the source's, JSON."""
    instruction = _setting(made, "instruction")
    text = pl.format("{}\n\n{}", "problem", pl.lit(instruction)) if instruction else pl.col("problem")
    policies = {s["name"]: json.dumps(s.get("policy") or {}) for s in made.recipe["sources"]}
    return rows.with_columns(
        prompt=pl.concat_list(pl.struct(role=pl.lit("user"), content=text)),
        policy=pl.col("source").replace_strict(policies, default="{}"),
    )


def _opened(store: Store, made: Snapshot, rows: pl.DataFrame) -> bool:
    """Whether the prompts opened the thinking of the model that was last recorded on these problems."""
    ids, mode = rows["id"].implode(), _setting(made, "mode")
    asked = store.scan("generations").filter(pl.col("problem_id").is_in(ids), mode=mode)
    return bool(asked.filter(pl.col("model") == pl.col("model").last()).select(begun_in_prompt()).collect().item())


def _setting(made: Snapshot, name: str) -> Any:
    """A field of the recipe's [model], or its default where the recipe has none."""
    return (made.recipe.get("model") or {}).get(name, Model.model_fields[name].get_default())


def _trl(made: Snapshot, rows: pl.DataFrame, out: Path) -> None:
    columns = ("prompt", "answer", "policy", "id", "source", "domain", "pass_rate")
    rows.select(c for c in columns if c in rows.columns).write_parquet(out / "data" / "train.parquet")
    settings = {
        "dataset_name": "data",
        "reward_funcs": ["reward.accuracy"],
        "output_dir": "trained",
        "num_generations": SAMPLES,
        "temperature": _setting(made, "temperature"),
        "top_p": _setting(made, "top_p"),
        "max_completion_length": _setting(made, "max_tokens"),
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "mask_truncated_completions": True,
    }
    (out / "grpo.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def _verl(made: Snapshot, rows: pl.DataFrame, out: Path) -> None:
    """Source of the columns: verl's documentation, "Prepare data for post-training"."""
    extra = [pl.col(c) for c in ("id", "policy", "domain", "pass_rate") if c in rows.columns]
    rows.select(
        "prompt",
        data_source="source",
        ability=pl.lit("math"),
        reward_model=pl.struct(style=pl.lit("rule"), ground_truth="answer"),
        extra_info=pl.struct(pl.lit("train").alias("split"), pl.int_range(pl.len()).alias("index"), *extra),
    ).write_parquet(out / "data" / "train.parquet")
    _script(out, VERL_RUN, made)


def _openrlhf(made: Snapshot, rows: pl.DataFrame, out: Path) -> None:
    """Its reward function sees the label alone, which is thus JSON of answer and policy."""
    label = pl.struct("answer", "policy").struct.json_encode()
    rows.select("prompt", "id", "source", label=label).write_ndjson(out / "data" / "train.jsonl")
    _script(out, OPENRLHF_RUN, made)


FORMATS: dict[str, Callable[[Snapshot, pl.DataFrame, Path], None]] = {
    "trl": _trl, "verl": _verl, "openrlhf": _openrlhf, "hub": lambda *_: None,
}  # fmt: skip
"""What writes each format's files."""


def grade(
    answers: Sequence[str], completions: Sequence[Any], policies: Sequence[str | dict[str, Any]] | None = None,
    starts_in_thinking: bool = False,
) -> list[float | None]:  # fmt: skip
    """1 for a correct completion, 0 for a wrong one, None where there is no verdict; for the exported `reward.py`.

    Args:
        answers: golds.
        completions: texts, or messages of which the last is the model's.
        policies: fields of `verify.Policy`, a map or JSON of one; by default the usual policy.
        starts_in_thinking: the prompts ended with `<think>`, so a completion without `</think>` has no answer.
    """
    texts = [_text(completion) for completion in completions]
    fields = [json.loads(p) if isinstance(p, str) else p for p in policies or [{}] * len(texts)]
    asked = list(zip(answers, texts))
    verdicts = _verifier().grade_many(asked, [Policy(**f) for f in fields], None, starts_in_thinking)
    return [{"correct": 1.0, "wrong": 0.0}.get(v.status) for v in verdicts]


@cache
def _verifier() -> Verifier:
    """One a process; its workers end with it."""
    return Verifier()


def _text(said: str | Sequence[dict[str, Any]]) -> str:
    """A completion's whole text; TRL gives the thinking apart where the tokenizer tells how to parse a response."""
    if isinstance(said, str):
        return said
    thinking, answer = said[-1].get("reasoning_content"), said[-1].get("content") or ""
    return answer if thinking is None else f"{thinking}</think>{answer}"


TRL_REWARD = '''
from assay.pipelines.export import grade

STARTS_IN_THINKING = {opened}  # whether the model's chat template ends the prompt with <think>


def accuracy(completions, answer, policy, **columns):
    """1 correct, 0 wrong; None, which TRL leaves out of the group, where there is no verdict."""
    return grade(answer, completions, policy, STARTS_IN_THINKING)
'''
VERL_REWARD = '''
from assay.pipelines.export import grade

STARTS_IN_THINKING = {opened}  # whether the model's chat template ends the prompt with <think>


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **settings):
    """1 correct, else 0."""
    policy = (extra_info or {}).get("policy") or {}
    return grade([ground_truth], [solution_str], [policy], STARTS_IN_THINKING)[0] or 0.0
'''
OPENRLHF_REWARD = '''
import json

import torch

from assay.pipelines.export import grade


def reward_func(queries, prompts, labels, **settings):
    """1 correct, else 0; a query is its prompt with the completion behind it."""
    gold = [json.loads(label) for label in labels]
    completions = [query.removeprefix(prompt) for query, prompt in zip(queries, prompts)]
    opened = prompts[0].rstrip().endswith("<think>")
    scores = grade([g["answer"] for g in gold], completions, [g["policy"] for g in gold], opened)
    rewards = torch.tensor([score or 0.0 for score in scores])
    known = torch.tensor([float(score is not None) for score in scores])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"verdicts": known}}
'''
REWARDS = {"trl": TRL_REWARD, "verl": VERL_REWARD, "openrlhf": OPENRLHF_REWARD}
VERL_RUN = """
python3 -m verl.trainer.main_ppo \\
  algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False \\
  data.train_files="$HERE/data/train.parquet" data.val_files="$HERE/data/train.parquet" \\
  data.max_response_length={max_tokens} \\
  actor_rollout_ref.model.path="$MODEL" actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm \\
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n={samples} \\
  actor_rollout_ref.rollout.temperature={temperature} actor_rollout_ref.rollout.top_p={top_p} \\
  reward.custom_reward_function.path="$HERE/reward.py" reward.custom_reward_function.name=compute_score \\
  trainer.val_before_train=False trainer.test_freq=-1 "$@"
"""
OPENRLHF_RUN = """
python3 -m openrlhf.cli.train_ppo_ray \\
  --actor.model_name_or_path "$MODEL" --reward.remote_url "$HERE/reward.py" \\
  --data.prompt_dataset "$HERE/data/train.jsonl" --data.input_key prompt \\
  --data.label_key label --data.apply_chat_template \\
  --algo.advantage.estimator dr_grpo --rollout.n_samples_per_prompt {samples} \\
  --rollout.max_new_tokens {max_tokens} --rollout.temperature {temperature} --rollout.top_p {top_p} "$@"
"""
RUN_HEAD = """#!/bin/sh
# Further settings go behind it: sh run.sh KEY=VALUE ... Older versions name some of them otherwise.
set -e
HERE=$(cd "$(dirname "$0")" && pwd)
MODEL=${MODEL:?set MODEL to the model to train}
"""


def _script(out: Path, text: str, made: Snapshot) -> None:
    sampling = {name: _setting(made, name) for name in ("temperature", "top_p", "max_tokens")}
    (out / "run.sh").write_text(RUN_HEAD + text.lstrip().format(samples=SAMPLES, **sampling), encoding="utf-8")


START = {"trl": "trl grpo --config grpo.yaml --model_name_or_path MODEL", "verl": "MODEL=... sh run.sh",
         "openrlhf": "MODEL=... sh run.sh"}  # fmt: skip


def _readme(made: Snapshot, rows: pl.DataFrame, form: str) -> str:
    licences = ", ".join(sorted(set(rows["license"].fill_null("not stated"))))
    return (
        f"# {made.recipe['name']}, snapshot {made.id}, for {form}\n\n{rows.height} problems; licences: {licences}.\n\n"
        f"    {START[form]}\n\nin this folder, where assay is installed beside the trainer: `reward.py` calls its "
        f"verifier. The prompts and the sampling are those that the pass rates were measured with.\n"
    )
