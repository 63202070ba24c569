"""Programs that nobody has read, run where they can harm nothing.

    run_python("print(input()[::-1])", stdin="abc").stdout          # "cba\\n"
    run_tests("def f(x): return x + 1", "assert f(1) == 2").status   # "passed"

A program gets processes of its own in namespaces of its own: no network, no other process in sight, a private `/tmp`
and `/proc`, nothing else writable, an empty environment, limits on everything that can be used up, and a filter on
system calls. `bwrap` builds the outer wall where it is installed, plain namespaces else; where neither works,
`SandboxError` says why, and nothing is run. A supervisor inside the wall forks a warm interpreter for each program.

Statuses: `passed`; `failed` (an exception, which stderr holds, or a failed test); `exited` (it ended itself before its
end: `sys.exit`, `os._exit`); `timeout`, `memory`, `output`, `processes` (a limit); `crashed` (a signal); `lost` (the
supervisor failed and was replaced; the item says nothing about the program).

`run_tests` has tests judge a program from another process: the program sees the arguments of each call and nothing of
the tests, and what it gives back is decoded as plain data (`cell/remote.py`). So a program cannot skip its tests, patch
what they use, answer every comparison with yes, or forge the verdict.

Not protected from: a fault of the kernel; programs that measure time to learn about others on the machine; a program
that answers what it was not asked to compute, when its tests are few; in `run_python`, a program that digs the token
of its own completion out of its own memory (`passed` there says no more than that the script came to its end). The
Python installation, numpy and `/usr` can be read.
"""

import atexit
import contextlib
import json
import os
import queue
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from assay.pipelines.errors import SandboxError

__all__ = ["BACKENDS", "Execution", "Job", "Limits", "Sandbox", "run_python", "run_tests", "shared_sandbox"]

BACKENDS = ("bwrap", "namespaces")
PACKAGES = ("numpy", "numpy.libs")
"""What programs can import beside the standard library; no more, so that verdicts do not hang on what is installed."""
START_SECONDS = 60.0
STARVED_FACTOR = 10.0
GRACE_SECONDS = 30.0  # for a supervisor to end a job whose time is up
_ENVIRONMENT = {"LANG": "C.UTF-8", "HOME": "/tmp", "TMPDIR": "/tmp", "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0",
                "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip
_CELL = Path(__file__).parent / "cell"
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from cell.supervisor import main; del sys.path[0];"
    "main(int(sys.argv[2]), sys.argv[3])"
)


