"""Unbiased pass@k from n samples an item, c of them correct: 1 - C(n-c, k)/C(n, k).

Source: Chen et al. 2021, arXiv 2107.03374, section 2.1, in the product form 1 - Π_{j=n-c+1..n} (1 - k/j).
"""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from assay.eval.intervals import share_mean

__all__ = ["counts", "pass_at_k", "pass_at_k_curve"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> float | Floats:
    """Probability that k of the n samples, drawn without replacement, hold a correct one.

    Args:
        n: samples an item, >= 1.
        c: correct ones among them, 0 <= c <= n.
        k: 1 <= k <= n. The three are broadcast together.

    Returns:
        A float when all three are scalars, else an array of their common shape.

    Raises:
        ValueError: k > n (the data cannot say, and 1.0 or 0.0 would be invented), k < 1, n < 1, c < 0, c > n,
            or a number that is not whole.
    """
    whole = np.broadcast_arrays(_whole(n, "n"), _whole(c, "c"), _whole(k, "k"))
    _check(*whole)
    flat = [x.ravel() for x in whole]
    estimate = _reached(*flat)
    return float(estimate[0]) if whole[0].ndim == 0 else estimate.reshape(whole[0].shape)


def pass_at_k_curve(n: ArrayLike, c: ArrayLike, ks: Iterable[int], confidence: float = 0.95) -> pl.DataFrame:
    """Mean pass@k over items at every k, with the interval clustered by item.

    Args:
        n, c: one number an item, [items]; or a scalar n for all.
        ks: each must be at most every item's n.

    Returns:
        `k, estimate, low, high, items`; shares, not per cent. The interval is t over items, Wilson's where
        all items are 0 or all are 1, and null for a single item.

    Raises:
        ValueError: as `pass_at_k`; no ks; no items.
    """
    ks, correct = _ks(ks), np.atleast_1d(_whole(c, "c"))
    samples = np.broadcast_to(_whole(n, "n"), correct.shape)
    rows = []
    for k in ks:
        mean = share_mean(np.atleast_1d(pass_at_k(samples, correct, k)), confidence)
        rows.append((k, mean.estimate, mean.low, mean.high, mean.items))
    schema = {"k": pl.Int64, "estimate": pl.Float64, "low": pl.Float64, "high": pl.Float64, "items": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.col("low", "high").fill_nan(None))


def counts(correct: Iterable[Sequence[object]]) -> tuple[Ints, Ints]:
    """Per item the scored samples n and the correct ones c; None and nan are unscored and in neither.

    Raises:
        ValueError: a flag that is neither true, false, 0, 1, None nor nan.
    """
    n, c = [], []
    for item, flags in enumerate(correct):
        scored = [f for f in flags if f is not None and f == f]  # nan is unequal to itself
        strange = next((f for f in scored if f not in (0, 1)), None)
        if strange is not None:
            raise ValueError(f"item {item}: {strange!r} is no verdict; give 0, 1, true, false or None.")
        n.append(len(scored))
        c.append(sum(map(bool, scored)))
    return np.array(n, dtype=np.int64), np.array(c, dtype=np.int64)


def _reached(n: Ints, c: Ints, k: Ints) -> Floats:
    """1 - C(n-c, k)/C(n, k) for flat arrays: the product where all share n and k, else by logarithms.

    Log-factorials in extended precision cost up to 1e-14 (1e-11 where a long double is a double), and a million items
    of as many different n take no longer than a million alike.
    """
    if n.min(initial=1) == n.max(initial=1) and k.min(initial=1) == k.max(initial=1):
        table = _miss_table(int(n[0]), int(k[0]), int(c.max())) if len(n) else np.empty(0)
        return np.asarray(1.0 - table[c])
    logs = np.concatenate([[0], np.cumsum(np.log(np.arange(1, n.max() + 1, dtype=np.longdouble)))])
    rest = n - c - k
    miss = (logs[n - c] - logs[np.maximum(rest, 0)]) - (logs[n] - logs[n - k])
    return np.where(rest < 0, 1.0, -np.expm1(miss.astype(np.float64)))


def _miss_table(n: int, k: int, largest_c: int) -> Floats:
    """Miss probability at c = 0..largest_c: Π_{j=n-c+1..n} (1 - k/j), 0 from the factor j = k on."""
    j = np.arange(n, n - largest_c, -1, dtype=np.float64)
    return np.concatenate([[1.0], np.cumprod(1.0 - k / j)])


def _whole(values: ArrayLike, name: str) -> Ints:
    array = np.asarray(values)
    if array.dtype.kind in "iub":
        return array.astype(np.int64)
    as_float = np.asarray(values, dtype=np.float64)
    if not np.array_equal(as_float, np.floor(as_float)):
        strange = _first(as_float, as_float != np.floor(as_float))
        raise ValueError(f"{name} holds {strange}; give whole numbers.")
    return as_float.astype(np.int64)


def _check(n: Ints, c: Ints, k: Ints) -> None:
    faults = (("n", n, n < 1, "at least one scored sample is needed"), ("c", c, c < 0, "c counts samples"),
              ("c", c, c > n, "more correct than samples"), ("k", k, k < 1, "k counts samples, from 1"))
    for name, values, bad, why in faults:
        if bad.any():
            raise ValueError(f"{name} = {_first(values, bad)}: {why}.")
    if (k > n).any():
        raise ValueError(f"k = {_first(k, k > n)} > n = {_first(n, k > n)} ({int((k > n).sum())} such cases) "
                         f"cannot be estimated; ask for k <= {int(n.min())}, or take more samples.")


def _first(values: NDArray[np.generic], bad: NDArray[np.bool_]) -> object:
    return values[bad].flat[0].item()


def _ks(ks: Iterable[int]) -> list[int]:
    found = [int(k) for k in ks]
    if not found:
        raise ValueError("no k was given; name at least one, such as 1.")
    return found
