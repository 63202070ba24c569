"""Waiting for a lock, and locks of other machines; threads stand for processes, since a lock knows no difference."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from assay.pipelines import locking
from assay.pipelines.errors import StoreError


def elsewhere(path: Path, silent: float) -> None:
    """A lock of another host that was last touched `silent` seconds ago."""
    with locking.hold(path):
        owner = locking.read_owner(path)
    path.write_text(json.dumps(owner | {"host": "elsewhere", "owner": "ada", "time": time.time() - 7300}))
    os.utime(path, (time.time() - silent,) * 2)


def test_a_waiting_job_is_told_the_holder_once_and_goes_on_when_it_is_free(tmp_path):
    path, said, free = tmp_path / "refresh.lock", [], threading.Event()

    def hold() -> None:
        with locking.hold(path):
            free.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    while not path.exists():
        time.sleep(0.01)
    threading.Timer(1.5, free.set).start()
    with locking.hold(path, wait=20, say=said.append):
        assert free.is_set()
    holder.join()
    assert len(said) == 1
    assert said[0].startswith(f"waiting for {path}, held by ")
    assert f"process {os.getpid()}" in said[0]


def test_waiting_ends(tmp_path):
    path = tmp_path / "refresh.lock"
    with locking.hold(path):
        began = time.monotonic()
        with pytest.raises(StoreError, match=f"process {os.getpid()}"), locking.hold(path, wait=0.3):
            pass
        assert 0.3 <= time.monotonic() - began < 5


def test_another_hosts_lock_is_taken_over_when_it_has_been_silent(tmp_path):
    path = tmp_path / "refresh.lock"
    elsewhere(path, silent=locking.SILENCE - 30)
    with pytest.raises(StoreError, match=r"ada@elsewhere.*for 2 h"), locking.hold(path):
        pass
    os.utime(path, (time.time() - locking.SILENCE - 30,) * 2)
    with locking.hold(path):
        assert locking.read_owner(path)["host"] != "elsewhere"


def test_the_owner_touches_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(locking, "BEAT", 0.05)
    path = tmp_path / "refresh.lock"
    with locking.hold(path):
        os.utime(path, (0, 0))
        time.sleep(0.5)
        assert path.stat().st_mtime > time.time() - 60
