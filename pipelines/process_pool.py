"""A pool of worker processes that can be killed, with a wall-clock deadline for every item.

Workers are fresh interpreters (nothing is forked, and the parent's `__main__` is not imported), started when an item
needs one. One JSON line goes in, one comes out. What is guarded: a worker that computes too long, also in C code, or
dies, is killed and replaced, and only its own item is lost; memory is limited; a worker ends when its parent does (on
Linux at once; elsewhere when idle, or by its processor-time limit). What is not: a request is trusted; this is no
sandbox.
"""

import contextlib
import ctypes
import importlib
import json
import logging
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from assay.pipelines.errors import AssayError

__all__ = ["ItemTimeout", "ProcessPool", "WorkerError"]

START_SECONDS = 600.0  # importing sympy is two seconds of processor time, minutes where many share it
STARVED_FACTOR = 10.0
MEMORY_BYTES = 4 << 30
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    "from assay.pipelines.process_pool import serve; serve(sys.argv[2], sys.argv[3], float(sys.argv[4]))"
)


class ItemTimeout(Exception):
    """The item passed its deadline, or its worker died over it; the worker was replaced."""


class WorkerError(AssayError):
    """Workers cannot be started at all."""


class ProcessPool:
    """`workers` processes that answer requests with `function` of `module` (and its `warm()` before the first).

    Safe to use from any thread. `submit` gives a future with the answer, or `ItemTimeout`, or `WorkerError`.
    """

    def __init__(self, module: str, function: str, workers: int, deadline_s: float) -> None:
        if workers < 1 or deadline_s <= 0:
            raise ValueError(f"workers={workers}, deadline_s={deadline_s}: both must be positive")
        self._target, self._workers, self._deadline = (module, function), workers, deadline_s
        self._items: queue.SimpleQueue[tuple[dict, Future] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock, self._waiting, self._closed = threading.Lock(), 0, False
        self._processes: set[_Worker] = set()

    def submit(self, request: dict[str, Any]) -> "Future[dict[str, Any]]":
        """Queue one JSON-like request; starts a worker when all are busy and fewer than `workers` run."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._closed:
                raise WorkerError("the verifier's pool is closed; open a new Verifier")
            self._waiting += 1
            if len(self._threads) < min(self._workers, self._waiting):
                thread = threading.Thread(target=self._manage, name="assay-worker", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._items.put((request, future))
        return future

    def processes(self) -> list[int]:
        """Process ids of the workers that run now."""
        return [worker.process.pid for worker in list(self._processes)]

    def close(self) -> None:
        """Kill every worker; items still waiting are cancelled."""
        with self._lock:
            self._closed = True
        for _ in self._threads:
            self._items.put(None)
        for worker in list(self._processes):
            worker.process.kill()  # only its own thread may close the pipes that it reads
        for thread in self._threads:
            thread.join()
        while not self._items.empty():
            if item := self._items.get():
                item[1].cancel()

    def _manage(self) -> None:
        worker = None
        while (item := self._items.get()) is not None:
            request, future = item
            if self._closed:
                future.cancel()
            elif future.set_running_or_notify_cancel():
                worker = self._serve_item(worker, request, future)
            with self._lock:
                self._waiting -= 1
        self._drop(worker)

    def _serve_item(self, worker: "_Worker | None", request: dict, future: Future) -> "_Worker | None":
        try:
            if worker is None or worker.process.poll() is not None:
                self._drop(worker)
                worker = self._start()
            future.set_result(worker.ask(request, self._deadline))
        except Exception as error:
            self._drop(worker)
            future.set_exception(error)
            return None
        return worker

    def _start(self) -> "_Worker":
        worker = _Worker(*self._target, self._deadline)
        self._processes.add(worker)
        if self._closed:
            worker.process.kill()
        worker.wait_ready()
        return worker

    def _drop(self, worker: "_Worker | None") -> None:
        if worker is not None:
            worker.kill()
            self._processes.discard(worker)


class _Worker:
    """One process and the pipes to it."""

    def __init__(self, module: str, function: str, deadline_s: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path), module, function, str(deadline_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._buffer = b""

    def wait_ready(self) -> None:
        try:
            ready = self._read_line(START_SECONDS)
        except ItemTimeout:
            ready = {"error": f"exit status {self.process.poll()}"}
        if "error" in ready:
            self.kill()
            raise WorkerError(
                f"verifier: a worker process cannot start ({ready['error']}); "
                "is math-verify installed in this environment?"
            )

    def ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        start, spent = time.perf_counter(), _processor_seconds(self.process.pid)[1]
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise ItemTimeout("the worker died") from error
        return {**self._read_line(deadline_s, spent), "seconds": time.perf_counter() - start}

    def _read_line(self, seconds: float, spent: float = 0.0) -> dict[str, Any]:
        """The next line. A worker that waits for a processor, and has not had its seconds yet, gets them."""
        assert self.process.stdout is not None
        start = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                elapsed = time.monotonic() - start
                if not selector.select(max(seconds - elapsed, 0.1)):
                    runnable, used = _processor_seconds(self.process.pid)
                    starved = runnable and used - spent < seconds and elapsed < STARVED_FACTOR * seconds
                    if not starved:
                        raise ItemTimeout(f"no answer within {seconds:g} s")
                    continue
                data = os.read(self.process.stdout.fileno(), 1 << 16)
                if not data:
                    raise ItemTimeout("the worker died")
                self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _processor_seconds(pid: int) -> tuple[bool, float]:
    """Whether a process wants a processor now, and the seconds it has had; (False, 0) where /proc is missing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False, 0.0
    return fields[0] == "R", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(module: str, function: str, deadline_s: float) -> None:
    """The worker's loop: read a line, answer it, until the parent closes the pipe or dies."""
    logging.disable(logging.WARNING)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _die_with_parent()
    try:
        target = importlib.import_module(module)
        target.warm()
        respond: Callable[[dict], dict] = getattr(target, function)
        ready: dict[str, Any] = {}
    except Exception as error:
        ready = {"error": repr(error)}
    print(json.dumps(ready), file=answers, flush=True)
    _limit_memory()
    for line in sys.stdin:
        _limit_processor_time(deadline_s)
        print(json.dumps(_respond(respond, json.loads(line))), file=answers, flush=True)
    os._exit(0)


def _respond(respond: Callable[[dict], dict], request: dict) -> dict[str, Any]:
    try:
        return respond(request)
    except (MemoryError, RecursionError) as error:
        return {"equal": False, "reason": "expression_too_large", "detail": type(error).__name__}
    except Exception as error:
        return {"equal": False, "reason": "comparison_failed", "detail": repr(error)[:200], "fault": repr(error)[:200]}


def _die_with_parent() -> None:
    """Ask Linux to kill this process when the thread that started it ends, even inside a call into C."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; a worker's thread lives as long as its pool


def _limit_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_processor_time(deadline_s: float) -> None:
    """The kernel ends this process when one item takes so long that even a living parent must have given up."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + deadline_s) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
