"""One job at a time: a lock file that says who holds it, and that a dead owner no longer holds."""

import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from assay.pipelines.errors import StoreError

__all__ = ["describe", "hold", "in_words", "is_alive", "read_owner"]


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Holds the lock file `path`. A lock whose process has ended is taken over.

    An owner on another host cannot be looked at and counts as alive; the message says which file to delete.

    Raises:
        StoreError: a live owner, named with its age.
    """
    owner = _myself()
    with _guard(path):
        if path.exists() and is_alive(holder := read_owner(path)):
            wait = "Wait until it ends; if you know that it has, delete the file"
            raise StoreError(f"{path}: held by {describe(holder)}. {wait}.")
        temporary = path.with_name(f".{path.name}-{owner['token']}.tmp")
        temporary.write_text(json.dumps(owner))
        temporary.rename(path)
    try:
        yield
    finally:
        with _guard(path):
            if read_owner(path).get("token") == owner["token"]:
                path.unlink()


def read_owner(path: Path) -> dict[str, Any]:
    """The owner in the lock file; an empty dict when there is none or it cannot be read."""
    try:
        owner = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def is_alive(owner: dict[str, Any]) -> bool:
    """Whether the owner runs: its process id and its start time both match, as ids are reused."""
    if not isinstance(owner.get("pid"), int):
        return False
    if owner.get("host") != socket.gethostname():
        return True
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
