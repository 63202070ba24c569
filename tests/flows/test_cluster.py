"""A plan over a Ray cluster of this machine: a worker is killed in the middle, and nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assay.flows.cluster import ClusterEngine
from assay.flows.models import engine_of
from assay.pipelines import generate
from assay.pipelines.engines import Sampling, model_fingerprint
from assay.pipelines.errors import EngineError
from assay.pipelines.recipe import Cluster, Model
from assay.pipelines.store import Store

ENGINE = """
import os, random, time
from pathlib import Path
from assay.pipelines.engines import Completion
from assay.pipelines.errors import EngineError

class Model:
    '''Completions that follow from the seed; the first process that comes to its twentieth kills itself.'''
    def __init__(self, folder, fingerprint, fault):
        self.folder, self.fingerprint, self.fault = Path(folder), fingerprint, fault
    def stream(self, requests):
        for number, r in enumerate(requests):
            if self.fault:
                raise EngineError("out of memory")
            time.sleep(0.01)
            if number == 20:
                try:
                    (self.folder / "killed").touch(exist_ok=False)
                    os.kill(os.getpid(), 9)
                except FileExistsError:
                    pass
            with (self.folder / f"{os.getpid()}").open("a") as log:
                log.write(r.key + "\\n")
            ids = [random.Random(r.seed).randrange(5, 90) for _ in range(5)]
            yield Completion(r.key, ids, [-0.5] * 5, str(ids), "stop", 0.1)

def start(folder, fingerprint, fault=False):
    return lambda: Model(folder, fingerprint, fault)
"""
ASKED: dict[str, Any] = {"mode": "think", "samples": 20, "sampling": Sampling(max_tokens=8)}
PROBLEMS = pl.DataFrame({"id": [f"p{i}" for i in range(20)], "problem": [f"What is {i} + 1?" for i in range(20)]})


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


def test_a_recipe_asks_for_a_cluster_or_for_servers(reasoner: Path) -> None:
    engine = engine_of(Model(path=str(reasoner), max_model_len=512, cluster=Cluster(workers=3, gpus=1)))
    assert isinstance(engine, ClusterEngine)
    assert (engine.workers, engine.resources, engine.fingerprint) == (3, {"num_gpus": 1}, model_fingerprint(reasoner))
    with pytest.raises(EngineError, match=r"no server answers: http://127.0.0.1:9/v1"):
        engine_of(Model(path=str(reasoner), engine="openai", urls=("http://127.0.0.1:9",)))
    for wrong in ({"engine": "openai"}, {"engine": "openai", "urls": ["http://me:key@host"]}):
        with pytest.raises(ValueError, match="urls"):
            Model.model_validate({"path": "m", **wrong})


@pytest.mark.slow(first=True)
def test_two_workers_share_a_plan_and_one_dies(ray: Any, reasoner: Path, tmp_path: Path) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}  # sent to the workers by value
    exec(ENGINE, space)
    folder = tmp_path / "logs"
    folder.mkdir()
    start = space["start"]
    engine = ClusterEngine(str(reasoner), 512, lambda: None)  # type: ignore[arg-type,return-value]
    engine._start = start(str(folder), engine.fingerprint)
    store = Store.open(tmp_path / "s", create=True)
    rows = generate.sample(store, engine, PROBLEMS, **ASKED)
    assert rows.height == store.scan("generations").collect().height == 400
    one = space["Model"](tmp_path, engine.fingerprint, False)
    plan = generate.plan(Store.open(tmp_path / "t", create=True), engine, PROBLEMS, **ASKED)
    (tmp_path / "killed").touch()
    assert rows["token_ids"].to_list() == [c.token_ids for c in one.stream([w.request for w in plan.wanted])]
    logs = [f.read_text().split() for f in folder.iterdir() if f.name != "killed"]
    assert (folder / "killed").exists()
    assert len(logs) >= 3  # two workers, and one more for the one that died
    sampled = [key for log in logs for key in log]
    assert set(sampled) == set(rows["key"])
    assert len(sampled) <= 401  # only what was in flight was sampled twice
    engine._start = start(str(folder), "faulty", fault=True)
    engine.fingerprint = "faulty"
    with pytest.raises(EngineError, match="out of memory"):
        generate.sample(store, engine, PROBLEMS, **ASKED)
