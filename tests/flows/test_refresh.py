"""Refreshes after the first: the commands of docs/refresh.md, what they sample again, and what they never do."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from assay.flows import cli, deploy, refresh
from assay.flows.reasoner import phrase, sample_chain
from assay.pipelines import snapshot as snapshots
from assay.pipelines.engines import Engine
from assay.pipelines.recipe import read_refresh
from assay.pipelines.store import Store

DOCS = Path(__file__).parents[2] / "docs" / "refresh.md"
Make = Callable[[], Engine]


def chains(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Sums of the kind that the small reasoner was taught, all different."""
    rng, found = random.Random(seed), {}
    while len(found) < count:
        chain = sample_chain(rng, rng.randint(2, 4))
        found.setdefault(chain.expression, {"question": phrase(chain, rng), "gold": str(chain.answer)})
    return list(found.values())


def write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipe of the docs, with 100 sums and a benchmark that is one of them."""
    toml = re.search(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert toml
    (tmp_path / "pool.toml").write_text(toml[1])
    write(tmp_path / "sums.jsonl", chains(100))
    write(tmp_path / "exam.jsonl", chains(1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def started(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets the command use the session's engine; a list that grows whenever an engine would start."""
    starts: list[str] = []
    run = refresh.run_refresh

    def start() -> Engine:
        starts.append("engine")
        return engine

    monkeypatch.setattr(refresh, "run_refresh", lambda recipe, **more: run(recipe, engine=start, **more))
    return starts


def assay(command: str) -> str:
    done = CliRunner().invoke(cli.app, shlex.split(command)[1:])
    assert done.exit_code == 0, (command, done.output, done.exception)
    return str(done.output)


def tokens(store: Store) -> int:
    return int(store.scan("generations").select(pl.col("token_ids").list.len().sum()).collect().item())


@pytest.mark.slow
def test_the_commands_of_the_docs(place: Path, started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `assay` command of the page, in its order; serving is followed to the deployment that it registers."""
    served: list[Any] = []
    monkeypatch.setattr(deploy, "serve", lambda d: served.append(deploy._registered(d, "pool")))
    said: dict[str, str] = {}
    for command in re.findall(r"^assay .*$", DOCS.read_text(), re.MULTILINE):
        said[command] = assay(filled(command, place))
    assert [len(d.schedules) for d in served] == [1, 1, 0]
    assert str(served[0].schedules[0].schedule.timezone) == "Europe/Berlin"
    store = Store.open(place / "store")
    plan, banded = said["assay refresh pool.toml --dry-run"], said["assay diff BEFORE AFTER -s store"]
    assert re.search(r"sums +100 problems, 100 new", plan)
    assert re.search(r"think +400 samples at most, 0 recorded", plan)
    assert "difficulty" in said["assay why ID -s store"]
    assert re.search(r"out .*kept.*difficulty: too_(hard|easy)", banded)
    assert started == ["engine"]  # the new band took none
    assert store.scan("generations").collect().height == 99 * 4
    for name in ("trl", "verl", "openrlhf", "hub"):
        assert (place / f"for-{name}" / "README.md").is_file()
    again = assay("assay refresh pool.toml --dry-run")
    assert re.search(r"think +4 samples at most, 396 recorded", again)  # of the benchmark's own item


def filled(command: str, place: Path) -> str:
    """The command with its placeholders filled in."""
    if not re.search(r"\b(ID|BEFORE|AFTER)\b", command):
        return command
    store = Store.open(place / "store")
    ids = store.scan("snapshots").sort("time").collect()["id"]
    names = {"ID": store.scan("problems").collect()["id"][-1], "BEFORE": ids[0], "AFTER": ids[-1]}
    return re.sub(r"\b(ID|BEFORE|AFTER)\b", lambda found: str(names[found[0]]), command)


@pytest.mark.slow
def test_one_new_row_in_a_hundred_costs_under_five_hundredths(place: Path, started: list[str]) -> None:
    recipe = read_refresh(place / "pool.toml")
    refresh.run_refresh(recipe)
    store = Store.open(recipe.store)
    first = tokens(store)
    write(place / "sums.jsonl", chains(101))
    refresh.run_refresh(recipe)
    assert 0 < tokens(store) - first < 0.05 * first
    assert len(started) == 2
    new = store.scan("generations").collect()["problem_id"].unique()
    assert len(new) == 100


@pytest.mark.slow
def test_a_changed_filter_reads_what_is_recorded(place: Path, engine: Engine) -> None:
    """No engine starts: what makes one raises."""

    def never() -> Engine:
        raise AssertionError("an engine was started")

    recipe = read_refresh(place / "pool.toml")
    before = refresh.run_refresh(recipe, engine=lambda: engine)
    store = Store.open(recipe.store)
    sampled = tokens(store)
    for change in ("difficulty.band=[0.5,1]", "difficulty.inclusive='neither'", "answer.max_chars=1",
                   "ladder=['format','difficulty']", "selection.size=5"):  # fmt: skip
        changed = read_refresh(place / "pool.toml", [change])
        if "ladder" in change:  # lets the benchmark's item through, which was never sampled
            with pytest.raises(AssertionError, match="an engine was started"):
                refresh.run_refresh(changed, engine=never)
            continue
        made = refresh.run_refresh(changed, engine=never)
        assert made.recipe_hash != before.recipe_hash
    assert tokens(store) == sampled
    kept = pl.read_parquet(snapshots.folder_of(store, snapshots.find(store)) / "data/train.parquet")
    assert kept["pass_rate"].is_between(0, 0.99).all()
