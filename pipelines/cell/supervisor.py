"""The cell's first process: it forks a program's processes, watches them and tells what became of them.

Jobs come over a Unix socket as one JSON message with open files (see `_FILES`), so that no text of a job is ever in
the memory that programs are forked from: a program cannot find the tests there. Each job's processes get namespaces of
their own, limits, a fresh `/tmp`, and are gone with all their descendants before the answer is sent.

Modes: `program` runs a script; `tests` loads the program in one process and runs the tests in another, which alone
says `passed`.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from . import isolation, program

__all__ = ["main"]

_FILES = ("code", "tests", "stdin", "stdout", "stderr")
_TICK_MS = 50
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CLOCK = os.sysconf("SC_CLK_TCK")
_WARM = (
    "bisect copy dataclasses decimal enum fractions functools heapq itertools math operator re string textwrap typing"
)


class Usage(NamedTuple):
    """Of a job's living processes: processor seconds, bytes, how many they are, how many want a processor or a disk."""

    seconds: float
    memory: int
    processes: int
    waiting: int


def main(control: int, config: str) -> None:
    """Shut this process in, say so, and serve jobs until the other end hangs up."""
    line = socket.socket(fileno=control)
    settings = json.loads(config)
    try:
        isolation.enter_cell(settings["binds"], settings["links"], settings["mounted"])
        _warm(settings["path"])
    except BaseException as error:
        line.send(json.dumps({"error": str(error) or repr(error)}).encode())
        os._exit(1)
    line.send(b'{"ready": true}')
    with contextlib.suppress(OSError, ValueError):
        while True:
            message, files, _, _ = socket.recv_fds(line, 1 << 16, len(_FILES))
            if not message:
                break
            answer = _serve(json.loads(message), dict(zip(_FILES, files)), line)
            for file in files:
                os.close(file)
            line.send(json.dumps(answer).encode())
    os._exit(0)