class Limits(BaseModel):
    """What one program may use. All of its processes together, unless said otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: float = Field(default=5.0, gt=0)
    """Processor time."""
    wall_seconds: float = Field(default=15.0, gt=0)
    """Time on the clock; ten times as much for a program that waits for a processor and has not had its `seconds`."""
    memory_mb: int = Field(default=1024, ge=64)
    """Memory; also the address space of each process."""
    processes: int = Field(default=32, ge=1)
    """Processes and threads."""
    open_files: int = Field(default=64, ge=16)
    """Open files of each process."""
    output_mb: int = Field(default=8, ge=1)
    """Standard output, standard error, and any one file."""
    disk_mb: int = Field(default=64, ge=1)
    """All files under /tmp."""


class Execution(NamedTuple):
    """What became of a program; `seconds` on the clock, and `processor_seconds` of all its processes."""

    status: str
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    processor_seconds: float = 0.0


class Job(NamedTuple):
    """A program, with tests that judge it or None to run it as a script."""

    code: str
    tests: str | None = None
    stdin: str = ""


class Sandbox:
    """Cells that run programs, `workers` at a time; started when needed, usable from any thread.

    Args:
        workers: programs at a time.
        backend: one of `BACKENDS`, or None for the first that works.

    Raises:
        SandboxError: this machine isolates no programs (from the first call that runs one).
    """

    def __init__(self, workers: int = 2, backend: str | None = None) -> None:
        if workers < 1 or backend not in (None, *BACKENDS):
            raise ValueError(f"workers={workers}, backend={backend!r}: at least one worker; backends: {BACKENDS}")
        self.workers, self.backend = workers, backend
        self._idle: queue.LifoQueue[_Cell | None] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._choosing, self._closed = threading.Lock(), False

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the cells; programs that still run come to their end first."""
        if not self._closed:
            self._closed = True
            for _ in range(self.workers):
                if cell := self._idle.get():
                    cell.kill()

    def run(self, job: Job, limits: Limits | None = None) -> Execution:
        """Run one program."""
        if self._closed:
            raise SandboxError("this sandbox is closed; open a new one")
        cell = self._idle.get()
        try:
            cell = cell or self._start()
            execution = cell.run(job, limits or Limits())
            if execution.status == "lost":
                cell.kill()
                cell = None
            return execution
        finally:
            self._idle.put(cell)

    def run_many(self, jobs: Sequence[Job], limits: Limits | None = None) -> list[Execution]:
        """Run programs, `workers` at a time; results in the jobs' order."""
        with ThreadPoolExecutor(self.workers) as threads:
            return list(threads.map(lambda job: self.run(job, limits), jobs))

    def _start(self) -> "_Cell":
        with self._choosing:
            reasons = []
            for backend in [self.backend] if self.backend else BACKENDS:
                try:
                    cell = _Cell(backend)
                except OSError as error:
                    reasons.append(f"{backend}: {error}")
                else:
                    self.backend = backend
                    return cell
        raise SandboxError(
            f"programs cannot be isolated on this machine, so none was run ({'; '.join(reasons)}). Install bubblewrap, "
            "or allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone; in a "
            "container: its seccomp profile and an unmasked /proc)."
        )


class _Cell:
    """A supervisor behind its wall. Raises OSError when it cannot be started."""

    def __init__(self, backend: str) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, _memory_file() as errors:
            self._process = subprocess.Popen(
                _command(backend, theirs.fileno()), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                pass_fds=[theirs.fileno()], start_new_session=True, cwd="/",
                env=_ENVIRONMENT,
            )  # fmt: skip
            theirs.close()
            reply = self._receive(START_SECONDS) or {"error": ""}
            trial = self.run(Job("pass"), Limits()) if "ready" in reply else None
            if trial is None or trial.status != "passed":
                self.kill()
                why = trial.stderr if trial else reply["error"] or _read(errors).strip()
                raise OSError(why or f"exit status {self._process.returncode}")

    def run(self, job: Job, limits: Limits) -> Execution:
        with contextlib.ExitStack() as stack:
            texts = (job.code, job.tests or "", job.stdin)
            files = [stack.enter_context(_memory_file(text)) for text in (*texts, "", "")]
            message = {
                "mode": "program" if job.tests is None else "tests", "seconds": limits.seconds,
                "wall": limits.wall_seconds, "memory": limits.memory_mb << 20, "processes": limits.processes,
                "files": limits.open_files, "output": limits.output_mb << 20, "disk": limits.disk_mb << 20,
                "starved": STARVED_FACTOR,
            }  # fmt: skip
            reply: dict[str, Any] | None = None
            with contextlib.suppress(OSError):
                socket.send_fds(self._line, [json.dumps(message).encode()], files)
                reply = self._receive(STARVED_FACTOR * limits.wall_seconds + GRACE_SECONDS)
            reply = reply or {"status": "lost: the supervisor died", "seconds": 0.0, "processor": 0.0}
            status, _, why = reply["status"].partition(": ")
            return Execution(status, _read(files[3]), _read(files[4]) + why, reply["seconds"], reply["processor"])

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """The supervisor's next word; None when it died or says nothing in time."""
        self._line.settimeout(seconds)
        with contextlib.suppress(OSError):
            if data := self._line.recv(1 << 16):
                return json.loads(data)
        return None

    def kill(self) -> None:
        """End the supervisor and all that it runs."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        self._line.close()


@contextlib.contextmanager
def _memory_file(text: str = "") -> Iterator[int]:
    file = os.memfd_create("assay")
    try:
        data = text.encode("utf-8", "surrogatepass")
        while data:
            data = data[os.write(file, data) :]
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def _read(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode("utf-8", "replace")


def _command(backend: str, control: int) -> list[str]:
    """The supervisor's command line; with bwrap it starts behind the wall, else it builds the wall itself."""
    python, packages = os.path.realpath(sys.executable), Path(sysconfig.get_path("platlib"))
    system = [f"/{name}" for name in ("bin", "lib", "lib64") if os.path.isdir(f"/{name}")]
    folders = ["/usr", *(name for name in system if not os.path.islink(name))]
    folders += [path for path in (sys.base_prefix, os.path.realpath(sys.base_prefix)) if path[:5] != "/usr/"]
    # The packages get a place of their own: an environment below /tmp would be hidden by the private /tmp.
    binds = {path: path for path in folders}
    binds |= {f"/packages/{name}": str(packages / name) for name in PACKAGES if (packages / name).is_dir()}
    links = {n: os.readlink(n) for n in system if os.path.islink(n)}
    settings = json.dumps({"binds": binds, "links": links, "mounted": backend == "bwrap", "path": ["/packages"]})
    if backend == "namespaces":
        return [python, *_FLAGS, _BOOT, str(_CELL.parent), str(control), settings]
    wall = [shutil.which("bwrap") or "bwrap", *_bwrap(binds, links)]
    return [*wall, python, *_FLAGS, _BOOT, "/cell", str(control), settings]


