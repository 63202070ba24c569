"""Intervals for evaluations: items are the clusters, repeats of an item are not independent evidence.

Sources: Miller 2024, arXiv 2411.00640 (clustered and paired errors); Wilson 1927; McNemar 1947; Efron 1979
(bootstrap).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Interval", "bootstrap_means", "caution", "clustered_mean", "mcnemar_exact",
           "minimum_detectable_difference", "paired_difference", "percentiles", "share_mean", "t_quantile", "wilson"]

Floats = NDArray[np.float64]
FEW_ITEMS = 30
ABOUT_100 = 100


class Interval(NamedTuple):
    """An estimate, its interval and standard error, and the number of items (clusters) behind it.

    `low`, `high` and `standard_error` are nan where one item alone gives no idea of the spread.
    """

    estimate: float
    low: float
    high: float
    standard_error: float
    items: int


def t_quantile(df: float, confidence: float = 0.95) -> float:
    """Two-sided quantile of Student's t; the normal one for `df` infinite.

    Raises:
        ValueError: `confidence` is not strictly between 0 and 1.
    """
    from scipy.special import ndtri, stdtrit

    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; give a share strictly between 0 and 1, such as 0.95.")
    upper = (1 + confidence) / 2
    return float(ndtri(upper) if np.isinf(df) else stdtrit(df, upper))


def clustered_mean(values: ArrayLike, clusters: Sequence[object] | None = None,
                   confidence: float = 0.95) -> Interval:
    """Mean of all values with SE = sqrt(C/(C-1) Σ_c (Σ_i (s_ic - s̄))²) / N and t with C-1 degrees of freedom.

    Args:
        values: one number a sample, [N]; or one an item when `clusters` is None.
        clusters: the item of each value, [N]; None means that every value is its own item.

    Raises:
        ValueError: no values, a nan among them, or `clusters` of another length.
    """
    s = _vector(values, "values")
    sums = _cluster_sums(s - s.mean(), clusters)
    count = len(sums)
    if count == 1:
        return Interval(float(s.mean()), np.nan, np.nan, np.nan, 1)
    error = float(np.sqrt(count / (count - 1) * (sums**2).sum()) / len(s))
    half = t_quantile(count - 1, confidence) * error
    return Interval(float(s.mean()), float(s.mean() - half), float(s.mean() + half), error, count)


def share_mean(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """`clustered_mean` of one value in [0, 1] an item, cut to [0, 1]; Wilson's where every value is 0 or 1.

    Those are single binary draws, one an item; a t interval over them claims certainty where all are alike. pass@k at
    k = n is such a draw, at k = n - 1 nearly one: the two intervals then agree but for terms of 1/items, Wilson's
    leaning towards a half. Near 0 or 1 they do not: of 100 items that are all solved by nearly every k samples, t says
    99.8% to 100% and Wilson's 96.3% to 100%. There the latter is right: items unlike all of these may be unsolved.
    """
    s = _vector(values, "values")
    if s.min() < -1e-9 or s.max() > 1 + 1e-9:
        raise ValueError(f"values reach from {s.min()} to {s.max()}; shares lie in [0, 1].")
    if len(s) > 1 and np.isin(s, (0.0, 1.0)).all():
        return wilson(int(s.sum()), len(s), confidence)
    mean, low, high, error, items = clustered_mean(s, None, confidence)
    return Interval(mean, float(np.maximum(low, 0.0)), float(np.minimum(high, 1.0)), error, items)


def paired_difference(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """Mean of a - b over the same items, one value an item: SE = SD(a_i - b_i) / √n, t with n-1 df."""
    left, right = _vector(a, "a"), _vector(b, "b")
    if len(left) != len(right):
        raise ValueError(f"a has {len(left)} items, b {len(right)}; a paired difference needs the same.")
    return clustered_mean(left - right, None, confidence)


def wilson(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share: for one binary draw an item, and for nothing else.

    Raises:
        ValueError: no trials, or successes outside 0..trials.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials; wanted 0 <= successes <= trials >= 1.")
    z, p = t_quantile(np.inf, confidence), successes / trials
    scale = 1 + z * z / trials
    centre = (p + z * z / (2 * trials)) / scale
    half = z / scale * np.sqrt(p * (1 - p) / trials + z * z / (4 * trials**2))
    low = max(0.0, float(centre - half)) if successes else 0.0
    high = min(1.0, float(centre + half)) if successes < trials else 1.0
    return Interval(p, low, high, float(np.sqrt(p * (1 - p) / trials)), trials)


def mcnemar_exact(a: ArrayLike, b: ArrayLike) -> float:
    """Two-sided exact p of McNemar's test: one binary draw each of two models on the same items.

    p = min(1, 2 P[Binomial(m, 1/2) <= min(only a, only b)]) over the m items where they differ; 1 if none.

    Raises:
        ValueError: lengths differ, or a value is neither 0 nor 1.
    """
    from scipy.special import bdtr

    left, right = _vector(a, "a"), _vector(b, "b")
    if len(left) != len(right):
        raise ValueError(f"a has {len(left)} items, b {len(right)}; McNemar's test needs the same items.")
    if not np.isin(np.concatenate([left, right]), (0.0, 1.0)).all():
        raise ValueError("McNemar's test takes one 0 or 1 an item; compare rates with paired_difference.")
    only_a, only_b = int((left > right).sum()), int((left < right).sum())
    if only_a + only_b == 0:
        return 1.0
    return min(1.0, 2 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def minimum_detectable_difference(standard_error: float, items: int, confidence: float = 0.95,
                                  power: float = 0.8) -> float:
    """The true paired difference that these items would show with probability `power`: (t_conf + t_power) SE.

    nan for one item. Source: Miller 2024, section 5, with t in the place of z.
    """
    if items < 2:
        return float("nan")
    return (t_quantile(items - 1, confidence) + t_quantile(items - 1, 2 * power - 1)) * standard_error


def bootstrap_means(rows: ArrayLike, replicates: int = 10_000, seed: int = 0,
                    counts: ArrayLike | None = None) -> Floats:
    """Means of resamples of the items, all columns under the same resample: [replicates, K] from rows [U, K].

    `counts` [U] says how many items share a row (1 each when None): drawing N items with replacement out of U
    distinct rows is one multinomial draw, so a million items cost no more than their distinct rows.
    """
    values = np.atleast_2d(np.asarray(rows, dtype=np.float64).T).T
    weight = np.ones(len(values)) if counts is None else np.asarray(counts, dtype=np.float64)
    items, rng = int(weight.sum()), np.random.default_rng(seed)
    step = max(1, 8_000_000 // len(values))
    means = []
    for start in range(0, replicates, step):
        size = min(step, replicates - start)
        means.append(rng.multinomial(items, weight / weight.sum(), size=size) @ values / items)
    return np.concatenate(means)


def percentiles(replicates: Floats, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """The equal-tailed ends of bootstrap replicates [R, ...], along the first axis."""
    t_quantile(np.inf, confidence)
    low, high = np.quantile(replicates, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def caution(items: int) -> str | None:
    """What to say beside a figure of so few items, or None. A worst-case 95% half width is 0.98/√items."""
    if items < 2:
        return f"{items} item: no interval can be given"
    if items < FEW_ITEMS:
        return f"{items} items: the interval is rough, half widths up to {0.98 / items**0.5:.2f}"
    if items < ABOUT_100:
        return (f"{items} items: half widths up to {0.98 / items**0.5:.2f}, unpaired differences below about "
                f"{1.4 / items**0.5:.2f} are within the noise")
    return None


def _vector(values: ArrayLike, name: str) -> Floats:
    s = np.asarray(values, dtype=np.float64)
    if s.ndim != 1 or len(s) == 0:
        raise ValueError(f"{name} has the shape {s.shape}; give one number an item, for at least one.")
    if np.isnan(s).any():
        raise ValueError(f"{name}: {int(np.isnan(s).sum())} of {len(s)} are nan; leave unscored items out.")
    return s


def _cluster_sums(residuals: Floats, clusters: Sequence[object] | None) -> Floats:
    if clusters is None:
        return residuals
    if len(clusters) != len(residuals):
        raise ValueError(f"{len(residuals)} values and {len(clusters)} clusters; give one label a value.")
    _, index = np.unique(np.asarray(clusters), return_inverse=True)
    return np.bincount(index, weights=residuals).astype(np.float64)
