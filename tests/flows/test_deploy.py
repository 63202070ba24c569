"""Schedules against a real Prefect server: a served deployment, a work pool's worker, what they publish and say."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from assay.flows.deploy import CHANGED, Deployment, write_yaml
from assay.flows.watch import Watch
from assay.pipelines import snapshot as snapshots
from assay.pipelines.curation import refresh
from assay.pipelines.errors import RecipeError
from assay.pipelines.recipe import read_refresh
from assay.pipelines.store import Store

RECIPE = """
name = "Small pool"
store = "store"
ladder = ["format", "answer", "contamination"]
[[sources]]
name = "sums"
path = "sums.jsonl"
problem = "q"
answer = "a"
[[benchmarks]]
name = "exam"
path = "exam.jsonl"
problem = "q"
answer = "a"
"""
THINGS = ("apples in a basket", "boats at dawn", "coins under a floor", "keys on the ring", "lamps along a street",
          "pages of this book", "stones in his pocket", "trees by the river", "birds on a wire")  # fmt: skip
ROWS = [{"q": f"How many {thing} are left when {i} of {3 * i} are gone?", "a": str(2 * i)}
        for i, thing in enumerate(THINGS, 11)]  # fmt: skip
PATIENCE = 300.0
"""Seconds; only a machine under load needs more than a few of them."""


def write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A recipe over six rows, none of which is in the benchmark."""
    (tmp_path / "pool.toml").write_text(RECIPE)
    write(tmp_path / "sums.jsonl", ROWS[:6])
    write(tmp_path / "exam.jsonl", ROWS[6:8])
    return tmp_path


@dataclass
class Server:
    """A Prefect server and the environment of those that talk to it."""

    url: str
    environment: dict[str, str]

    def find(self, what: str, **body: Any) -> list[dict[str, Any]]:
        answer = httpx.post(f"{self.url}/{what}/filter", json=body, timeout=60).json()
        return answer["events"] if what == "events" else answer

    def start(self, *command: str, cwd: Path) -> subprocess.Popen[str]:
        log = (cwd / f"{Path(command[1]).name}-{time.time_ns()}.log").open("w")
        return subprocess.Popen(
            [sys.executable, "-m", *command], cwd=cwd, env=self.environment, stdout=log, stderr=log, text=True
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("prefect")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"HOME": home, "API_URL": f"http://127.0.0.1:{port}/api", "LOGGING_LEVEL": "INFO",
                "RUNNER_POLL_FREQUENCY": 1, "WORKER_QUERY_SECONDS": 1, "SERVER_ANALYTICS_ENABLED": "false"}  # fmt: skip
    environment = os.environ | {f"PREFECT_{name}": str(value) for name, value in settings.items()}
    found = Server(f"http://127.0.0.1:{port}/api", environment)
    process = found.start("prefect", "server", "start", "--port", str(port), cwd=home)
    try:
        wait_for(lambda: httpx.get(f"{found.url}/health", timeout=5).is_success, "the server")
        yield found
    finally:
        end(process)


