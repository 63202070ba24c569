import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from datetime import datetime, timedelta, timezone

import polars as pl
import pytest

from assay.pipelines import locking
from assay.pipelines.errors import StoreError
from assay.pipelines.store import KEYS, SCHEMAS, VERSION, Store


def steps(values, run="r"):
    return pl.DataFrame({"run": run, "step": range(len(values)), "metric": "loss", "value": values})


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store", create=True)


def test_every_table_of_a_new_store_is_empty_and_typed(store):
    for table, schema in SCHEMAS.items():
        assert store.scan(table).collect().schema == schema
        assert store.sql(f"select * from {table}").columns == list(schema)
        assert set(KEYS[table]) <= set(schema)
    assert store.check() == []


def test_what_is_appended_comes_back_in_order_through_polars_and_sql(store):
    store.append("steps", steps([1.5, 2.5]))
    store.append("steps", steps([0.5]).select("value", "metric", "step", "run"))  # any column order
    again = Store.open(store.path)
    assert isinstance(again.scan("steps"), pl.LazyFrame)
    assert again.scan("steps").collect()["value"].to_list() == [1.5, 2.5, 0.5]
    assert again.sql("select sum(value) as total, count(*) as n from steps").rows() == [(4.5, 3)]


def test_lists_nulls_and_times_survive_and_are_cast(store):
    berlin = timezone(timedelta(hours=2))
    row = dict.fromkeys(SCHEMAS["problems"]) | {"id": "a", "options": ["1", None]}
    store.append("problems", pl.DataFrame([row | {"first_seen": datetime(2026, 1, 1, 12, tzinfo=berlin)}]))
    row = {"key": "k", "problem_id": "a", "model": "m", "mode": "think", "sample": 0, "seed": 2**62}
    row |= {"prompt_tokens": 3, "token_ids": [5, 6], "logprobs": [-0.5, None], "text": "é\0"}
    row |= {"finish_reason": "stop", "seconds": 1}
    store.append("generations", pl.DataFrame([row]))
    problem = store.scan("problems").collect().row(0, named=True)
    assert (problem["options"], problem["answer"]) == (["1", None], None)
    assert problem["first_seen"] == datetime(2026, 1, 1, 10)  # UTC
    assert store.scan("generations").collect().row(0, named=True) == row
    assert store.sql("select seed, token_ids[2] as t, text from generations").rows() == [(2**62, 6, "é\0")]


def test_an_empty_frame_writes_no_part(store):
    store.append("steps", steps([]).cast(SCHEMAS["steps"]))
    assert not list(store.path.glob("*/*.parquet"))


@pytest.mark.parametrize(
    ("frame", "word"),
    [
        (steps([1.0]).drop("metric"), "metric"),
        (steps([1.0]).with_columns(extra=1), "extra"),
        (steps([1.0]).with_columns(step=pl.lit("one")), "one"),
        (steps([1.0]).with_columns(run=pl.lit(None)), "null in run"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_and_nothing_is_written(store, frame, word):
    with pytest.raises(StoreError, match=word):
        store.append("steps", frame)
    assert store.scan("steps").collect().is_empty()


def test_numbers_too_large_for_their_column_are_refused(store):
    rows = pl.DataFrame({name: [None] for name in SCHEMAS["rollouts"]})
    rows = rows.with_columns(run=pl.lit("r"), step=0, problem_id=pl.lit("p"), sample=pl.lit(2**40))
    with pytest.raises(StoreError, match="rollouts"):
        store.append("rollouts", rows)


def test_an_unknown_table_is_named_with_the_nearest(store):
    with pytest.raises(StoreError, match=r"'problem'; did you mean 'problems'\?.*verdicts"):
        store.scan("problem")
    with pytest.raises(StoreError, match="no table"):
        store.append("x", pl.DataFrame())


@pytest.mark.parametrize("query", ["selekt 1", "select nothing from problems", "select * from problem", ""])
def test_sql_faults_are_user_errors(store, query):
    with pytest.raises(StoreError, match="sql"):
        store.sql(query)


def test_a_missing_store_names_its_neighbours(store, tmp_path):
    with pytest.raises(StoreError, match=r"stoer: no store here.*store"):
        Store.open(tmp_path / "stoer")


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match=r"thesis\.tex"):
        Store.open(tmp_path, create=True)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(StoreError, match="is a file"):
        Store.open(tmp_path / "thesis.tex", create=True)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (json.dumps({"version": VERSION + 1}), "Update assay"),
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"version": "x"}', "whole number"),
        ("", "damaged"),
    ],
)
def test_a_newer_or_damaged_version_file_is_refused(store, content, word):
    (store.path / "store.json").write_text(content)
    with pytest.raises(StoreError, match=word):
        Store.open(store.path)


def test_damaged_parts_are_named(store):
    for value in (1.0, 2.0, 3.0):
        store.append("steps", steps([value] * 500))
    cut, flipped, whole = sorted(store.path.glob("steps/*.parquet"))
    content = bytearray(flipped.read_bytes())
    content[8:40] = b"\xff" * 32
    flipped.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-5])
    findings = store.check()
    assert len(findings) == 2
    assert cut.name in findings[0]
    assert flipped.name in findings[1]
    with pytest.raises(StoreError, match=cut.name):
        Store.open(store.path).scan("steps")
    with pytest.raises(StoreError, match=cut.name):
        Store.open(store.path).sql("select 1 from steps")
    cut.unlink()
    flipped.unlink()
    assert Store.open(store.path).scan("steps").collect().height == 500
    assert whole.exists()