def _bwrap(binds: dict[str, str], links: dict[str, str]) -> list[str]:
    """The wall that `cell.isolation` builds without bwrap, in bwrap's words."""
    wall = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid():
        wall += ["--unshare-user"]
    else:
        wall += [part for name in ("SYS_ADMIN", "SETUID", "SETGID") for part in ("--cap-add", f"CAP_{name}")]
    for inside, outside in {**binds, "/cell/cell": str(_CELL)}.items():
        for parent in reversed(Path(inside).parents[:-1]):  # bwrap would close them to others as they are outside
            wall += ["--perms", "0755", "--dir", str(parent)]
        wall += ["--ro-bind", outside, inside]
    wall += ["--perms", "0755", "--dir", "/dev"]
    for place, target in {**links, "/dev/shm": "/tmp", "/dev/fd": "/proc/self/fd"}.items():
        wall += ["--symlink", target, place]
    for name in ("null", "zero", "full", "random", "urandom"):
        wall += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    return [*wall, "--proc", "/proc", "--dir", "/tmp", "--remount-ro", "/"]


_FLAGS = ["-S", "-s", "-P", "-B", "-X", "utf8", "-c"]
_shared: Sandbox | None = None
_sharing = threading.Lock()


def shared_sandbox() -> Sandbox:
    """One sandbox for the whole process, of as many workers as it has processors; ended with it."""
    global _shared
    with _sharing:
        if _shared is None:
            _shared = Sandbox(workers=len(os.sched_getaffinity(0)))
            atexit.register(_shared.close)
        return _shared


def run_python(code: str, stdin: str = "", limits: Limits | None = None) -> Execution:
    """Run a script in the shared sandbox. Raises SandboxError where programs cannot be isolated."""
    return shared_sandbox().run(Job(code, None, stdin), limits)


def run_tests(code: str, tests: str, limits: Limits | None = None) -> Execution:
    """Have tests judge a program in the shared sandbox; `passed` when they came to their end.

    Names that the tests do not define are the program's, also by `from solution import name`; functions `test...`
    that they define and do not call are called. Raises SandboxError where programs cannot be isolated.
    """
    return shared_sandbox().run(Job(code, tests), limits)
