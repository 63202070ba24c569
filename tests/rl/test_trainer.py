"""The trainer with a real engine: exactness, resume, what it records, and what it refuses."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from assay.flows.models import EnginePool
from assay.pipelines.errors import AssayWarning, EngineError, ModelError, SourceError
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier
from assay.rl.checkpoint import latest_checkpoint, load_model
from assay.rl.recipe import TrainRecipe
from assay.rl.trainer import Trainer, TrainingResult

PROBLEMS = pl.DataFrame(
    [
        (f"p{i}", f"What is {i % 9 + 3} + {i % 7 + 2} - {i % 5 + 1}?", str(i % 9 + 3 + i % 7 + 2 - i % 5 - 1), 0.5)
        for i in range(24)
    ],
    schema=["id", "problem", "answer", "pass_rate"],
    orient="row",
)


def recipe(store: Path, model: Path, **changes: Any) -> TrainRecipe:
    plain = {
        "name": "t",
        "model": str(model),
        "store": str(store),
        "steps": 4,
        "checkpoint_every": 2,
        "sampling": {"prompts": 6, "group_size": 4, "max_tokens": 64, "instruction": ""},
        "optimizer": {"learning_rate": 1e-4},
    }
    return TrainRecipe.model_validate({**plain, **changes})


def run(made: TrainRecipe, pool: EnginePool, store: Store, folder: Path, **more: Any) -> TrainingResult:
    with Verifier(workers=1) as verifier, warnings.catch_warnings():
        warnings.simplefilter("ignore", AssayWarning)
        trainer = Trainer(made, load_model(made.model), pool.get(made.model), verifier, PROBLEMS, store, folder, **more)
        return trainer.train()


def recorded(store: Store, name: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    timed = pl.col("metric").str.contains("second")
    steps = store.scan("steps").filter((pl.col("run") == name) & ~timed).unique(["step", "metric"], keep="last")
    rollouts = (
        store.scan("rollouts").filter(pl.col("run") == name).unique(["step", "problem_id", "sample", "completion"])
    )
    return (
        steps.select("step", "metric", "value").sort("step", "metric").collect(),
        rollouts.select("step", "problem_id", "sample", "completion", "reward", "advantage").sort(pl.all()).collect(),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": "kimi", "optimizer": {"learning_rate": 1e-4, "updates_per_step": 2}},
        {"algorithm": "ppo"},
        {"lora": {"rank": 2}},
        {"sampling": {"prompts": 4, "group_size": 4, "max_tokens": 64, "instruction": "", "step_tokens": 24}},
    ],
    ids=["dr_grpo", "kimi", "ppo", "lora", "partial rollouts"],
)
def test_a_resumed_run_is_bit_identical(
    pool: EnginePool, reasoner: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Check 32; also sampler seeds, curriculum, optimizer, critic: the steps after the checkpoint are the same."""
    store = Store.open(tmp_path / "s", create=True)
    made = recipe(tmp_path / "s", reasoner, **changes)
    whole = run(made, pool, store, tmp_path / "whole")
    (tmp_path / "cut" / "checkpoints").mkdir(parents=True)
    shutil.copytree(tmp_path / "whole" / "checkpoints" / "step-2", tmp_path / "cut" / "checkpoints" / "step-2")
    cut = run(made, pool, store, tmp_path / "cut")
    first, second = (load_model(r.checkpoint).state_dict() for r in (whole, cut))
    assert all(torch.equal(first[name], second[name]) for name in first)
    later = pl.col("step") > 2
    for a, b in zip(recorded(store, "whole"), recorded(store, "cut")):
        assert a.filter(later).equals(b)
    assert whole.steps == cut.steps == 4


@pytest.mark.parametrize("lora", [{}, {"rank": 4}], ids=["all weights", "lora"])
def test_sampler_and_trainer_agree_at_every_step_and_checkpoints_load(
    pool: EnginePool, reasoner: Path, tmp_path: Path, lora: dict[str, Any]
) -> None:
    """Checks 29 and 30: LoRA's additions reach the engine too; every sync leaves the step's own fingerprint."""
    store, errors, served_by, said = Store.open(tmp_path / "s", create=True), [], [], []

    def on_step(_: int, metrics: dict[str, float]) -> None:
        errors.append(metrics["ratio_error"])
        served_by.append(engine.fingerprint)

    engine = pool.get(str(reasoner))
    made = recipe(tmp_path / "s", reasoner, optimizer={"learning_rate": 1e-3}, lora=lora)
    result = run(made, pool, store, tmp_path / "r", on_step=on_step, say=said.append)
    assert result.ratio_error_first_step < 1e-4
    assert len(errors) == 4
    assert max(errors) < 1e-3
    assert served_by == [f"r@{step}" for step in (1, 2, 3, 4)]
    assert said[0].startswith("plan of a step")
    assert "seconds_per_step" in said[-1]
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(result.checkpoint)
    trained = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(loaded.state_dict()[trained], load_model(reasoner).state_dict()[trained])
    served = pool.get(str(result.checkpoint))
    assert served.fingerprint != pool.get(str(reasoner)).fingerprint


