"""The engine over servers: against servers that misbehave on purpose, and against two real ones of which one dies."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest

from assay.pipelines import generate, openai_engine
from assay.pipelines.engines import Request, Sampling, VllmEngine
from assay.pipelines.errors import EngineError
from assay.pipelines.openai_engine import OpenAIEngine
from assay.pipelines.store import Store

Answer = tuple[int, dict[str, Any]]
ASKED = [Request(f"r{i}", [40 + i % 9, 41], Sampling(max_tokens=8), i) for i in range(40)]


def completion(seed: int) -> dict[str, Any]:
    ids = [random.Random(seed).randrange(5, 100) for _ in range(6)]
    choice = {"token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * 6}, "finish_reason": "stop"}
    return {"choices": [choice]}


class Patient(ThreadingHTTPServer):
    request_queue_size, daemon_threads = 256, True


class Server:
    """Answers by `behave(seed, how often this seed was asked)`, which returns status and body, or None for silence."""

    def __init__(self, behave: Callable[[int, int], Answer | None] | None = None, port: int = 0) -> None:
        self.behave = behave or (lambda seed, times: (200, completion(seed)))
        self.asked: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.busy = self.most = 0
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.say(200, {"data": [{"id": "reasoner", "root": "/models/reasoner", "max_model_len": 500}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                answer = outer.answer(body, self.headers.get("authorization"))
                if answer is None:
                    self.close_connection = True
                else:
                    self.say(*answer)

            def say(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.send_header("retry-after", "0")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = Patient(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, body: dict[str, Any], key: str | None) -> Answer | None:
        with self.lock:
            self.busy += 1
            self.most = max(self.most, self.busy)
            self.asked.append(body["seed"])
            self.bodies.append(body)
            self.keys.add(key)
            times = self.asked.count(body["seed"])
        try:
            time.sleep(0.002)
            return self.behave(body["seed"], times)
        finally:
            with self.lock:
                self.busy -= 1

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@contextmanager
def serving(*servers: Server) -> Iterator[None]:
    try:
        yield
    finally:
        for server in servers:
            server.close()


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_engine, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(openai_engine, "CHECK_SECONDS", 0.01)


def check(engine: OpenAIEngine) -> None:
    done = engine.generate(ASKED)
    assert [c.key for c in done] == [r.key for r in ASKED]
    assert [c.token_ids for c in done] == [completion(r.seed)["choices"][0]["token_ids"] for r in ASKED]


def test_faults_that_pass_are_tried_again_and_one_server_gets_no_more_than_its_share(reasoner: Path) -> None:
    faults: dict[int, Answer] = {
        0: (429, {"error": "slow down"}),
        1: (503, {}),
        2: (200, {"choices": [{"finish_reason": "abort"}]}),  # of a server that shuts down
        3: (200, {"choices": []}),
    }
    server = Server(lambda seed, times: faults[seed % 4] if times <= 2 else (200, completion(seed)))
    with serving(server):
        check(OpenAIEngine(reasoner, [server.url], concurrency=5))
    assert (len(server.asked), 1 < server.most <= 5) == (120, True)
    body = next(body for body in server.bodies if body["seed"] == 0)
    assert (body["prompt"], body["repetition_penalty"], body["min_p"], body["logprobs"]) == ([40, 41], 1.0, 0.0, 0)


def test_a_request_that_always_fails_ends_the_run_with_its_name(reasoner: Path) -> None:
    server = Server(lambda seed, times: (500, {"error": "out of memory"}) if seed == 7 else (200, completion(seed)))
    with serving(server), pytest.raises(EngineError, match=r"request r7 failed 8 times, at last by .*out of memory"):
        check(OpenAIEngine(reasoner, [server.url]))
    assert server.asked.count(7) == 8


def test_a_key_is_sent_and_told_to_nobody(
    reasoner: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("MY_KEY", "sk-secret-1")
    server = Server(lambda seed, times: (401, {"error": "invalid key sk-secret-1"}))
    with serving(server):
        engine = OpenAIEngine(reasoner, [server.url], key="MY_KEY")
        with pytest.raises(EngineError, match=r"request r.* is refused by .*401: .*invalid key") as caught:
            engine.generate(ASKED)
    assert server.keys == {"Bearer sk-secret-1"}
    assert "sk-secret" not in f"{caught.value} {vars(engine)} {caplog.text}"
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(EngineError, match="variable MY_KEY is not set"):
        OpenAIEngine(reasoner, [server.url], key="MY_KEY")


def test_a_server_that_hangs_loses_its_requests_to_the_other(reasoner: Path) -> None:
    hangs = Server(lambda seed, times: time.sleep(5))  # type: ignore[func-returns-value]
    good = Server()
    with serving(good):
        check(OpenAIEngine(reasoner, [hangs.url, good.url], concurrency=2, timeout_s=0.5))
    assert hangs.asked
    assert set(hangs.asked) <= set(good.asked)


def test_a_server_that_went_away_is_used_again_when_it_is_back(reasoner: Path) -> None:
    other = Server(lambda seed, times: (time.sleep(0.02), (200, completion(seed)))[1])
    first = Server()
    engine = OpenAIEngine(reasoner, [first.url, other.url], concurrency=1)
    first.close()
    back: list[Server] = []
    stream = engine.stream([*ASKED, *(Request(f"s{i}", [40], Sampling(), 1000 + i) for i in range(200))])
    for count, _ in enumerate(stream, 1):
        if count == 20:
            assert len(other.asked) >= 20
            back.append(Server(port=int(first.url.rsplit(":", 1)[1])))
    assert count == 240
    with serving(other, *back):
        assert len(back[0].asked) > 20
        assert len(back[0].asked) + len(other.asked) == 240


def test_no_server_at_all(reasoner: Path) -> None:
    server = Server()
    engine = OpenAIEngine(reasoner, [server.url], patience_s=0.2)
    server.close()
    with pytest.raises(EngineError, match=r"no server has answered for 0 s .*start again when one is up"):
        engine.generate(ASKED)
    with pytest.raises(EngineError, match=r"no server answers: .*vllm serve"):
        OpenAIEngine(reasoner, [server.url])


def test_another_model_or_one_without_token_ids_is_refused(reasoner: Path, tmp_path: Path) -> None:
    server = Server(lambda seed, times: (200, {"choices": [{"finish_reason": "stop", "text": "4"}]}))
    with serving(server):
        (tmp_path / "other").mkdir()
        with pytest.raises(EngineError, match="serves reasoner, not other; start it with `--served-model-name other`"):
            OpenAIEngine(tmp_path / "other", [server.url])
        engine = OpenAIEngine(reasoner, [server.url, server.url])
        assert engine.max_model_len == 500
        with pytest.raises(EngineError, match="returns no token ids"):
            engine.generate(ASKED)


def _start(reasoner: Path, port: int) -> subprocess.Popen[bytes]:
    options = "--dtype float32 --max-model-len 512 --enforce-eager --no-enable-chunked-prefill --max-num-batched-tokens"
    options += " 16384 --logprobs-mode processed_logprobs --generation-config vllm --distributed-executor-backend uni"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(reasoner)]
    more = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    more["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else the engine has a worker's process beside its own
    return subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port), *options.split()],
        env=os.environ | more,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait(servers: dict[int, subprocess.Popen[bytes]], seconds: float) -> None:
    until, waiting = time.monotonic() + seconds, set(servers)
    while waiting:
        assert time.monotonic() < until, "the servers did not start"
        for port in list(waiting):
            assert servers[port].poll() is None
            try:
                httpx.get(f"http://127.0.0.1:{port}/v1/models").raise_for_status()
                waiting.remove(port)
            except httpx.HTTPError:
                time.sleep(0.3)


@pytest.mark.slow(first=True)
def test_two_real_servers_one_dies_and_the_rows_are_those_of_the_engine_in_process(
    engine: VllmEngine, reasoner: Path, tmp_path: Path
) -> None:
    """Also the log-probabilities: the servers' are those of the distribution that was sampled from."""
    texts = [f"What is {i} + 7 - {i}?" for i in range(12)]
    problems = pl.DataFrame({"id": [f"p{i}" for i in range(12)], "problem": texts})
    asked = {"mode": "think", "samples": 16, "sampling": Sampling(temperature=0.8, max_tokens=64)}
    servers = {port: _start(reasoner, port) for port in (_free_port(), _free_port())}
    try:
        _wait(servers, 900)
        urls = [f"http://127.0.0.1:{port}" for port in servers]
        remote, killed = OpenAIEngine(reasoner, urls, concurrency=8), []

        def kill_one(done: int, total: int, note: str) -> None:
            if done == 40:
                victim = next(iter(servers.values()))
                os.killpg(victim.pid, 9)
                killed.append(victim.wait())

        rows = generate.sample(Store.open(tmp_path / "a", create=True), remote, problems, progress=kill_one, **asked)
    finally:
        for server in servers.values():
            if server.poll() is None:
                os.killpg(server.pid, 9)
                server.wait()
    assert killed == [-9]
    own = generate.sample(Store.open(tmp_path / "b", create=True), engine, problems, **asked)
    columns = ["key", "problem_id", "sample", "seed", "token_ids", "text", "finish_reason"]
    assert rows.select(columns).equals(own.select(columns))
    pairs = zip(rows["logprobs"].explode(), own["logprobs"].explode())
    assert max(abs(a - b) for a, b in pairs) < 1e-4
