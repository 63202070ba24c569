"""Two models on the same items: the paired difference of pass@k, where the curves cross, and who solves what.

Positive differences favour `a`. Every interval resamples the items, never the samples: items are what varies
from one benchmark to the next.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from assay.eval.intervals import (
    bootstrap_means,
    caution,
    clustered_mean,
    mcnemar_exact,
    minimum_detectable_difference,
    percentiles,
    share_mean,
    wilson,
)
from assay.eval.pass_at_k import counts, pass_at_k

__all__ = ["Correctness", "Crossing", "compare_pass_at_k", "crossed", "crossing", "four_way", "points", "told"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Correctness = Sequence[Sequence[object]] | NDArray[np.generic] | tuple[ArrayLike, ArrayLike]
PAIR = ("benchmark", "model", "base")
GRID = 512
ZERO = 1e-12


class Crossing(NamedTuple):
    """The last k before the difference changes its sign for good, and its interval.

    `k` is None where the sign never changes. `low` None: as far as these items tell, it may lie before k = 1;
    `high` None: beyond the largest k looked at. Both are None with `k`.
    """

    k: int | None
    low: int | None
    high: int | None


class _Pair(NamedTuple):
    n_a: Ints
    c_a: Ints
    n_b: Ints
    c_b: Ints
    taken: int


def compare_pass_at_k(correct_a: Correctness, correct_b: Correctness, ks: Iterable[int], *, up_to: int | None = None,
                      confidence: float = 0.95, replicates: int = 10_000, seed: int = 0) -> pl.DataFrame:
    """pass@k of both on the same items, the paired difference a - b with its interval, and the crossing.

    Args:
        correct_a, correct_b: one row of 0/1 an item, in the same order of items; None or nan is an unscored
            sample and counts nowhere. Or a tuple (n, c) of counts an item.
        ks: each at most the samples taken of every item.
        up_to: where to look for the crossing; the largest of `ks` when None.

    Returns:
        `k, items, a, a_low, a_high, b, b_low, b_high, difference, low, high, mdd, p, crossing, crossing_low,
        crossing_high, up_to`, shares. `items` are those with k scored samples in both. `low` and `high` are
        percentiles over resampled items; where no item differs, Wilson's bound on the share of items that
        would. `mdd` is the true difference these items would show in four cases of five; null without spread.
        `p` is McNemar's exact one where every item is a single draw of each (all 0 or 1), else null.
        The crossing, looked for at all k up to `up_to`, is the same in every row: see `Crossing`.

    Raises:
        ValueError: other numbers of items, a k above the samples taken, or no item with k scored samples.
    """
    pair, ks = _pair(correct_a, correct_b), [int(k) for k in ks]
    _check_ks(pair, ks)
    rows, index, weight = _distinct(pair)
    a, b = _table(rows[:, 0], rows[:, 1], ks), _table(rows[:, 2], rows[:, 3], ks)
    low, high = _difference_interval(a - b, weight, confidence, replicates, seed)
    most = max(ks) if up_to is None else up_to
    cross = crossing(correct_a, correct_b, most, confidence=confidence, replicates=replicates, seed=seed)
    out = [{"k": k, **_row(a[index, i], b[index, i], (float(low[i]), float(high[i])), confidence)}
           for i, k in enumerate(ks)]  # fmt: skip
    named = [pl.lit(value, pl.Int64).alias(name)
             for name, value in zip(("crossing", "crossing_low", "crossing_high", "up_to"), (*cross, most))]
    return pl.DataFrame(out).with_columns(pl.selectors.float().fill_nan(None)).with_columns(named)


def crossing(correct_a: Correctness, correct_b: Correctness, largest_k: int, *, confidence: float = 0.95,
             replicates: int = 10_000, seed: int = 0) -> Crossing:
    """Where the mean pass@k curves of the two cross for the last time at k <= `largest_k`.

    Every whole k up to 512 is looked at, above that 512 of them in equal ratios. In each resample the curve
    either changes to the same final sign after some k, had it from k = 1 on, or has not got there yet: the
    interval's ends are percentiles of that, the last two being below and above every k. Only items with
    `largest_k` scored samples in both enter, so that every k sees the same items.
    """
    pair = _pair(correct_a, correct_b)
    _check_ks(pair, [largest_k])
    rows, _, weight = _distinct(pair)
    enough = np.minimum(rows[:, 0], rows[:, 2]) >= largest_k
    rows, weight, grid = rows[enough], weight[enough], _grid(largest_k)
    gap = _table(rows[:, 0], rows[:, 1], grid) - _table(rows[:, 2], rows[:, 3], grid)
    final, last = _last_change((weight @ gap / weight.sum())[None, :], grid)
    if last[0] == 0:
        return Crossing(None, None, None)
    signs, changes = _last_change(bootstrap_means(gap, replicates, seed, weight), grid)
    placed = np.where(signs == final[0], changes, np.inf)
    ends = np.quantile(placed, [(1 - confidence) / 2, (1 + confidence) / 2], method="inverted_cdf")
    low, high = (int(end) if 0 < end < np.inf else None for end in ends)
    return Crossing(int(last[0]), low, high)


def four_way(correct_a: Correctness, correct_b: Correctness, k: int | None = None,
             confidence: float = 0.95) -> pl.DataFrame:
    """How many items both models solve within k samples, only a, only b, or neither.

    An item with pass@k p and q counts p q as both, p (1-q) as only a, and so on: expected counts over which k
    samples were drawn, and plain counts when k is the number of samples. So two models with unequal n compare
    fairly.

    Args:
        k: None takes the largest k that every item with a scored sample in both allows.

    Returns:
        Four rows `solved_by (both, a_only, b_only, neither), k, items, share, low, high`.

    Raises:
        ValueError: as `compare_pass_at_k`.
    """
    pair = _pair(correct_a, correct_b)
    k = int(np.minimum(pair.n_a, pair.n_b).min()) if k is None else k
    _check_ks(pair, [k])
    p, q = _table(pair.n_a, pair.c_a, [k])[:, 0], _table(pair.n_b, pair.c_b, [k])[:, 0]
    p, q = p[~np.isnan(p + q)], q[~np.isnan(p + q)]
    ways = {"both": p * q, "a_only": p * (1 - q), "b_only": (1 - p) * q, "neither": (1 - p) * (1 - q)}
    rows = [{"solved_by": name, "k": k, "items": float(part.sum()),
             **dict(zip(("share", "low", "high"), share_mean(part, confidence)))}
            for name, part in ways.items()]  # fmt: skip
    return pl.DataFrame(rows).with_columns(pl.col("low", "high").fill_nan(None))


def told(difference: pl.DataFrame | None) -> list[dict[str, Any]]:
    """Every comparison of `curves.compare` in words: `benchmark, model, base`, its `rows`, and `lines` of text.

    Each row has in addition the difference with its interval (`points`) and the difference that could have been seen
    (`detectable`), percentage points as text. The lines end with `notes`: the crossing, and a warning of too few items.
    """
    if difference is None:
        return []
    found = []
    for key, part in difference.group_by(PAIR, maintain_order=True):
        rows = [row | {"points": points(row["difference"], row["low"], row["high"]), "detectable": _detectable(row)}
                for row in part.sort("k").iter_rows(named=True)]  # fmt: skip
        few = caution(min(row["items"] for row in rows))
        notes = [crossed(part), *([f"few items: {few}"] if few else [])]
        lines = [f"k = {r['k']:,}: {r['points']} points over {r['items']:,} items; detectable: {r['detectable']}"
                 + ("" if r["p"] is None else f"; McNemar p = {r['p']:.3g}") for r in rows]  # fmt: skip
        found.append(dict(zip(PAIR, key)) | {"rows": rows, "notes": notes, "lines": lines + notes})
    return found


def points(value: float, low: float, high: float) -> str:
    """A difference of shares with its interval, in percentage points."""
    middle, *ends = (f"{100 * x:+.2f}".replace("-", "−") for x in (value, low, high))
    return f"{middle} [{ends[0]},\u00a0{ends[1]}]"


def _detectable(row: dict[str, Any]) -> str:
    return f"{100 * row['mdd']:.2f}" if row["mdd"] is not None else "unknown, no spread"


def crossed(compared: pl.DataFrame) -> str:
    """Where the curves cross, with the interval, or that they do not."""
    row = compared.row(-1, named=True)
    most = row.get("up_to") or max(compared["k"].to_list())  # results of earlier versions lack it
    if row["crossing"] is None:
        return f"no crossing up to {most:,}"
    low, high = (f"{end:,}" if end else other for end, other in (
        (row["crossing_low"], "before 1"), (row["crossing_high"], f"beyond {most:,}")))  # fmt: skip
    return f"the curves cross after k = {row['crossing']:,} [{low}, {high}]"


def _row(a: Floats, b: Floats, ends: tuple[float, float], confidence: float) -> dict[str, float]:
    """One k: both means with their intervals, the difference with `ends`, and what could have been seen."""
    scored = ~np.isnan(a - b)
    a, b = a[scored], b[scored]
    left, right = share_mean(a, confidence), share_mean(b, confidence)
    gap = clustered_mean(a - b, None, confidence)
    mdd = minimum_detectable_difference(gap.standard_error, len(a), confidence) if gap.standard_error else np.nan
    if not (a - b).any():
        ends = (-wilson(0, len(a), confidence).high, wilson(0, len(a), confidence).high)
    return {"items": len(a), "a": left.estimate, "a_low": left.low, "a_high": left.high, "b": right.estimate,
            "b_low": right.low, "b_high": right.high, "difference": gap.estimate, "low": ends[0],
            "high": ends[1], "mdd": mdd, "p": mcnemar_exact(a, b) if _binary(a) and _binary(b) else np.nan}


def _binary(values: Floats) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())


def _difference_interval(gap: Floats, weight: Ints, confidence: float, replicates: int,
                         seed: int) -> tuple[Floats, Floats]:
    """Percentiles of the mean difference at every k; nan marks rows too short for a k, left out of it."""
    short = np.isnan(gap)
    if not short.any():
        return percentiles(bootstrap_means(gap, replicates, seed, weight), confidence)
    both = bootstrap_means(np.hstack([np.where(short, 0.0, gap), ~short]), replicates, seed, weight)
    total, present = np.hsplit(both, 2)
    return percentiles(total / np.maximum(present, ZERO), confidence)


def _last_change(curves: Floats, grid: list[int]) -> tuple[Ints, Ints]:
    """Per curve [R, G] the sign it ends with, and the last k that has the opposite sign (0: none)."""
    signs = np.where(np.abs(curves) < ZERO, 0, np.sign(curves)).astype(np.int64)
    positions = np.arange(1, len(grid) + 1)
    final = np.take_along_axis(signs, (positions * (signs != 0)).argmax(axis=1)[:, None], axis=1)
    last = (positions * ((signs == -final) & (final != 0))).max(axis=1)
    return final[:, 0], np.array([0, *grid])[last]


def _grid(largest_k: int) -> list[int]:
    if largest_k <= GRID:
        return list(range(1, largest_k + 1))
    return np.unique(np.rint(np.geomspace(1, largest_k, GRID)).astype(np.int64)).tolist()


def _table(n: Ints, c: Ints, ks: Sequence[int]) -> Floats:
    """pass@k [rows, ks]; nan where a row has fewer than k scored samples."""
    wide = np.broadcast_arrays(n[:, None], c[:, None], np.array(ks)[None, :])
    out, enough = np.full(wide[0].shape, np.nan), wide[0] >= wide[2]
    out[enough] = pass_at_k(*(part[enough] for part in wide))
    return out


def _distinct(pair: _Pair) -> tuple[Ints, Ints, Ints]:
    """Distinct rows (n_a, c_a, n_b, c_b), the row of every item, and how many items share it."""
    stacked = np.stack([pair.n_a, pair.c_a, pair.n_b, pair.c_b], axis=1)
    rows, index, weight = np.unique(stacked, axis=0, return_inverse=True, return_counts=True)
    return rows, index.ravel(), weight


def _pair(correct_a: Correctness, correct_b: Correctness) -> _Pair:
    """Counts of both, without the items that lack a scored sample in either."""
    n_a, c_a, taken_a = _counted(correct_a)
    n_b, c_b, taken_b = _counted(correct_b)
    if len(n_a) != len(n_b):
        raise ValueError(f"a has {len(n_a)} items and b {len(n_b)}; give the same items in the same order.")
    scored = (n_a > 0) & (n_b > 0)
    if not scored.any():
        raise ValueError(f"none of {len(n_a)} items has a scored sample in both: nothing to compare.")
    return _Pair(n_a[scored], c_a[scored], n_b[scored], c_b[scored], int(min(taken_a, taken_b)))


def _counted(correct: Correctness) -> tuple[Ints, Ints, int]:
    """Scored and correct an item, and the samples taken of the item that has fewest."""
    if isinstance(correct, tuple):
        c = np.atleast_1d(np.asarray(correct[1], dtype=np.int64))
        n = np.broadcast_to(np.asarray(correct[0], dtype=np.int64), c.shape)
        return n, c, int(n.min(initial=2**62))
    return *counts(correct), min((len(row) for row in correct), default=0)


def _check_ks(pair: _Pair, ks: Sequence[int]) -> None:
    if not ks or min(ks) < 1:
        raise ValueError(f"ks = {list(ks)}; give whole numbers from 1.")
    if max(ks) > pair.taken:
        raise ValueError(f"k = {max(ks)}, an item has only {pair.taken} samples; ask for k <= {pair.taken}.")
    scored = int(np.minimum(pair.n_a, pair.n_b).max())
    if max(ks) > scored:
        raise ValueError(f"k = {max(ks)}: no item has so many scored samples in both; ask for k <= {scored}.")
