"""The pool with small real workers: this module is their target too."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from assay.pipelines.process_pool import ItemTimeout, ProcessPool, WorkerError

TARGET = """
import os, time

def warm():
    pass

def work(request):
    if request["do"] == "sleep":
        time.sleep(60)
    if request["do"] == "spin":
        10 ** (10 ** 9)  # one call into C that no signal handler of Python interrupts
    if request["do"] == "die":
        os._exit(3)
    if request["do"] == "print":
        print("noise on standard output")
    if request["do"] == "raise":
        raise ValueError("inside")
    return {"pid": os.getpid(), "echo": request["do"]}
"""


@pytest.fixture
def target(tmp_path, monkeypatch):
    (tmp_path / "pool_target.py").write_text(TARGET)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "pool_target"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone_within(pids, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    return not any(map(alive, pids))


@pytest.mark.parametrize("trouble", ["sleep", "spin", "die"])
def test_a_hung_or_dead_worker_loses_only_its_own_item(target, trouble):
    pool = ProcessPool(target, "work", workers=1, deadline_s=1.0)
    try:
        before = pool.submit({"do": "a"}).result()["pid"]
        futures = [pool.submit({"do": do}) for do in ("b", trouble, "c")]
        assert futures[0].result()["echo"] == "b"
        with pytest.raises(ItemTimeout):
            futures[1].result(timeout=30)
        after = futures[2].result()
        assert after["echo"] == "c"
        assert after["pid"] != before
        assert gone_within([before], 2.0)
    finally:
        pool.close()


def test_no_worker_before_an_item_and_none_after_close(target):
    pool = ProcessPool(target, "work", workers=2, deadline_s=5.0)
    assert pool.processes() == []
    pool.submit({"do": "a"}).result()
    pids = pool.processes()
    assert len(pids) == 1  # one item wants one worker
    pool.close()
    assert gone_within(pids, 2.0)
    with pytest.raises(WorkerError, match="closed"):
        pool.submit({"do": "a"})


def test_close_while_an_item_runs_does_not_wait_for_it(target):
    pool = ProcessPool(target, "work", workers=1, deadline_s=60.0)
    pool.submit({"do": "a"}).result()
    stuck, waiting = pool.submit({"do": "sleep"}), pool.submit({"do": "a"})
    time.sleep(0.2)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 5
    assert stuck.done()
    assert waiting.done()


def test_output_and_exceptions_of_the_target_do_not_break_the_protocol(target):
    pool = ProcessPool(target, "work", workers=1, deadline_s=5.0)
    try:
        assert pool.submit({"do": "print"}).result()["echo"] == "print"
        assert pool.submit({"do": "raise"}).result()["reason"] == "comparison_failed"
        assert pool.submit({"do": "a"}).result()["echo"] == "a"
    finally:
        pool.close()


def test_many_threads_share_the_pool(target):
    pool = ProcessPool(target, "work", workers=2, deadline_s=10.0)
    got: dict[int, str] = {}

    def use(i: int) -> None:
        got[i] = pool.submit({"do": f"item {i}"}).result()["echo"]

    try:
        threads = [threading.Thread(target=use, args=(i,)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {i: f"item {i}" for i in range(20)}
    finally:
        pool.close()


def test_a_target_that_cannot_start_is_an_error_with_advice(capfd):
    pool = ProcessPool("no_such_module_here", "work", workers=1, deadline_s=1.0)
    try:
        with pytest.raises(WorkerError, match="no_such_module_here"):
            pool.submit({"do": "a"}).result()
    finally:
        pool.close()


@pytest.mark.parametrize("state", ["idle", "computing"])
def test_workers_end_when_their_parent_is_killed(target, tmp_path, state):
    do = {"idle": "a", "computing": "spin"}[state]
    script = f"""
import sys, time; sys.path.insert(0, {str(tmp_path)!r})
from assay.pipelines.process_pool import ProcessPool
pool = ProcessPool("pool_target", "work", workers=1, deadline_s=60.0)
pool.submit({{"do": "a"}}).result()
future = pool.submit({{"do": {do!r}}})
print(pool.processes()[0], flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        assert alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
        assert gone_within([pid], 5.0)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
