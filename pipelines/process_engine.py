"""An engine in a process of its own: this one computes while it samples, and keeps its process group to itself."""

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

__all__ = ["ProcessEngine"]

OF_RANKS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
            "MASTER_PORT")  # fmt: skip


class ProcessEngine(DeferredEngine):
    """vLLM in a fresh process, started at once; requests, completions and weights go through a pipe, by value.

    Args:
        model, max_model_len: as for `VllmEngine`, which gets `settings` too.
        devices: what `CUDA_VISIBLE_DEVICES` is there; empty leaves it as it is here.

    Raises:
        EngineError: the process has ended, or the engine did not start (from the first call).
    """

    busy_seconds, sampled_tokens = 0.0, 0

    def __init__(self, model: str, *, max_model_len: int, devices: str = "", **settings: Any) -> None:
        start = partial(VllmEngine, model, max_model_len=max_model_len, **settings)
        super().__init__(model, max_model_len, start)
        self._pipe, theirs = get_context("spawn").Pipe()
        self.process = get_context("spawn").Process(target=_serve, args=(theirs, start, devices), daemon=True)
        self.process.start()
        theirs.close()

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
        """End the process."""
        self._pipe.close()
        self.process.kill()
        self.process.join()

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            self._pipe.send_bytes(pickle.dumps((method, arguments)))
            answer = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise EngineError(f"{self.model}: the sampler's process has ended; what it said stands above.") from error
        if isinstance(answer, AssayError):
            raise answer
        value, self.busy_seconds, self.sampled_tokens = answer
        return value


def _serve(pipe: Connection, start: Callable[[], Engine], devices: str) -> None:
    """Answer until the other end is closed; an error that the user can mend is an answer too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in OF_RANKS:
        os.environ.pop(name, None)
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    engine = _try(start)
    while True:
        try:
            question = pickle.loads(pipe.recv_bytes())
        except EOFError:
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