def wait_for(ask: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(httpx.TransportError):  # a busy server answers the next time
            if found := ask():
                return found
        time.sleep(0.3)
    raise AssertionError(f"{what}: not within {seconds:.0f} s")


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def completed(server: Server, deployment: str) -> list[dict[str, Any]]:
    return server.find(
        "flow_runs",
        deployments={"name": {"any_": [deployment]}},
        flow_runs={"state": {"type": {"any_": ["COMPLETED"]}}},
    )


@pytest.mark.slow(first=True)
def test_a_changed_source_starts_a_run_that_waits_publishes_and_alarms(server: Server, place: Path) -> None:
    """Served by the command itself. Of three new rows two are the benchmark's: contaminated 0 -> 2/9, kept 1 -> 7/9."""
    recipe = read_refresh(place / "pool.toml")
    store = Store.open(recipe.store, create=True)
    before = refresh(store, recipe)
    write(place / "sums.jsonl", ROWS)
    with store.lock("refresh"):
        process = server.start("assay.flows.cli", "deploy", "pool.toml", "--on-change", cwd=place)
        try:
            said = wait_for(lambda: [m for m in messages(server) if "held by" in m], "a run that waits")
        except BaseException:
            end(process)
            raise
    try:
        assert f"process {os.getpid()}, for " in said[0]
        (run,) = wait_for(lambda: completed(server, "small-pool"), "a completed run")
        assert not [m for m in messages(server) if "ERROR" in m]
        after = snapshots.load(store)
        assert after.id != before.id
        assert after.funnel.rows()[-1] == ("contamination", 9, 7, '{"exact": 2}')
        check_artifacts(server, run["id"], before.id, after.id)
        (event,) = wait_for(lambda: drift_events(server), "the event")
        assert event["resource"]["prefect.resource.id"] == "assay.dataset.small-pool"
        assert event["payload"]["previous"] == before.id
        found = {d["measure"]: (d["before"], d["after"], d["limit"]) for d in event["payload"]["drift"]}
        assert found == {"kept": (1.0, 7 / 9, 0.1), "contaminated": (0.0, pytest.approx(2 / 9), 0.02)}
        resource = ("--resource-id", "assay.dataset.small-pool")
        emit = server.start("prefect", "events", "emit", CHANGED, *resource, cwd=place)
        assert emit.wait(PATIENCE) == 0
        wait_for(lambda: len(completed(server, "small-pool")) == 2, "a run that the event starts")
    finally:
        end(process)


def messages(server: Server) -> list[str]:
    return [log["message"] for log in server.find("logs", sort="TIMESTAMP_ASC")]


def drift_events(server: Server) -> list[dict[str, Any]]:
    since, until = (datetime.now(UTC) + timedelta(hours=h) for h in (-1, 1))
    when = {"since": since.isoformat(), "until": until.isoformat()}
    return server.find("events", filter={"event": {"name": ["assay.refresh.drift"]}, "occurred": when})


def check_artifacts(server: Server, run: str, before: str, after: str) -> None:
    found = {a["key"]: a for a in server.find("artifacts") if a["flow_run_id"] == run}
    assert set(found) == {f"small-pool-{n}" for n in ("funnel", "difference", "pass-rates", "card", "snapshot")}
    table = json.loads(found["small-pool-funnel"]["data"])
    assert table[-1] == {"filter": "contamination", "rows_in": 9, "rows_out": 7, "reasons": "exact 2"}
    difference = found["small-pool-difference"]["data"]
    assert f"From {before} to {after}: 1 problems changed" in difference
    assert "| in | not in the pool | kept | 1 |" in difference
    assert "No pass rates" in found["small-pool-pass-rates"]["data"]
    assert f"snapshot {after}" in found["small-pool-snapshot"]["data"]


@pytest.mark.slow
def test_a_work_pools_worker_runs_the_schedule(server: Server, place: Path) -> None:
    """`prefect.yaml` written, registered by `prefect deploy`, and fired by the server."""
    write_yaml(Deployment(place / "pool.toml", ("name='nightly'",), interval=10), place / "prefect.yaml", "team")
    pool = {"name": "team", "type": "process"}
    httpx.post(f"{server.url}/work_pools/", json=pool, timeout=60).raise_for_status()
    worker = server.start("prefect", "worker", "start", "--pool", "team", "--limit", "1", cwd=place)
    try:
        register = server.start("prefect", "--no-prompt", "deploy", "--all", cwd=place)
        assert register.wait(PATIENCE) == 0
        runs = wait_for(lambda: completed(server, "nightly"), "a completed run")
        assert runs[0]["work_pool_name"] == "team"
        assert runs[0]["auto_scheduled"]
        made = snapshots.load(Store.open(place / "store"))
        assert made.recipe["name"] == "nightly"
        assert made.funnel.rows()[-1][:3] == ("contamination", 6, 6)
    finally:
        end(worker)


def test_the_yaml_is_a_teams_to_change(place: Path) -> None:
    file = place / "prefect.yaml"
    write_yaml(Deployment(place / "pool.toml", ("answer.max_chars=9",), cron="0 3 * * *", timezone="Asia/Tokyo"),
               file, "team")  # fmt: skip
    found = yaml.safe_load(file.read_text())
    (entry,) = found["deployments"]
    assert (entry["name"], entry["entrypoint"]) == ("small-pool", "assay.flows.deploy.scheduled_refresh")
    assert entry["parameters"] == {"recipe": "pool.toml", "overrides": ["answer.max_chars=9"], "no_model": False}
    assert entry["schedules"] == [{"cron": "0 3 * * *", "timezone": "Asia/Tokyo"}]
    assert entry["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    assert entry["work_pool"] == {"name": "team"}
    (pull,) = found["pull"]
    assert pull["prefect.deployments.steps.set_working_directory"] == {"directory": str(place)}
    with pytest.raises(RecipeError, match="is there already"):
        write_yaml(Deployment(place / "pool.toml", interval=9), file, "team")
    write_yaml(Deployment(place / "pool.toml", on_change=True), place / "other.yaml", "team")
    (entry,) = yaml.safe_load((place / "other.yaml").read_text())["deployments"]
    resource = {"prefect.resource.id": "assay.dataset.small-pool"}
    assert entry["triggers"] == [{"enabled": True, "expect": ["assay.sources.changed"], "match": resource}]


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({}, "one of --cron, --interval and --on-change"),
        ({"cron": "0 3 * * *", "on_change": True}, "one of --cron, --interval and --on-change"),
        ({"cron": "0 3 * *"}, 'Such as --cron "0 3 '),
        ({"cron": "0 3 * * *", "timezone": "Europe/Berlim"}, "Europe/Berlim"),
        ({"interval": 0}, "give seconds above 0"),
    ],
)
def test_a_schedule_that_says_when_is_needed(when: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        Deployment(Path("pool.toml"), **when)


def test_a_watch_tells_each_change_once_and_when_it_is_whole(place: Path) -> None:
    recipe, told = read_refresh(place / "pool.toml"), []
    watch = Watch(place / "pool.toml", lambda: recipe, lambda: told.append(1))
    assert [watch.look(), watch.look(), watch.look()] == [False, True, False]  # no snapshot yet
    write(place / "sums.jsonl", ROWS[:7])
    assert not watch.look()  # perhaps still being written
    write(place / "sums.jsonl", ROWS)
    assert [watch.look(), watch.look(), watch.look()] == [False, True, False]
    (place / "exam.jsonl").unlink()
    assert not watch.look()
    assert len(told) == 2


def test_a_watch_knows_what_was_refreshed_before_it_began(place: Path) -> None:
    recipe = read_refresh(place / "pool.toml")
    refresh(Store.open(recipe.store, create=True), recipe)
    watch = Watch(place / "pool.toml", lambda: recipe, lambda: None)
    assert [watch.look(), watch.look()] == [False, False]
    os.utime(place / "sums.jsonl", (time.time() + 5,) * 2)
    assert [watch.look(), watch.look()] == [False, True]


def test_a_watch_tries_again_when_a_run_could_not_be_started(place: Path) -> None:
    recipe, failures, stop = read_refresh(place / "pool.toml"), [], threading.Event()

    def start() -> None:
        if len(failures) < 2:
            raise OSError("no server")
        stop.set()

    Watch(place / "pool.toml", lambda: recipe, start).forever(0.01, stop, failures.append)
    assert [str(error) for error in failures] == ["no server"] * 2