def _warm(path: list[str]) -> None:
    for name in _WARM.split():
        __import__(name)
    sys.path.extend(path)
    sys.argv = ["program.py"]
    import builtins

    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    for name in [name for name in sys.modules if name.split(".")[0] == "cell"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def _serve(job: dict[str, Any], files: dict[str, int], control: socket.socket) -> dict[str, Any]:
    start = time.monotonic()
    watch = _Watch(job, control)
    try:
        status = (_run_program if job["mode"] == "program" else _run_tests)(job, files, watch)
    except OSError as error:
        status = f"lost: {error}"
    finally:
        for run in watch.runs:
            run.kill()
    full = any(os.fstat(files[name]).st_size >= job["output"] for name in ("stdout", "stderr"))
    if full and not status.startswith("lost"):
        status = "output"
    return {"status": status, "seconds": time.monotonic() - start, "processor": sum(run.seconds for run in watch.runs)}


def _run_program(job: dict[str, Any], files: dict[str, int], watch: "_Watch") -> str:
    def body(report: program.Report) -> None:
        program.run_program(_text(files["code"]), report)

    return watch.outcome(watch.start(_Run(job, files, {files["code"]}, body)))


def _run_tests(job: dict[str, Any], files: dict[str, int], watch: "_Watch") -> str:
    def serve(report: program.Report) -> None:
        program.serve_program(_text(files["code"]), report, ours)

    def test(report: program.Report) -> None:
        program.run_tests(_text(files["tests"]), report, theirs)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        solution = watch.start(_Run(job, files, {files["code"], ours.fileno()}, serve))
        if (status := watch.outcome(solution)) != "loaded":
            return status
        tests = watch.start(_Run(job, files, {files["tests"], theirs.fileno()}, test))
    status = watch.outcome(tests)
    return watch.end(solution) if status == "ended" else status


def _text(file: int) -> str:
    text = os.pread(file, os.fstat(file).st_size, 0).decode("utf-8", "surrogatepass")
    os.close(file)
    return text


class _Run:
    """One process shut in, the first of its namespaces.

    `report` is what it says of itself, by a token, so that stray writes mean nothing; `ended` is its exit status
    (negative: a signal). Both are None while they are open; a report without the token is "". `seconds` is the
    processor time of the process and its descendants, once it has ended.
    """

    def __init__(
        self, job: dict[str, Any], files: dict[str, int], kept: set[int], body: Callable[[program.Report], None]
    ) -> None:
        self.report: str | None = None
        self.ended: int | None = None
        self.seconds = 0.0
        self._token = os.urandom(16).hex()
        self._reports, report = os.pipe()
        self.pid = isolation.fork_program()
        if not self.pid:
            _become(job, files, kept | {report}, body, lambda word: self._say(report, word))
        os.close(report)
        self._exit = os.pidfd_open(self.pid)

    def _say(self, report: int, word: str) -> None:
        if os.getpid() == 1:  # a copy that the program has forked comes to an end, too
            os.write(report, f"{self._token} {word}\n".encode())

    def open_ends(self) -> list[int]:
        return [file for file, word in ((self._reports, self.report), (self._exit, self.ended)) if word is None]

    def read(self, file: int) -> None:
        """Take in a report, or the end; reports first, since both may have come."""
        if file == self._exit:
            _, status, usage = os.wait4(self.pid, 0)
            self.ended, self.seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        else:
            token, _, word = os.read(file, 4096).decode("utf-8", "replace").partition(" ")
            self.report = word.partition("\n")[0] if token == self._token else ""

    def kill(self) -> None:
        """End the process and everything below it; returns when all are gone."""
        if self.ended is None:
            os.kill(self.pid, signal.SIGKILL)
            self.read(self._exit)
        os.close(self._reports)
        os.close(self._exit)


def _become(
    job: dict[str, Any], files: dict[str, int], kept: set[int], body: Callable[[program.Report], None],
    report: program.Report,
) -> None:  # fmt: skip
    """The forked process: only its own files stay open. Never returns."""
    try:
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(files[name], number)
        _close_all_but({0, 1, 2, *kept})
        limits = (job[name] for name in ("memory", "seconds", "processes", "files", "output", "disk"))
        isolation.confine(*limits)
    except BaseException as error:
        report(f"lost: {error}")
        os._exit(1)
    try:
        body(report)
    finally:
        os._exit(0)


def _close_all_but(kept: set[int]) -> None:
    low = 0
    for file in sorted(kept):
        if low < file:  # an empty range closes everything in Python 3.11
            os.closerange(low, file)
        low = file + 1
    os.closerange(low, 1 << 12)


class _Watch:
    """Waits for a job's processes and holds them, all together, to the job's limits."""

    def __init__(self, job: dict[str, Any], control: socket.socket) -> None:
        self.runs: list[_Run] = []
        self._job, self._control, self._start = job, control.fileno(), time.monotonic()

    def start(self, run: _Run) -> _Run:
        self.runs.append(run)
        return run

    def outcome(self, run: _Run) -> str:
        """What a process reports, or how it ended without a report, or the limit that was passed."""
        while not run.report and run.ended is None:
            if fault := self._wait():
                return fault
        return run.report or self.end(run)

    def end(self, run: _Run) -> str:
        """How a process ended."""
        while run.ended is None:
            if fault := self._wait():
                return fault
        if run.ended == -signal.SIGKILL:  # nothing inside can send it: the limit of processor time, or no memory left
            return "timeout" if time.monotonic() - self._start >= self._job["seconds"] else "memory"
        if run.ended < 0:
            return "crashed"
        return "exited"

    def _wait(self) -> str | None:
        poll = select.poll()
        poll.register(self._control, 0)
        open_ends = {file: run for run in self.runs for file in run.open_ends()}
        for file in open_ends:
            poll.register(file, select.POLLIN)
        events = poll.poll(_TICK_MS)
        for file, _ in events:
            if file == self._control:
                os._exit(1)
            open_ends[file].read(file)
        return None if events else self._passed_limit()

    def _passed_limit(self) -> str | None:
        job, usage, elapsed = self._job, self._usage(), time.monotonic() - self._start
        wall = job["wall"] * (job["starved"] if usage.waiting else 1)
        if usage.seconds > job["seconds"] or elapsed > wall:
            return "timeout"
        if usage.memory > job["memory"]:
            return "memory"
        return "processes" if usage.processes > job["processes"] else None

    def _usage(self) -> Usage:
        ours = {1, os.getpid()}
        found = [_usage_of(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in ours]
        return Usage(*map(sum, zip(*found))) if found else Usage(0, 0, 0, 0)


def _usage_of(pid: str) -> Usage:
    """Of one process and the children it has waited for; nothing when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return Usage(0, 0, 0, 0)
    return Usage(sum(map(int, fields[11:15])) / _CLOCK, (resident - shared) * _PAGE, 1, fields[0] in "RD")
