"""The small reasoner, made anew by the command that made the one in the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.eval.evaluation import evaluate
from assay.flows.demo_pool import write_pool
from assay.flows.reasoner import make_checkpoint
from assay.pipelines import sources
from assay.pipelines.engines import Sampling
from assay.pipelines.recipe import Benchmark
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier

pytestmark = pytest.mark.slow(first=True)


def test_a_cold_start_gives_a_model_as_good_as_the_one_in_the_package(
    tmp_path: Path, pool: Any, reasoner: Path
) -> None:
    """It is within sampling noise and platform differences of the shipped one."""
    make_checkpoint(tmp_path / "fresh")
    exam = sources.read(
        Benchmark(name="exam", path=write_pool(tmp_path / "raw").benchmark, problem="question", answer="gold")
    )[0]
    store, rates = Store.open(tmp_path / "s", create=True), []
    with Verifier(workers=1) as verifier:
        for model in (reasoner, tmp_path / "fresh"):
            done = evaluate(
                store,
                pool.get(str(model)),
                verifier,
                exam.head(160),
                model="m",
                n=4,
                sampling=Sampling(max_tokens=128),
                instruction="",
            )
            rates.append(done.pass_at_k([1])["estimate"][0])
    assert abs(rates[0] - rates[1]) < 0.1, rates
    assert (tmp_path / "fresh" / "model.safetensors").stat().st_size < 2_000_000
