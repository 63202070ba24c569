"""Exports opened as the other trainers open them: the rows by `datasets`, the reward by its path, TRL's own parser."""

import importlib.util
import os
import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assay.pipelines import export
from assay.pipelines import snapshot as snapshots
from assay.pipelines.errors import StoreError
from assay.pipelines.export import write_export
from assay.pipelines.snapshot import FUNNEL, Snapshot
from assay.pipelines.store import SCHEMAS, Store

ROWS = [
    {"id": "a", "problem": "What is 1/4 + 1/4?", "answer": "\\frac{1}{2}", "source": "sums"},
    {"id": "b", "problem": "Name the first two primes, in order.", "answer": "2, 3", "source": "lists"},
    {"id": "c", "problem": "Write a function f.", "answer": None, "source": "sums", "kind": "code"},
]
PROMPTS = [f"{row['problem']}\n\nEnd with the answer in a box." for row in ROWS[:2]]
SOURCES = [{"name": "sums", "policy": {}}, {"name": "lists", "policy": {"ordered_lists": True}}]
MODEL = {"path": "owner/name", "instruction": "End with the answer in a box.", "temperature": 0.9, "max_tokens": 99}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.open(tmp_path_factory.mktemp("export") / "store", create=True)
    funnel = pl.DataFrame([("parse", 3, 3, "{}")], schema=FUNNEL, orient="row")
    recipe = {"name": "pool", "sources": SOURCES, "model": MODEL}
    made = Snapshot("20260101-000000-aaa", None, "f" * 64, recipe, [], funnel, datetime(2026, 1, 1))
    usual = {"kind": "math", "license": "MIT", "domain": "numbers", "first_seen": datetime(2026, 1, 1)}
    kept = pl.DataFrame([usual | row for row in ROWS], schema=SCHEMAS["problems"]).with_columns(pass_rate=pl.lit(0.5))
    hits = pl.DataFrame(schema=dict.fromkeys(("snapshot", "problem_id", "reason", "evidence"), pl.String))
    snapshots.write(store, made, kept, kept.clear().with_columns(reason=pl.lit(None, pl.String)), hits)
    snapshots.record(store, made)
    return store


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def rows_of(kind: str, file: Path, cache: Path) -> list[dict[str, Any]]:
    from datasets import load_dataset

    return list(load_dataset(kind, data_files=str(file), split="train", cache_dir=str(cache)))


