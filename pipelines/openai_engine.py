"""Sampling on servers that speak the OpenAI completions API and return token ids, such as `vllm serve`.

Prompts go out as token ids and completions come back as token ids, each with its own seed, so a sample is the same
whichever server it came from. Work waits in one queue; every server has `concurrency` takers, so a slow or busy one
takes less. A server that does not answer is left out until it does, and its requests go back into the queue.

Start a server with `--logprobs-mode processed_logprobs`, else log-probabilities are those before temperature, top-p and
top-k, and with `--generation-config vllm`, else the model's own limits apply to what a request does not set.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.pipelines.engines import BaseEngine, Completion, Request, Stream, check_lengths, model_fingerprint
from assay.pipelines.errors import EngineError, ModelError
from assay.pipelines.models import resolve

if TYPE_CHECKING:
    import httpx

__all__ = ["OpenAIEngine"]

ATTEMPTS = 8  # of one request, those that never reached a server not counted
LONGEST_PAUSE = 30.0
CHECK_SECONDS = 2.0
PASSING = (408, 409, 425, 429, 500, 502, 503, 504)


@dataclass(eq=False)
class _Server:
    """`down_since` is None while it answers; `up` says so to the takers."""

    url: str
    model: str
    up: asyncio.Event = field(default_factory=asyncio.Event)
    down_since: float | None = None


@dataclass
class _Job:
    request: Request
    attempts: int = 0
    fault: str = ""


class OpenAIEngine(BaseEngine):
    """Completions from one or several servers of the same model.

    Args:
        model: a folder or Hub id, for the tokenizer and the fingerprint; the servers must serve it by this name, by
            its last part, or from a folder of that name.
        urls: addresses, `http://host:8000` or with a path such as `/v1`.
        max_model_len: prompt and completion together, tokens; a server's own limit counts where it is lower.
        concurrency: requests in flight on each server.
        timeout_s: longest wait for one completion.
        patience_s: how long to wait while no server answers at all.
        key: name of the environment variable that holds the servers' key; it goes into no message and no file.

    Raises:
        EngineError: no server answers, one serves another model, or the key's variable is not set.
    """

    name = "openai"
    busy_seconds, sampled_tokens = 0.0, 0

    def __init__(
        self,
        model: str | Path,
        urls: Sequence[str],
        *,
        max_model_len: int = 8192,
        concurrency: int = 64,
        timeout_s: float = 1800.0,
        patience_s: float = 120.0,
        key: str | None = None,
    ) -> None:
        from transformers import AutoTokenizer

        folder = resolve(model)
        self.concurrency, self.timeout_s, self.patience_s, self._key = concurrency, timeout_s, patience_s, key
        self.fingerprint = model_fingerprint(folder) if Path(folder).is_dir() else folder
        self._found = _find(urls, {str(model), folder, Path(folder).name}, self._headers())
        self.max_model_len = min([max_model_len, *(limit for _, limit in self._found.values() if limit)])
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise ModelError(f"{folder}: no tokenizer: {error} Give a folder in the Hugging Face layout.") from None

    def stream(self, requests: Sequence[Request]) -> Stream:
        """As the protocol says.

        Raises:
            EngineError: a prompt leaves no room; a server refuses a request; one fails eight times; no server answers
                for `patience_s`. What was yielded before stays valid.
        """
        check_lengths(requests, self.max_model_len)
        servers = [_Server(url, name) for url, (name, _) in self._found.items()]
        with asyncio.Runner() as runner:
            run = _Run(self, servers, requests)
            runner.run(run.start())
            try:
                for _ in requests:
                    began = time.perf_counter()
                    completion = runner.run(run.next())
                    self.busy_seconds += time.perf_counter() - began
                    self.sampled_tokens += len(completion.token_ids)
                    yield completion
            finally:
                runner.run(run.stop())

    def memory(self) -> str:
        """Where the model is."""
        return f"the model on {len(self._found)} servers, {self.concurrency} requests in flight on each"

    def _headers(self) -> dict[str, str]:
        if self._key is None:
            return {}
        if not os.environ.get(self._key):
            raise EngineError(f"openai: the environment variable {self._key} is not set; put the servers' key there.")
        return {"Authorization": f"Bearer {os.environ[self._key]}"}

    def _body(self, request: Request, model: str) -> dict[str, Any]:
        """Everything that a server might fill in from the model's own generation config is said."""
        s = request.sampling
        room = self.max_model_len - len(request.prompt_ids)
        return {"model": model, "prompt": list(request.prompt_ids), "max_tokens": min(s.max_tokens, room),
                "temperature": s.temperature, "top_p": s.top_p, "top_k": s.top_k, "min_p": 0.0,
                "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
                "seed": request.seed % 2**63, "logprobs": 0, "return_token_ids": True}  # fmt: skip

    def _completion(self, request: Request, choice: dict[str, Any], seconds: float) -> Completion:
        ids, found = choice.get("token_ids"), choice.get("logprobs") or {}
        if ids is None or len(found.get("token_logprobs") or ()) != len(ids):
            raise EngineError("openai: the server returns no token ids or log-probabilities; use vLLM 0.10.2 or newer.")
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Completion(request.key, ids, found["token_logprobs"], text, choice["finish_reason"], seconds)

    def _without_key(self, text: str) -> str:
        key = os.environ.get(self._key or "")
        return text.replace(key, "***") if key else text


