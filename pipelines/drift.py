"""Whether a refresh differs from the one before it so much that a person should look."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any

from assay.pipelines import ledger
from assay.pipelines.recipe import Drift
from assay.pipelines.snapshot import Snapshot
from assay.pipelines.store import Store

__all__ = ["Measures", "compare", "measure"]


@dataclass(frozen=True)
class Measures:
    """What is compared between refreshes."""

    kept: float
    """Kept / read rows."""
    contaminated: float | None
    """Rejected / seen rows of the contamination filter; None where the ladder has none."""
    pass_rates: tuple[float, ...]
    """Of every problem that the difficulty filter saw."""


def measure(store: Store, snapshot: Snapshot) -> Measures:
    """The measures of a recorded snapshot, also of one of which nothing was left."""
    steps = {row["filter"]: row for row in snapshot.funnel.to_dicts()}
    seen = steps.get("contamination")
    return Measures(
        kept=snapshot.funnel["rows_out"][-1] / max(1, snapshot.funnel["rows_in"][0]),
        contaminated=1 - seen["rows_out"] / seen["rows_in"] if seen and seen["rows_in"] else None,
        pass_rates=tuple(ledger.pass_rates(store, snapshot.id)["pass_rate"]),
    )


def compare(before: Measures, after: Measures, limits: Drift) -> list[dict[str, Any]]:
    """What changed by more than its limit: each `measure, before, after, change, limit`, shares between 0 and 1.

    `change` is the difference; for pass rates, whose `before` and `after` are means, it is the two-sample
    Kolmogorov-Smirnov statistic. A measure that one of the two lacks is not compared.
    """
    pairs = [("kept", before.kept, after.kept), ("contaminated", before.contaminated, after.contaminated)]
    found = [(name, a, b, abs(b - a)) for name, a, b in pairs if a is not None and b is not None]
    if before.pass_rates and after.pass_rates:
        from scipy.stats import ks_2samp

        distance = float(ks_2samp(before.pass_rates, after.pass_rates).statistic)
        found.append(("pass_rates", mean(before.pass_rates), mean(after.pass_rates), distance))
    return [
        {"measure": name, "before": a, "after": b, "change": change, "limit": getattr(limits, name)}
        for name, a, b, change in found
        if change > getattr(limits, name)
    ]