def reward_of(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("reward", folder / "reward.py")
    assert spec
    module = importlib.util.module_from_spec(spec)
    assert spec.loader
    spec.loader.exec_module(module)
    return module


def test_trl(store, tmp_path):
    out = write_export(store, "latest", "trl", tmp_path / "out")
    rows = rows_of("parquet", out / "data/train.parquet", tmp_path / "cache")
    assert [row["prompt"] for row in rows] == [[{"role": "user", "content": text}] for text in PROMPTS]
    accuracy = reward_of(out).accuracy
    said = [[{"role": "assistant", "content": text}] for text in ("so \\boxed{0.5}", "\\boxed{3, 2}")]
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    assert accuracy(completions=said, prompts=[row["prompt"] for row in rows], **columns) == [1.0, 0.0]
    assert accuracy(completions=said, **columns | {"policy": ["{}", "{}"]}) == [1.0, 1.0]  # 3, 2 in any order
    assert accuracy(completions=said, **columns | {"answer": ["", "2, 3"]}) == [None, 0.0]


def test_trl_reads_the_configuration(store, tmp_path, monkeypatch):
    pytest.importorskip("trl")
    from trl.scripts.grpo import make_parser

    out = write_export(store, "latest", "trl", tmp_path / "out")
    arguments = ["--config", str(out / "grpo.yaml"), "--model_name_or_path", "m", "--bf16", "false"]
    script, training, model, _ = make_parser().parse_args_and_config([*arguments, "--use_cpu", "true"])
    assert (script.dataset_name, script.reward_funcs, model.model_name_or_path) == ("data", ["reward.accuracy"], "m")
    assert (training.temperature, training.max_completion_length, training.num_generations) == (0.9, 99, 8)
    assert (training.loss_type, training.scale_rewards) == ("dr_grpo", "none")


def test_verl(store, tmp_path):
    out = write_export(store, "latest", "verl", tmp_path / "out")
    row, listed = rows_of("parquet", out / "data/train.parquet", tmp_path / "cache")
    assert row["prompt"] == [{"role": "user", "content": PROMPTS[0]}]
    assert (row["data_source"], row["ability"]) == ("sums", "math")
    assert row["reward_model"] == {"style": "rule", "ground_truth": "\\frac{1}{2}"}
    assert (row["extra_info"]["split"], row["extra_info"]["index"], row["extra_info"]["id"]) == ("train", 0, "a")
    score = reward_of(out).compute_score
    assert score("sums", "\\boxed{0.5}", row["reward_model"]["ground_truth"], row["extra_info"]) == 1.0
    assert score("lists", "\\boxed{3, 2}", "2, 3", listed["extra_info"]) == 0.0
    assert score("lists", "\\boxed{3, 2}", "2, 3") == 1.0
    assert "rollout.temperature=0.9" in run(out)
    assert f"reward.custom_reward_function.path={out}/reward.py" in run(out)


def test_openrlhf(store, tmp_path):
    out = write_export(store, "latest", "openrlhf", tmp_path / "out")
    rows = rows_of("json", out / "data/train.jsonl", tmp_path / "cache")
    labels, prompts = [row["label"] for row in rows], [f"<user>{row['prompt'][0]['content']}<model>" for row in rows]
    queries = [prompt + text for prompt, text in zip(prompts, ("\\boxed{1/2}", "\\boxed{3, 2}"))]
    found = reward_of(out).reward_func(queries, prompts, labels)
    assert found["rewards"].tolist() == found["scores"].tolist() == [1.0, 0.0]
    assert found["extra_logs"]["verdicts"].tolist() == [1.0, 1.0]
    assert f"--reward.remote_url {out}/reward.py" in run(out)


def run(out: Path) -> str:
    """What `run.sh` would start, with an echo in Python's place."""
    bin_folder = out.parent / "bin"
    bin_folder.mkdir(exist_ok=True)
    (bin_folder / "python3").write_text('#!/bin/sh\necho "$@"\n')
    (bin_folder / "python3").chmod(0o755)
    environment = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "MODEL": "m"}
    return subprocess.run(
        ["sh", "run.sh"], cwd=out, env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_hub_is_the_snapshot_and_mistakes_are_told(store, tmp_path):
    out = write_export(store, "2026", "hub", tmp_path / "out")
    assert pl.read_parquet(out / "data/train.parquet").height == 3
    assert "configs:" in (out / "README.md").read_text()
    with pytest.raises(StoreError, match="holds something already"):
        write_export(store, "latest", "verl", out)
    with pytest.raises(StoreError, match="did you mean 'verl'"):
        write_export(store, "latest", "velr", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_readme_tells_rows_licences_and_the_start(store, tmp_path):
    text = (write_export(store, "latest", "trl", tmp_path / "out") / "README.md").read_text()
    assert "2 problems; licences: MIT." in text
    assert export.START["trl"] in text


def test_an_unended_thinking_has_no_answer_where_the_template_opened_it(store, tmp_path):
    """As the recorded samples show; OpenRLHF's prompts show it themselves."""
    own = Store.open(shutil.copytree(store.path, tmp_path / "own"))
    said = ["1/2, sure</think>\\boxed{1/2}", "hm, \\boxed{1/2}?</think>\\boxed{3}", "<think>odd</think>\\boxed{1/2}"]
    rows = [{"key": text, "problem_id": "a", "model": "m", "mode": "think", "text": text, "finish_reason": "stop"}
            for text in said]  # fmt: skip
    blank = dict.fromkeys(SCHEMAS["generations"])
    own.append("generations", pl.DataFrame([blank | row for row in rows], schema=SCHEMAS["generations"]))
    unended, ended = "maybe \\boxed{1/2}, let me check", "maybe\n</think>\n\\boxed{1/2}"
    for from_, expected in ((store, [1.0, 1.0]), (own, [0.0, 1.0])):
        out = write_export(from_, "latest", "trl", tmp_path / f"trl-{expected[0]}")
        messages = [[{"role": "assistant", "content": text}] for text in (unended, ended)]
        assert reward_of(out).accuracy(messages, ["1/2"] * 2, ["{}"] * 2) == expected
        out = write_export(from_, "latest", "verl", tmp_path / f"verl-{expected[0]}")
        assert [reward_of(out).compute_score("s", text, "1/2") for text in (unended, ended)] == expected
    label = '{"answer": "1/2", "policy": "{}"}'
    score = reward_of(write_export(store, "latest", "openrlhf", tmp_path / "openrlhf")).reward_func
    for prompt, expected in (("<model>", [1.0, 1.0]), ("<model><think>\n", [0.0, 1.0])):
        queries = [prompt + unended, prompt + ended]
        assert score(queries, [prompt] * 2, [label] * 2)["rewards"].tolist() == expected


def test_a_response_that_the_trainer_parsed():
    """TRL hands the thinking apart: what follows it is the answer, and an unended one has none."""
    parts = [{"reasoning_content": "\\boxed{4}?", "content": "\\boxed{5}"}, {"reasoning_content": "so \\boxed{5}"}]
    for opened in (False, True):
        assert export.grade(["5"] * 2, [[part] for part in parts], None, opened) == [1.0, 0.0]
