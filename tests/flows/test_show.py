"""Reading a run's rollouts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assay.flows.show import find_run, pick, show
from assay.pipelines.errors import StoreError
from assay.pipelines.store import SCHEMAS, Store


def rollout(i: int, **changes: Any) -> dict[str, Any]:
    plain = {"run": "r-1", "step": i, "problem_id": f"p{i}", "sample": 0, "prompt": f"Q{i}", "completion": "\\boxed{7}",
             "reward": 1.0, "advantage": 0.5, "status": "correct", "tokens": 10, "truncated": False,
             "weights_version": 0}  # fmt: skip
    return {**plain, **changes}


ROWS = [
    *(rollout(i) for i in range(6)),
    rollout(6, status="wrong", reward=0.0, completion="\\boxed{1}"),
    rollout(7, status="wrong", reward=-1.0, completion="\\boxed{2}"),
    rollout(8, status="wrong", reward=1.5, completion="\\boxed{3}"),
    rollout(9, completion="\\boxed{8}"),
    rollout(10, status="timeout", reward=float("nan"), completion="\\boxed{9**9**9}"),
    rollout(11, status="truncated", reward=float("nan"), truncated=True, completion="and so"),
    rollout(12, tokens=400),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "s", create=True)
    for i, name in enumerate(("r-1", "other")):
        row = {"run": name, "kind": "train", "config": "{}", "model": "m", "time": datetime(2026, 1, 1 + i)}
        store.append("runs", pl.DataFrame([row], schema=SCHEMAS["runs"]))
    store.append("rollouts", pl.DataFrame(ROWS, schema=SCHEMAS["rollouts"]))
    return store


def test_each_kind_finds_its_own() -> None:
    picked = pick(pl.DataFrame(ROWS, schema=SCHEMAS["rollouts"]), {f"p{i}": "7" for i in range(13)}, each=1)
    assert {title: frame["problem_id"].to_list() for title, frame in picked.items()} == {
        "best": ["p12"],
        "worst": ["p7"],
        "right, but not by another reading": ["p9"],
        "wrong, and paid": ["p8"],
        "no verdict": ["p10"],
        "cut by the limit": ["p11"],
        "much longer than usual": ["p12"],
    }


def test_the_page(store: Store) -> None:
    text = show(store, "r-", each=1)
    assert text.startswith("r-1: 13 rollouts of steps 0 to 12; correct 61.5%")
    assert "--- worst (step 7, p7) wrong, reward -1, advantage 0.5, 10 tokens\nQ7   [gold unknown]\n\\boxed{2}" in text
    assert "p7" not in show(store, "r-1", step=6)


def test_which_run(store: Store) -> None:
    assert find_run(store, "latest") == "other"
    with pytest.raises(StoreError, match="0 runs begin with 'x'; runs: r-1, other"):
        find_run(store, "x")
    with pytest.raises(StoreError, match="run other has no rollouts"):
        show(store, "other")