def test_a_sync_that_leaves_a_tensor_out_is_noticed(
    pool: EnginePool, reasoner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.pipelines.engines import VllmEngine

    real = VllmEngine.load_weights
    pool.get(str(reasoner))
    monkeypatch.setattr(
        VllmEngine,
        "load_weights",
        lambda self, weights, name: real(self, [w for w in weights if "mlp" not in w[0]], name),
    )
    with pytest.raises(EngineError, match=r"step \d: sampler and trainer disagree"):
        run(
            recipe(tmp_path / "s", reasoner, optimizer={"learning_rate": 3e-2}),
            pool,
            Store.open(tmp_path / "s", create=True),
            tmp_path / "r",
        )
    monkeypatch.undo()
    pool.close()


def gradient(pool: EnginePool, reasoner: Path, tmp_path: Path, budget: int, **changes: Any) -> torch.Tensor:
    made = recipe(
        tmp_path / "s",
        reasoner,
        steps=1,
        optimizer={"learning_rate": 1e-9, "micro_batch_tokens": budget, "max_grad_norm": 1e9},
        **changes,
    )
    with Verifier(workers=1) as verifier:
        model = load_model(reasoner)
        Trainer(
            made,
            model,
            pool.get(str(reasoner)),
            verifier,
            PROBLEMS,
            Store.open(tmp_path / "s", create=True),
            tmp_path / f"r{budget}",
        ).train()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("algorithm", ["dr_grpo", "gspo"])  # all of them, without an engine, in test_update.py
def test_the_micro_batch_size_does_not_change_the_gradient(
    pool: EnginePool, reasoner: Path, tmp_path: Path, algorithm: str
) -> None:
    changes = {"dynamic_sampling": False}
    alone, some, whole = (
        gradient(pool, reasoner, tmp_path, b, algorithm=algorithm, changes=changes) for b in (1, 200, 100_000)
    )
    assert float(whole.norm()) > 0
    assert float((alone - whole).norm() / whole.norm()) < 1e-5
    assert float((some - whole).norm() / whole.norm()) < 1e-5


def test_metrics_and_rollouts_are_recorded(pool: EnginePool, reasoner: Path, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", create=True)
    result = run(recipe(tmp_path / "s", reasoner), pool, store, tmp_path / "r")
    steps, rollouts = recorded(store, "r")
    named = set(steps["metric"])
    assert {
        "reward",
        "success",
        "entropy",
        "ratio_error",
        "clip_share_low",
        "clip_share_high",
        "length",
        "grad_norm",
        "truncated_share",
        "unverifiable_share",
        "zero_std_share",
        "approx_kl",
    } <= named
    assert rollouts.height == 4 * 6 * 4
    rewards = steps.filter((pl.col("metric") == "reward") & (pl.col("step") == 3))["value"].item()
    own = rollouts.filter(pl.col("step") == 3)["reward"]
    assert rewards == pytest.approx(own.drop_nans().mean())
    assert result.share_outside < 0.5
    last = dict(store.scan("steps").filter(run="r", step=3).select("metric", "value").collect().rows())
    for phase, tokens in (("generate", "sampled_tokens"), ("torch", "trained_tokens")):
        assert last[f"tokens_per_second_{phase}"] == pytest.approx(last[tokens] / last[f"seconds_{phase}"])
    assert latest_checkpoint(tmp_path / "r" / "checkpoints") == result.checkpoint


def test_partial_rollouts_are_trained_with_the_bound_and_every_token_is_accounted_for(
    pool: EnginePool, reasoner: Path, tmp_path: Path
) -> None:
    """12 tokens a step and a bound of one update: a group with an answer of more than 24 is dropped and counted."""
    store, size = Store.open(tmp_path / "s", create=True), {"prompts": 4, "group_size": 4, "max_tokens": 64}
    sampling = {**size, "instruction": "", "step_tokens": 12, "max_refills": 0}
    made, engine = recipe(tmp_path / "s", reasoner, steps=6, sampling=sampling), pool.get(str(reasoner))
    with Verifier(workers=1) as verifier:
        trainer = Trainer(made, load_model(reasoner), engine, verifier, PROBLEMS, store, tmp_path / "r")
        with pytest.warns(AssayWarning, match="groups after 0 refills"):
            trainer.train()
    rows = store.scan("rollouts").select("step", "weights_version", "tokens").collect()
    age = rows["step"] - 1 - rows["weights_version"]
    assert set(age) == {1}
    assert 12 < rows["tokens"].min() <= rows["tokens"].max() <= 24  # type: ignore[operator]
    steps = store.scan("steps").collect().pivot("metric", index="step", values="value")
    accounted = steps.select("trained_tokens", "wasted_tokens", "stale_tokens").sum().row(0)
    left = sum(tokens for _, tokens, _ in trainer.buffer.state()["held"]) + sum(d.tokens for d in trainer.maker.drafts)
    assert steps["stale_groups"].sum() > 0
    assert sum(accounted) + left == steps["sampled_tokens"].sum()


def test_a_random_reward_control_ignores_the_answers(pool: EnginePool, reasoner: Path, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", create=True)
    run(recipe(tmp_path / "s", reasoner, steps=2, rewards={"control": "random"}), pool, store, tmp_path / "r")
    rows = store.scan("rollouts").collect()
    right = rows["status"] == "correct"
    assert set(rows["reward"]) == {0.0, 1.0}
    assert 0 < rows.filter(right)["reward"].mean() < 1  # type: ignore[operator]


def test_a_problem_set_without_any_gradient_goes_on_and_says_so(
    pool: EnginePool, reasoner: Path, tmp_path: Path
) -> None:
    impossible = PROBLEMS.with_columns(answer=pl.lit("123456"))
    made = recipe(
        tmp_path / "s",
        reasoner,
        steps=2,
        changes={"dynamic_sampling": True},
        sampling={"prompts": 3, "group_size": 2, "max_tokens": 48, "max_refills": 1, "instruction": ""},
    )
    store = Store.open(tmp_path / "s", create=True)
    with Verifier(workers=1) as verifier, pytest.warns(AssayWarning, match="0 of 3 groups after 1 refills"):
        Trainer(
            made, load_model(reasoner), pool.get(str(reasoner)), verifier, impossible, store, tmp_path / "r"
        ).train()
    values = store.scan("steps").filter(pl.col("metric").is_in(["groups", "groups_dropped"])).collect()
    trained, dropped = (values.filter(pl.col("metric") == m)["value"].to_list() for m in ("groups", "groups_dropped"))
    assert trained == [0.0, 0.0]
    assert dropped[0] == 3 + 4  # three are wanted; a fifth less is expected to be kept after a round without one
    assert dropped[1] > 6


def test_groups_that_are_all_right_or_all_wrong_are_dropped_whatever_else_is_rewarded(
    pool: EnginePool, reasoner: Path, tmp_path: Path
) -> None:
    """A bonus for repeating nothing differs within every group; DAPO's rule goes by accuracy."""
    made = recipe(tmp_path / "s", reasoner, steps=2, changes={"dynamic_sampling": True}, rewards={"repetition": 0.5},
                  sampling={"prompts": 3, "group_size": 4, "max_tokens": 48, "instruction": ""})  # fmt: skip
    store = Store.open(tmp_path / "s", create=True)
    run(made, pool, store, tmp_path / "r")
    right = pl.col("status") == "correct"
    rows = store.scan("rollouts").group_by("step", "problem_id").agg(right.any().alias("any"), right.all().alias("all"))
    kept = rows.collect()
    assert kept.height == 6
    assert kept["any"].all()
    assert not kept["all"].any()


@pytest.mark.parametrize(("config", "settings"), [
    ("GraniteConfig", {"logits_scaling": 8.0}), ("CohereConfig", {"logit_scale": 0.0625}),
    ("Gemma2Config", {"final_logit_softcapping": 30.0, "head_dim": 8}), ("PhiConfig", {}),
])  # fmt: skip
def test_a_model_whose_logits_are_more_than_its_head_is_refused(
    tmp_path: Path, config: str, settings: dict[str, Any]
) -> None:
    """Scaled, capped, or with a bias that is not zero."""
    import transformers

    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
             "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0}  # fmt: skip
    made = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**sizes, **settings))
    if (bias := getattr(made.get_output_embeddings(), "bias", None)) is not None:
        bias.data += 0.5
    made.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="behind the output head"):
        load_model(tmp_path)


def test_no_problems(reasoner: Path, tmp_path: Path) -> None:
    made = recipe(tmp_path / "s", reasoner)
    with pytest.raises(SourceError, match="holds no problems; refresh it first"):
        Trainer(made, None, None, None, PROBLEMS.head(0), Store.open(tmp_path / "s", create=True), tmp_path / "r")  # type: ignore[arg-type]
