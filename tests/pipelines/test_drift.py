"""Drift between two refreshes, by hand."""

from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from assay.pipelines import drift
from assay.pipelines.drift import Measures
from assay.pipelines.recipe import Drift
from assay.pipelines.snapshot import FUNNEL, Snapshot
from assay.pipelines.store import SCHEMAS, Store

TIME = datetime(2026, 1, 1)


def made(*funnel: tuple[str, int, int]) -> Snapshot:
    rows = pl.DataFrame([(*step, "{}") for step in funnel], schema=FUNNEL, orient="row")
    return Snapshot("s", None, "h", {"name": "pool"}, [], rows, TIME)


def test_measures_of_a_snapshot(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    from assay.pipelines import snapshot as snapshots

    snapshot = made(("parse", 20, 16), ("contamination", 16, 12), ("difficulty", 12, 5))
    snapshots.record(store, snapshot)
    rows = [("p1", "difficulty", True, "1/4 correct, 95% 0.03-0.72"), ("p2", "difficulty", False, "no sample recorded")]
    decisions = pl.DataFrame(rows, schema=["problem_id", "filter", "keep", "evidence"], orient="row")
    decisions = decisions.with_columns(snapshot=pl.lit("s"), reason=pl.lit(None, pl.String), time=pl.lit(TIME))
    store.append("decisions", decisions.select(SCHEMAS["decisions"].names()))
    assert drift.measure(store, snapshot) == Measures(kept=0.25, contaminated=0.25, pass_rates=(0.25,))
    nothing = drift.measure(store, made(("parse", 4, 4), ("format", 4, 0)))
    assert (nothing.kept, nothing.contaminated) == (0.0, None)


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (Measures(0.40, 0.11, (0.0, 0.5, 1.0)), []),
        (Measures(0.39, 0.10, (0.0, 0.5, 1.0)), [("kept", 0.5, 0.39, 0.11)]),
        (Measures(0.50, 0.13, (0.0, 0.5, 1.0)), [("contaminated", 0.10, 0.13, 0.03)]),
        (Measures(0.50, None, ()), []),
        # below 0.5 lie 1/3 of the problems before and 2/3 after
        (Measures(0.50, 0.10, (0.0, 0.0, 1.0)), [("pass_rates", 0.5, 1 / 3, 1 / 3)]),
    ],
)
def test_what_is_beyond_its_limit(after: Measures, found: list[tuple[str, float, float, float]]) -> None:
    before = Measures(0.50, 0.10, (0.0, 0.5, 1.0))
    limits = Drift(kept=0.105, contaminated=0.02, pass_rates=0.3)
    drifts = drift.compare(before, after, limits)
    assert [d["measure"] for d in drifts] == [name for name, *_ in found]
    for d, (_, *values) in zip(drifts, found):
        assert [d["before"], d["after"], d["change"]] == pytest.approx(values)
