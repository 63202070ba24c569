"""One job at a time: a lock file that says who holds it, and that a dead owner no longer holds.

The owner touches its file every `BEAT` seconds. On the same machine an owner is dead when its process has ended; on
another one, whose processes cannot be looked at, when it has not touched the file for `SILENCE` seconds.
"""

import fcntl
import getpass
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from assay.pipelines.errors import StoreError

__all__ = ["describe", "hold", "in_words", "is_alive", "read_owner"]


BEAT = 20.0
SILENCE = 300.0


@contextmanager
def hold(path: Path, wait: float = 0.0, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Holds the lock file `path`. A dead owner's lock is taken over.

    Args:
        wait: seconds to wait for a live owner.
        say: told who holds the lock, once for each owner, while waiting.

    Raises:
        StoreError: a live owner still held it after `wait`; named with its age.
    """
    owner = _myself()
    _take(path, owner, time.monotonic() + wait, say)
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, owner["token"], done), daemon=True, name=f"holds {path.name}")
    beat.start()
    try:
        yield
    finally:
        done.set()
        with _guard(path):
            if read_owner(path).get("token") == owner["token"]:
                path.unlink()


def _take(path: Path, owner: dict[str, Any], until: float, say: Callable[[str], None] | None) -> None:
    told = None
    while holder := _holder(path, owner):
        if time.monotonic() >= until:
            wait = "Wait until it ends; if you know that it has, delete the file"
            raise StoreError(f"{path}: held by {describe(holder)}. {wait}.")
        if say and holder.get("token") != told:
            told = holder.get("token")
            say(f"waiting for {path}, held by {describe(holder)}")
        time.sleep(min(1.0, max(0.0, until - time.monotonic())))


def _holder(path: Path, owner: dict[str, Any]) -> dict[str, Any] | None:
    """The live holder; None when the file was free and is now the owner's."""
    with _guard(path):
        holder = read_owner(path)
        if is_alive(holder, _silence(path)):
            return holder
        temporary = path.with_name(f".{path.name}-{owner['token']}.tmp")
        temporary.write_text(json.dumps(owner))
        temporary.rename(path)
    return None


def _beat(path: Path, token: str, done: threading.Event) -> None:
    while not done.wait(BEAT):
        with suppress(OSError), _guard(path):  # a store that was deleted meanwhile
            if read_owner(path).get("token") == token:
                os.utime(path)


def _silence(path: Path) -> float:
    """Seconds since the owner touched the file, by the clock of the disk that holds it."""
    guard = path.with_name(".guard")
    try:
        os.utime(guard)
        return guard.stat().st_mtime - path.stat().st_mtime
    except OSError:
        return 0.0


def read_owner(path: Path) -> dict[str, Any]:
    """The owner in the lock file; an empty dict when there is none or it cannot be read."""
    try:
        owner = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def is_alive(owner: dict[str, Any], silence: float = 0.0) -> bool:
    """Whether the owner runs: here, its process id and its start time both match, as ids are reused.

    Args:
        silence: seconds since it touched its file; decides about an owner on another host.
    """
    if not isinstance(owner.get("pid"), int):
        return False
    if owner.get("host") != socket.gethostname():
        return silence < SILENCE
    started = _started(owner["pid"])
    return started is not None and started == owner.get("started")


def describe(owner: dict[str, Any]) -> str:
    """`ada@host, process 17, for 5 min`."""
    if "pid" not in owner:
        return "an unknown owner"
    age = in_words(time.time() - float(owner.get("time", 0)))
    return f"{owner.get('owner')}@{owner.get('host')}, process {owner['pid']}, for {age}"


def in_words(seconds: float) -> str:
    """`42 s`, `5 min`, `3 h` or `2 days`, rounded down."""
    seconds = max(0, int(seconds))
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size or (seconds >= size and unit != "days"):
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


@contextmanager
def _guard(path: Path) -> Iterator[None]:
    """Makes look-then-take one act; the kernel frees it with the process."""
    with path.with_name(".guard").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _myself() -> dict[str, Any]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry
        user = str(os.getuid())
    pid = os.getpid()
    process = {"owner": user, "host": socket.gethostname(), "pid": pid, "started": _started(pid)}
    return process | {"time": time.time(), "token": uuid4().hex}


def _started(pid: int) -> int | None:
    """A process's start in clock ticks since boot (proc(5), field 22); None when ended, also as a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