class _Run:
    """One batch: jobs in a queue, takers for every server, finished completions in another queue."""

    def __init__(self, engine: OpenAIEngine, servers: list[_Server], requests: Sequence[Request]) -> None:
        self.engine, self.servers = engine, servers
        self.jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self.results: asyncio.Queue[Completion | EngineError] = asyncio.Queue()
        self.tasks: set[asyncio.Task[None]] = set()
        for request in requests:
            self.jobs.put_nowait(_Job(request))

    async def start(self) -> None:
        import httpx

        options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]  # tells of a machine that went away without a word
        if hasattr(socket, "TCP_KEEPIDLE"):
            names = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
            options += [(socket.IPPROTO_TCP, name, value) for name, value in names.items()]
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self.client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(limits=limits, socket_options=options),
            timeout=httpx.Timeout(self.engine.timeout_s, connect=10.0),
            headers=self.engine._headers(),
        )
        for server in self.servers:
            server.up.set()
            for _ in range(self.engine.concurrency):
                self._spawn(self._take(server))

    async def next(self) -> Completion:
        result = await self.results.get()
        if isinstance(result, EngineError):
            raise result
        return result

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.client.aclose()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _take(self, server: _Server) -> None:
        while True:
            await server.up.wait()
            job = await self.jobs.get()
            if not server.up.is_set():
                self.jobs.put_nowait(job)
                continue
            try:
                pause = await self._try(server, job)
            except Exception as error:  # also a fault of this module: a taker that dies silently would hang the run
                self.results.put_nowait(error if isinstance(error, EngineError) else EngineError(f"openai: {error!r}"))
                return
            await asyncio.sleep(pause)

    async def _try(self, server: _Server, job: _Job) -> float:
        """One attempt; returns the seconds that this taker should rest, so that a busy server gets less."""
        import httpx

        began = time.perf_counter()
        try:
            response = await self.client.post(
                f"{server.url}/completions", json=self.engine._body(job.request, server.model)
            )
        except httpx.TransportError as error:
            self._left_out(server)
            reached = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            self._again(job, f"{server.url}: {type(error).__name__} {error}", reached)
            return 0.0
        choice = _choice(response)
        if choice:
            completion = self.engine._completion(job.request, choice, time.perf_counter() - began)
            self.results.put_nowait(completion)
            return 0.0
        fault = self.engine._without_key(f"{server.url}: status {response.status_code}: {response.text[:300]}")
        if response.status_code not in (200, *PASSING):
            raise EngineError(f"openai: request {job.request.key} is refused by {fault}")
        self._again(job, fault)
        return _pause(job.attempts, response.headers.get("retry-after"))

    def _again(self, job: _Job, fault: str, reached: bool = True) -> None:
        job.attempts, job.fault = job.attempts + reached, fault
        if job.attempts >= ATTEMPTS:
            raise EngineError(
                f"openai: request {job.request.key} failed {ATTEMPTS} times, at last by {fault}. Completions so far "
                "are recorded; look at the server and start again."
            )
        self.jobs.put_nowait(job)

    def _left_out(self, server: _Server) -> None:
        if server.up.is_set():
            server.up.clear()
            server.down_since = time.monotonic()
            self._spawn(self._watch(server))

    async def _watch(self, server: _Server) -> None:
        """Until it answers again, or all have been silent for too long."""
        import httpx

        while True:
            try:
                if (await self.client.get(f"{server.url}/models", timeout=10.0)).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            silent = [time.monotonic() - s.down_since for s in self.servers if s.down_since is not None]
            if len(silent) == len(self.servers) and min(silent) > self.engine.patience_s:
                self.results.put_nowait(
                    EngineError(
                        f"openai: no server has answered for {self.engine.patience_s:.0f} s "
                        f"({', '.join(s.url for s in self.servers)}). Completions so far are recorded; start again "
                        "when one is up."
                    )
                )
                return
            await asyncio.sleep(CHECK_SECONDS)
        server.down_since = None
        server.up.set()


def _choice(response: httpx.Response) -> dict[str, Any] | None:
    """The completion; None where the server failed, or stopped before the end, as one that shuts down does."""
    try:
        choice = response.json()["choices"][0] if response.status_code == 200 else {}
    except (ValueError, LookupError, TypeError):
        return None
    return choice if choice.get("finish_reason") in ("stop", "length") else None


def _pause(attempts: int, told: str | None) -> float:
    """Seconds: what the server said, else 0.5, 1, 2, ... with a random part, so that the takers do not come at once."""
    if told and told.isdigit():
        return min(float(told), LONGEST_PAUSE)
    return min(0.5 * 2 ** (attempts - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.0)


def _find(urls: Sequence[str], names: set[str], headers: dict[str, str]) -> dict[str, tuple[str, int | None]]:
    """By address: the name of the model there and the server's limit of tokens; those that answer."""
    import httpx

    found, faults = {}, []
    for url in urls:
        address = url.rstrip("/") if httpx.URL(url).path.strip("/") else f"{url.rstrip('/')}/v1"
        try:
            models = httpx.get(f"{address}/models", headers=headers, timeout=10.0).raise_for_status().json()["data"]
        except (httpx.HTTPError, ValueError, LookupError) as error:
            faults.append(f"{address}: {error}")
            continue
        served = [m for m in models if {m["id"], m.get("root"), Path(m.get("root") or m["id"]).name} & names]
        if not served:
            raise EngineError(
                f"{address} serves {', '.join(m['id'] for m in models)}, not {min(names, key=len)}; start it with "
                f"`--served-model-name {min(names, key=len)}`, or change path in [model]."
            )
        found[address] = (served[0]["id"], served[0].get("max_model_len"))
    if not found:
        raise EngineError(f"openai: no server answers: {'; '.join(faults)}. Start one with `vllm serve`.")
    return found
