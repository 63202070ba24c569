"""Nothing that was sampled is lost to a kill, and nothing is there twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from assay.pipelines import generate, journal
from assay.pipelines.errors import StoreError
from assay.pipelines.store import Store

VERDICT = {"verifier": "v1", "status": "correct", "extracted": "½ \n\"", "reason": None}


def keys(store: Store) -> list[str]:
    return store.scan("verdicts").collect()["key"].to_list()


def journals(store: Store) -> list[Path]:
    return sorted((store.path / "journal" / "verdicts").glob("*.jsonl"))


def test_rows_become_one_part_and_the_journal_goes(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", create=True)
    with store.journal("verdicts") as rows:
        rows.add({"key": "a", **VERDICT})
        rows.add({"key": "b", **VERDICT})
        assert (keys(store), len(journals(store))) == ([], 1)
    assert (keys(store), journals(store)) == (["a", "b"], [])
    assert store.scan("verdicts").collect().row(0, named=True) == {"key": "a", **VERDICT}


def test_a_dead_writers_rows_are_taken_in_once_and_a_line_cut_off_is_left_out(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", create=True)
    writer = store.journal("verdicts")
    for key in "abc":
        writer.add({"key": key, **VERDICT})
    assert keys(Store.open(store.path)) == []  # its writer lives
    [file] = journals(store)
    left = file.read_bytes()
    writer.fold()
    for broken in (left, left[:-5], left.replace(b'"b"', b'"x"')):  # also a fold that was cut off before its end
        file.write_bytes(broken)
        assert keys(Store.open(store.path)) == ["a", "b", "c"]
        assert journals(store) == []
    other = Store.open(tmp_path / "other", create=True)
    for content, expected in ((left[:-5], ["a", "b"]), (left.replace(b'"b"', b'"x"'), ["a", "c"])):
        (other.path / "journal" / "verdicts").mkdir(parents=True, exist_ok=True)
        (other.path / "journal" / "verdicts" / file.name).write_bytes(content)
        other.recover()
        assert keys(other) == expected
        next((other.path / "verdicts").glob("*.parquet")).unlink()
    assert store.check() == other.check() == []


def test_long_runs_fold_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FOLD_ROWS", 3)
    store = Store.open(tmp_path / "s", create=True)
    with store.journal("verdicts") as rows:
        for number in range(7):
            rows.add({"key": str(number), **VERDICT})
        assert (len(keys(store)), len(journals(store))) == (6, 1)
    assert keys(store) == [str(number) for number in range(7)]


def test_a_full_disk_is_told_and_keeps_what_was_there(tmp_path: Path) -> None:
    with open("/dev/full", "wb", 0) as file, pytest.raises(StoreError, match=r"full: .*No space left.* Make room"):
        journal._write(file, b"line\n")


WORK = """
import os, random, signal, sys, time
import polars as pl
from assay.pipelines import generate, journal
from assay.pipelines.engines import Completion, Sampling
from assay.pipelines.store import Store

class Tokenizer:
    chat_template, name_or_path = "enable_thinking", "words"
    def apply_chat_template(self, messages, **_): return messages[0]["content"]
    def encode(self, text, **_): return [ord(c) for c in text]

class Slow:
    '''A model whose completion follows from the seed, finished in any order, one at a time; told, it stops at 22.'''
    name, fingerprint, max_model_len, tokenizer = "slow", "slow-1", 1000, Tokenizer()
    def __init__(self, tell=None): self.tell = tell
    def stream(self, requests):
        requests = list(requests)
        random.Random(os.getpid()).shuffle(requests)
        for done, r in enumerate(requests):
            if self.tell and done == 22: signal.pause()  # 110 kills never see the end of 2,500, on no machine
            chance = random.Random(r.seed)
            ids = [chance.randrange(10**5) for _ in range(chance.randrange(1, 40))]
            if self.tell:
                time.sleep(random.random() * 1e-3)
                self.tell(b"s")
            yield Completion(r.key, ids, [-chance.random() for _ in ids], f'"{ids[0]}" \\n \\u4e2d', "stop", 0.5)

def sample(path, tell=None):
    problems = pl.DataFrame({"id": [f"p{i}" for i in range(25)], "problem": [f"{i} + {i}" for i in range(25)]})
    journal.FOLD_ROWS = 16
    store = Store.open(path, create=True)
    return generate.sample(store, Slow(tell), problems, mode="think", samples=100, sampling=Sampling(max_tokens=40),
                           progress=tell and (lambda done, total, note: tell(b"d") if done else None))

generate.Plan.forecast = lambda plan, engine: "the plan"

def kill_one(path, chance):
    '''A run that is killed after a random number of steps; how many it had begun, and how many it had told of.'''
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        sample(path, lambda what: os.write(write, what))
        os._exit(0)
    os.close(write)
    seen, wanted = b"", chance.randrange(23)
    while len(seen) < wanted and (more := os.read(read, wanted - len(seen))):
        seen += more
    time.sleep(chance.random() * chance.choice([1e-4, 3e-3, 5e-2]))
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it was done before the kill"
    while more := os.read(read, 1000):
        seen += more
    os.close(read)
    return seen.count(b"s"), seen.count(b"d")
"""


def test_a_hundred_kills_lose_only_what_was_in_flight_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills at any step: opening, taking in what the last one left, planning, sampling, folding."""
    script = WORK + (
        "chance = random.Random(int(sys.argv[2]))\n"
        "import json; print(json.dumps([kill_one(sys.argv[1], chance) for _ in range(110)]))\n"
    )
    path = tmp_path / "killed"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), "1"],
        env=os.environ | {"POLARS_MAX_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    begun, told = (sum(counts) for counts in zip(*json.loads(done.stdout)))
    store = Store.open(path)
    recorded = store.scan("generations").collect()
    assert recorded["key"].n_unique() == recorded.height
    assert max(told, begun - 110) <= recorded.height <= begun < 2500
    assert told > 400
    assert store.check() == []
    for owner, name in ((generate.Plan, "forecast"), (journal, "FOLD_ROWS")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back what the work changes
    space: dict[str, object] = {}
    exec(WORK, space)
    whole = space["sample"](tmp_path / "whole")  # type: ignore[operator]
    rows = space["sample"](path)  # type: ignore[operator]
    assert rows.equals(whole)
    assert store.scan("generations").collect().sort("key").equals(whole.sort("key"))
    assert store.scan("generations").select(pl.len()).collect().item() == 2500
