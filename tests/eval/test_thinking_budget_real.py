"""Budget sweeps of the small reasoner through vLLM: reuse against generating anew, vLLM's own budget, cost, resume."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from assay.eval.intervals import paired_difference
from assay.eval.thinking_budget import cost, summarise, sweep
from assay.flows.reasoner import phrase, sample_chain
from assay.pipelines.engines import VllmEngine
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier

STOP = "\n</think>\n\n"
BUDGETS = [0, 8, 16, 24, 32, 48, 96]


def exam(items: int, least: int, most: int) -> pl.DataFrame:
    """The first so many of sixty problems."""
    rng = random.Random(3)
    chains = [sample_chain(rng, rng.randint(least, most)) for _ in range(60)]
    rows = {"id": [f"e{i}" for i in range(60)], "problem": [phrase(c, rng) for c in chains],
            "answer": [str(c.answer) for c in chains]}  # fmt: skip
    return pl.DataFrame(rows).head(items)


def run(
    engine: VllmEngine, budgets: list[int], items: int = 60, n: int = 4, terms: tuple[int, int] = (2, 4), **more: object
) -> pl.DataFrame:
    options = {"answer_tokens": 16, "stop_text": STOP, **more}
    with Verifier(workers=1) as verifier:
        return sweep(engine, exam(items, *terms), budgets, n, verifier=verifier, **options)  # type: ignore[arg-type]


def rates(samples: pl.DataFrame, budget: int) -> np.ndarray:
    """Per item the share of correct samples, the unscored as wrong."""
    part = samples.filter(pl.col("budget") == budget).group_by("problem_id", maintain_order=True)
    return part.agg((pl.col("status") == "correct").mean())["status"].to_numpy()


@pytest.fixture(scope="module")
def reused(pool: object, reasoner: Path, tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    engine = pool.get(str(reasoner))  # type: ignore[attr-defined]
    return run(engine, BUDGETS, store=Store.open(tmp_path_factory.mktemp("sweep") / "s", create=True))


def test_accuracy_rises_with_the_budget(reused: pl.DataFrame) -> None:
    found = summarise(reused, [1, 4]).filter(pl.col("k") == 1)
    assert found["budget"].to_list() == BUDGETS
    gain = paired_difference(rates(reused, 96), rates(reused, 8))
    assert gain.low > 0.2
    ends = found.select(pl.sum_horizontal("natural", "forced", "truncated", "empty")).to_series()
    assert ends.to_list() == pytest.approx([1] * 7)
    assert found["forced"].to_list()[1] > 0.9
    assert found["natural"].to_list()[-1] > 0.9


def test_reuse_is_generating_anew(engine: VllmEngine, reused: pl.DataFrame) -> None:
    """With the seeds of the sweep the very rows, with others the same accuracy within its interval."""
    same = run(engine, [24]).drop("new_tokens")
    assert_frame_equal(reused.filter(pl.col("budget") == 24).drop("new_tokens"), same)
    for budget in BUDGETS:
        difference = paired_difference(rates(reused, budget), rates(run(engine, [budget], seed=9), budget))
        assert difference.low <= 0 <= difference.high, (budget, difference)


def test_vllms_own_budget_agrees_in_distribution(engine: VllmEngine, reused: pl.DataFrame) -> None:
    budgets = [8, 16, 24, 96]
    own = run(engine, budgets, procedure="vllm", seed=5)
    for budget in budgets:
        left, right = (frame.filter(pl.col("budget") == budget) for frame in (reused, own))
        difference = paired_difference(rates(reused, budget), rates(own, budget))
        assert difference.low <= 0 <= difference.high, (budget, difference)
        for name in ("thinking_tokens", "answer_tokens"):  # the share forced shows in the thinking
            gap, error = left[name].mean() - right[name].mean(), ((left[name].var() + right[name].var()) / 240) ** 0.5
            assert abs(gap) <= 2.6 * error + 1e-9, (budget, name, gap, error)
        forced = abs(left["forced"].mean() - right["forced"].mean())
        assert forced <= 0.1, (budget, forced)


def test_a_sweep_costs_little_more_than_its_longest_budget(engine: VllmEngine) -> None:
    """Eight budgets on chains so long that thinking reaches the longest; answers as short beside it as usual."""
    counted = engine.sampled_tokens
    found = run(engine, [8 * i for i in range(1, 9)], items=12, terms=(20, 20), answer_tokens=3)
    assert found["forced"].mean() > 0.8
    spent = cost(found)
    assert spent.sampled == engine.sampled_tokens - counted
    assert spent.sampled <= 1.5 * spent.longest
    assert spent.anew >= 4 * spent.longest
    assert "times the longest budget alone" in str(spent)


KILLED = """
import sys
from pathlib import Path
from assay.pipelines.engines import VllmEngine
from assay.pipelines.store import Store
sys.path.insert(0, sys.argv[3])
import test_thinking_budget_real as here
engine = VllmEngine(sys.argv[1], max_model_len=512, dtype="float32")
store = Store.open(sys.argv[2], create=True)
here.run(engine, here.BUDGETS, items=20, store=store, on_done=lambda c: print(c.key, flush=True))
"""


def test_a_killed_sweep_goes_on_and_samples_nothing_twice(
    engine: VllmEngine, reused: pl.DataFrame, reasoner: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", KILLED, str(reasoner), str(tmp_path / "s"), str(Path(__file__).parent)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    seen = [line.strip() for _, line in zip(range(230), job.stdout)]  # 160 direct and long, then forced answers
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    store, counted = Store.open(tmp_path / "s"), engine.sampled_tokens
    kept = store.scan("generations").collect()
    assert set(seen) <= set(kept["key"])
    resumed = run(engine, BUDGETS, items=20, store=store)
    rows = store.scan("generations").collect()
    assert not rows["key"].is_duplicated().any()
    assert rows["token_ids"].list.len().sum() == cost(resumed).sampled
    assert engine.sampled_tokens - counted == cost(resumed).sampled - kept["token_ids"].list.len().sum()
    assert_frame_equal(resumed, reused.filter(pl.col("problem_id").is_in(exam(20, 2, 4)["id"].to_list())))
