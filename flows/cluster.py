"""One plan over several machines: shares of its requests are Prefect tasks on a Ray cluster, each with an engine.

A share sends its completions back one by one, so the plan's own process records them as ever and needs no disk in
common with the others. When a worker dies, what its share had not sent yet is given out again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from assay.pipelines.deferred import DeferredEngine
from assay.pipelines.engines import BaseEngine, Completion, Engine, Request, Stream, check_lengths
from assay.pipelines.errors import AssayError, EngineError

__all__ = ["ClusterEngine"]

LOSSES = 5  # of one share
SHARES = 2  # a worker
Start = Callable[[], Engine]
_engines: dict[str, Engine] = {}


@task(name="share", cache_policy=NO_CACHE, persist_result=False, log_prints=False)
def _share(name: str, start: Start, requests: list[Request], back: Any) -> None:
    """Sample on whatever worker this runs; one that runs a second share has its engine already."""
    engine = _engines.get(name) or _engines.setdefault(name, start())
    for completion in engine.stream(requests):
        back.put(completion)


class ClusterEngine(DeferredEngine):
    """The engines that `start` makes on `workers` machines of a Ray cluster.

    Args:
        model, max_model_len: as for `DeferredEngine`; the workers find `model` under the same name.
        start: makes a worker's engine; sent to it by value.
        workers: engines at once.
        address: of the cluster, `ray://host:10001`; by default what `RAY_ADDRESS` names, or a cluster of this machine.
        resources: what Ray sets aside for an engine, such as `{"num_gpus": 1}`.

    Raises:
        EngineError: a share lost its worker five times, or its engine failed.
    """

    name = "ray"
    busy_seconds, sampled_tokens = 0.0, 0

    def __init__(
        self,
        model: str,
        max_model_len: int,
        start: Start,
        *,
        workers: int = 2,
        address: str | None = None,
        resources: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, max_model_len, start)
        self.workers, self.address, self.resources = workers, address, resources or {}

    def stream(self, requests: Sequence[Request]) -> Stream:
        """As the protocol says; the first engine starts with the first request."""
        check_lengths(requests, self.max_model_len)
        if not requests:
            return
        with self._cluster() as run:
            size = -(-len(requests) // (SHARES * self.workers))
            for place in range(0, len(requests), size):
                run.give(requests[place : place + size])
            began = time.perf_counter()
            for completion in run.completions():
                self.sampled_tokens += len(completion.token_ids)
                self.busy_seconds += time.perf_counter() - began
                yield completion
                began = time.perf_counter()

    def memory(self) -> str:
        """Where the model is."""
        return f"the model on {self.workers} workers of a Ray cluster"

    load_weights, close = BaseEngine.load_weights, BaseEngine.close  # the workers are Ray's to end

    @contextmanager
    def _cluster(self) -> Iterator[_Run]:
        from prefect.client.orchestration import get_client
        from prefect_ray import RayTaskRunner
        from prefect_ray.context import remote_options
        from ray.util.queue import Queue

        server = {"PREFECT_API_URL": str(get_client(sync_client=True).api_url)}  # also where it is a temporary one
        options = {"max_retries": 0, "runtime_env": {"env_vars": server}, **self.resources}
        with RayTaskRunner(self.address) as runner, remote_options(**options):
            back = Queue(actor_options={"num_cpus": 0})
            try:
                yield _Run(self, runner, back)
            finally:
                back.shutdown(force=True)


class _Run:
    """Shares given out, the completions that came back, and what is still owed."""

    def __init__(self, engine: ClusterEngine, runner: Any, back: Any) -> None:
        self.engine, self.runner, self.back = engine, runner, back
        self.owed: dict[str, Request] = {}
        self.shares: dict[Any, tuple[list[Request], int]] = {}

    def give(self, requests: Sequence[Request], losses: int = 0) -> None:
        """One share more."""
        self.owed |= {r.key: r for r in requests}
        about = {"name": self.engine.fingerprint, "start": self.engine._start, "requests": list(requests)}
        future = self.runner.submit(_share, parameters={**about, "back": self.back})
        self.shares[future] = list(requests), losses

    def completions(self) -> Iterator[Completion]:
        """What is owed, each once, as it comes."""
        while self.owed:
            ended = self._ended()  # asked before the queue is emptied: what an ended share sent is in it
            for completion in self._arrived():
                if self.owed.pop(completion.key, None):
                    yield completion
            for future in ended:
                self._settle(future)

    def _arrived(self) -> list[Completion]:
        if not (count := self.back.qsize()):
            time.sleep(0.05)
        return self.back.get_nowait_batch(count) if count else []

    def _ended(self) -> list[Any]:
        import ray

        refs = {future.wrapped_future: future for future in self.shares}
        ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
        return [refs[ref] for ref in ready]

    def _settle(self, future: Any) -> None:
        """A share has ended: of one that lost its worker, give out what it still owes."""
        requests, losses = self.shares.pop(future)
        future.wait()
        if future.state.is_failed():
            error = future.state.result(raise_on_failure=False)
            raise error if isinstance(error, AssayError) else EngineError(f"ray: an engine failed: {error!r}")
        left = [r for r in requests if r.key in self.owed]
        if left and losses + 1 >= LOSSES:
            raise EngineError(f"ray: {LOSSES} workers were lost one after another with the same share; see Ray's logs.")
        if left:
            self.give(left, losses + 1)
