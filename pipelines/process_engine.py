"""An engine in another process: this one computes while it samples, and each has a process group to itself."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from assay.pipelines.deferred import DeferredEngine
from assay.pipelines.engines import Engine, Request, Stream, VllmEngine
from assay.pipelines.errors import AssayError, EngineError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PipeEngine", "ProcessEngine", "serve"]

OF_RANKS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
            "MASTER_PORT")  # fmt: skip


class PipeEngine(DeferredEngine):
    """The engine that `serve` has at the other end of a pipe; requests, completions and weights go by value.

    Raises:
        EngineError: the other end is closed; from every method that asks it.
    """

    busy_seconds, sampled_tokens = 0.0, 0

    def __init__(self, model: str, max_model_len: int, pipe: Connection) -> None:
        super().__init__(model, max_model_len, lambda: self)
        self.pipe = pipe

    def stream(self, requests: Sequence[Request]) -> Stream:
        """As the protocol says, but all at the end."""
        if requests:
            yield from self._ask("generate", list(requests))

    def memory(self) -> str:
        """As the protocol says."""
        return self._ask("memory")

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], fingerprint: str) -> None:
        """As the protocol says; the pipe carries copies, so a weight may change as soon as this returns."""
        self._ask("load_weights", [(name, weight.detach().cpu()) for name, weight in weights], fingerprint)
        self.fingerprint = fingerprint

    def close(self) -> None:
        """The other end goes on without this one."""
        self.pipe.close()

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            self.pipe.send_bytes(pickle.dumps((method, arguments)))
            answer = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise EngineError(f"{self.model}: the sampler's process has ended; what it said stands above.") from error
        if isinstance(answer, AssayError):
            raise answer
        value, self.busy_seconds, self.sampled_tokens = answer
        return value


class ProcessEngine(PipeEngine):
    """vLLM in a fresh process, started at once.

    Args:
        model, max_model_len: as for `VllmEngine`, which gets `settings` too.
        devices: what `CUDA_VISIBLE_DEVICES` is there; empty leaves it as it is here.

    Raises:
        EngineError: the engine did not start; from the first call.
    """

    def __init__(self, model: str, *, max_model_len: int, devices: str = "", **settings: Any) -> None:
        start = partial(VllmEngine, model, max_model_len=max_model_len, **settings)
        ours, theirs = get_context("spawn").Pipe()
        super().__init__(model, max_model_len, ours)
        self.process = get_context("spawn").Process(target=_start, args=(theirs, start, devices), daemon=True)
        self.process.start()
        theirs.close()

    def close(self) -> None:
        """End the process."""
        super().close()
        self.process.kill()
        self.process.join()


def _start(pipe: Connection, start: Callable[[], Engine], devices: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in OF_RANKS:
        os.environ.pop(name, None)
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    serve(pipe, _try(start))


def serve(pipe: Connection, engine: Engine | AssayError) -> None:
    """Answer until the other end is closed; an error that the user can mend is an answer too."""
    while True:
        try:
            question = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        answer = engine if isinstance(engine, AssayError) else _try(partial(_answer, engine, *question))
        pipe.send_bytes(pickle.dumps(answer))


def _answer(engine: Engine, method: str, arguments: tuple[Any, ...]) -> tuple[Any, float, int]:
    return getattr(engine, method)(*arguments), engine.busy_seconds, engine.sampled_tokens


def _try(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except AssayError as error:
        return error