def test_a_part_of_another_schema_is_found_by_check(store):
    store.append("steps", steps([1.0]))
    (part,) = store.path.glob("steps/*.parquet")
    steps([1.0]).drop("metric").write_parquet(part)
    assert "metric is missing, not String" in store.check()[0]


def test_leftover_temporary_files_are_ignored_by_readers_and_reported(store):
    store.append("steps", steps([1.0]))
    (part,) = store.path.glob("steps/*.parquet")
    leftover = part.with_name(f".{part.name}-1234.tmp")
    leftover.write_bytes(part.read_bytes()[:50])
    assert store.scan("steps").collect().height == 1
    assert store.sql("select count(*) from steps").item() == 1
    assert [leftover.name in f for f in store.check()] == [True]


def test_a_full_or_read_only_disk_is_a_user_error_and_leaves_nothing(store):
    (store.path / "steps").write_text("in the way")  # root ignores permissions, so the folder cannot be made
    with pytest.raises(StoreError, match="cannot be written"):
        store.append("steps", steps([1.0]))
    assert not list(store.path.glob(".*.tmp"))


WRITER = """
    import sys, polars as pl
    from assay.pipelines.store import Store
    store, name, stop = Store.open(sys.argv[1], create=True), sys.argv[2], int(sys.argv[3])
    for i in range(stop):
        rows = pl.DataFrame({"run": [name] * 2000, "step": i, "metric": "m", "value": float(i)})
        store.append("steps", rows)
        print(i, flush=True)  # the acknowledgement
"""


def writer(store, name, stop=10**6):
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(store.path), name, str(stop)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_writers_lose_nothing_acknowledged_and_leave_nothing_half_written(store):
    rng, acknowledged = random.Random(0), {}
    for attempt in range(8):
        process = writer(store, f"w{attempt}")
        lines = [process.stdout.readline()]  # it has begun
        time.sleep(rng.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        lines += process.communicate()[0].splitlines()
        acknowledged[f"w{attempt}"] = {int(line) for line in lines if line.strip()}
    sizes = store.scan("steps").group_by("run", "step").len().collect()
    assert set(sizes["len"]) == {2000}  # no half part
    for run, seen in acknowledged.items():
        written = set(sizes.filter(run=run)["step"])
        assert seen <= written
        assert len(written - seen) <= 1  # at most the part that was being acknowledged
    assert all(".tmp" in finding for finding in store.check())


def test_processes_append_at_once_without_a_collision(store):
    processes = [writer(store, f"w{i}", stop=15) for i in range(3)]
    reads = [store.scan("steps").collect().height for _ in range(10)]
    assert [p.wait() for p in processes] == [0, 0, 0]
    for process in processes:
        process.stdout.close()
    assert all(n % 2000 == 0 for n in reads)
    assert store.scan("steps").collect().height == 3 * 15 * 2000
    assert store.check() == []
    for run in ("w0", "w1", "w2"):  # parts sort by time
        order = store.scan("steps").filter(run=run).collect()["step"]
        assert order.is_sorted()


def test_a_held_lock_names_its_owner_and_age(store):
    with store.lock("refresh"):
        owner = json.loads((store.path / "refresh.lock").read_text())
        assert owner["pid"] == os.getpid()
        with pytest.raises(StoreError, match=rf"process {os.getpid()}, for \d+ s"), store.lock("refresh"):
            pass
        with store.lock("train"):  # another job
            pass
    with store.lock("refresh"):  # free again
        pass
    assert not list(store.path.glob("*.lock"))


def test_a_lock_is_freed_when_its_job_fails(store):
    with pytest.raises(ZeroDivisionError), store.lock("refresh"):
        raise ZeroDivisionError
    with store.lock("refresh"):
        pass


HOLDER = """
    import sys, time
    from assay.pipelines.store import Store
    with Store.open(sys.argv[1]).lock("refresh"):
        print("held", flush=True)
        time.sleep(60)
"""


def test_a_dead_owners_lock_is_taken_over(store):
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(store.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(StoreError, match=f"process {process.pid}"), store.lock("refresh"):
        pass
    process.kill()
    time.sleep(0.1)
    with store.lock("refresh"):  # killed and not yet waited for: a zombie counts as dead
        pass
    process.communicate()


@pytest.mark.parametrize("change", [{"started": 1}, {"pid": 2**22 + 1}, {"pid": "x"}])
def test_a_reused_or_unknown_process_id_does_not_hold_a_lock(store, change):
    lock = store.path / "refresh.lock"
    with store.lock("refresh"):
        owner = locking.read_owner(lock)
    lock.write_text(json.dumps(owner | change))
    assert "takes it over" in store.check()[0]
    with store.lock("refresh"):
        assert locking.read_owner(lock)["started"] == owner["started"]


def test_a_damaged_lock_file_is_taken_over_and_one_of_another_host_is_not(store):
    lock = store.path / "refresh.lock"
    lock.write_text("{")
    with store.lock("refresh"):
        owner = locking.read_owner(lock)
    lock.write_text(json.dumps(owner | {"host": "elsewhere", "pid": 2**22 + 1, "time": time.time() - 7300}))
    with pytest.raises(StoreError, match=r"@elsewhere.*for 2 h.*delete the file"), store.lock("refresh"):
        pass


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "0 s"), (60, "1 min"), (3599, "59 min"), (7300, "2 h"), (90_000, "25 h"), (2e5, "2 days")],
)
def test_ages_in_words(seconds, words):
    assert locking.in_words(seconds) == words
