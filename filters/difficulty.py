"""How hard a problem is for a model: pass rates with intervals, the band, buckets, who deserves more samples.

Pass rate = correct / (correct + wrong). A truncated, unverifiable or timed-out sample says nothing about the
problem: it is counted beside the rate, never as wrong. Nothing scored makes the rate null (unknown), never 0.
"""

from typing import Literal

import numpy as np
import polars as pl

__all__ = [
    "BUCKETS",
    "STATUSES",
    "Inclusive",
    "buckets",
    "decide",
    "evidence",
    "interval",
    "pass_rates",
    "undecided",
]

STATUSES = ("correct", "wrong", "truncated", "unverifiable", "timeout")
BUCKETS = ("unsolved", "very_hard", "hard", "medium", "easy", "very_easy", "solved")
Inclusive = Literal["both", "low", "high", "neither"]


def interval(correct: np.ndarray, wrong: np.ndarray, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Equal-tailed Beta posterior interval of the true rate under Jeffreys' prior: Beta(c + 1/2, w + 1/2).

    The low end is 0 when nothing was right and the high end 1 when nothing was wrong, so that coverage holds
    at the edges. Nothing scored gives nan. Source: Brown, Cai, DasGupta 2001, Statistical Science 16(2).
    """
    from scipy.special import betaincinv

    pair = correct.astype(np.int64) * (wrong.max(initial=0) + 1) + wrong
    _, first, at = np.unique(pair, return_index=True, return_inverse=True)  # few, of many problems
    right, failed = correct[first], wrong[first]
    tail = (1 - confidence) / 2
    low = np.where(right == 0, 0.0, betaincinv(right + 0.5, failed + 0.5, tail))
    high = np.where(failed == 0, 1.0, betaincinv(right + 0.5, failed + 0.5, 1 - tail))
    unknown = right + failed == 0
    return np.where(unknown, np.nan, low)[at], np.where(unknown, np.nan, high)[at]


def pass_rates(graded: pl.DataFrame, confidence: float = 0.95) -> pl.DataFrame:
    """One row per problem id (per id and model where `graded` has the column `model`), in first-seen order.

    Args:
        graded: one row per sample: `problem_id`, `status` (null: not graded yet), optionally `model`. Rates
            are by id: two ids with the same text are two problems.

    Returns:
        `problem_id, (model,) samples, correct, wrong, truncated, unverifiable, timeout, pass_rate, low,
        high`; the last three are null when neither a correct nor a wrong sample exists.

    Raises:
        ValueError: a status that is none of `STATUSES`.
    """
    _refuse_unknown_status(graded["status"])
    keys = ["problem_id", "model"] if "model" in graded.columns else ["problem_id"]
    counts = [(pl.col("status") == status).sum().cast(pl.Int32).alias(status) for status in STATUSES]
    rates = graded.group_by(keys, maintain_order=True).agg(pl.len().cast(pl.Int32).alias("samples"), *counts)
    low, high = interval(rates["correct"].to_numpy(), rates["wrong"].to_numpy(), confidence)
    scored = pl.col("correct") + pl.col("wrong")
    return rates.with_columns(
        pl.when(scored > 0).then(pl.col("correct") / scored).alias("pass_rate"),
        pl.Series("low", low).fill_nan(None),
        pl.Series("high", high).fill_nan(None),
    )


def _refuse_unknown_status(status: pl.Series) -> None:
    unknown = sorted(set(status.drop_nulls().unique()) - set(STATUSES))
    if unknown:
        raise ValueError(f"status {unknown[0]!r} is none of {', '.join(STATUSES)}; map it before counting")


def decide(
    problems: pl.DataFrame,
    rates: pl.DataFrame,
    low: float = 0.2,
    high: float = 0.8,
    inclusive: Inclusive = "both",
    unknown: Literal["drop", "keep"] = "drop",
) -> pl.DataFrame:
    """Keep the problems whose pass rate lies in the band; reasons too_easy, too_hard, unknown_pass_rate.

    Args:
        problems: `id`.
        rates: from `pass_rates`, one row per id. An id that is absent here is unknown, like one never scored.
        inclusive: which edge itself is kept. With "both", exactly 2 of 10 is inside 0.2 to 0.8.
        unknown: what becomes of an unknown rate; a kept one still says so in its evidence.

    Returns:
        Decisions; the evidence of every row, kept or not, is like "3/8 correct, 95% 0.12-0.71".

    Raises:
        ValueError: the band is not 0 <= low <= high <= 1, or `rates` holds an id twice (two models pooled).
    """
    _refuse_band(low, high, inclusive)
    if rates["problem_id"].is_duplicated().any():
        raise ValueError("rates hold a problem id more than once; filter them to one model first")
    ids = problems.select("id")
    joined = ids.join(rates, left_on="id", right_on="problem_id", how="left", maintain_order="left")
    rate = pl.col("pass_rate")
    hard = rate < low if inclusive in ("both", "low") else rate <= low
    easy = rate > high if inclusive in ("both", "high") else rate >= high
    reason = (
        pl.when(rate.is_null()).then(pl.lit("unknown_pass_rate" if unknown == "drop" else None))
        .when(hard).then(pl.lit("too_hard"))
        .when(easy).then(pl.lit("too_easy"))
    )  # fmt: skip
    return joined.select("id", keep=reason.is_null(), reason=reason, evidence=evidence())


def _refuse_band(low: float, high: float, inclusive: str) -> None:
    if not 0 <= low <= high <= 1:
        raise ValueError(f"the band {low} to {high} is not inside 0 to 1 with low <= high")
    if inclusive not in ("both", "low", "high", "neither"):
        raise ValueError(f"inclusive is {inclusive!r}; it is one of both, low, high, neither")


def evidence() -> pl.Expr:
    """A row of `pass_rates` in words: what was scored, its interval, and how many samples say nothing."""
    scored = pl.format(
        "{}/{} correct, 95% {}-{}",
        "correct",
        pl.col("correct") + pl.col("wrong"),
        _two_digits("low"),
        _two_digits("high"),
    )
    silent = pl.concat_str(
        [
            pl.when(pl.col(status) > 0).then(pl.format(f", {{}} {status}", status)).otherwise(pl.lit(""))
            for status in STATUSES[2:]
        ]
    )
    return (
        pl.when(pl.col("samples").is_null()).then(pl.lit("no sample recorded"))
        .when(pl.col("pass_rate").is_null()).then(pl.format("0 of {} samples scored{}", "samples", silent))
        .otherwise(pl.concat_str([scored, silent]))
    )  # fmt: skip


def _two_digits(column: str) -> pl.Expr:
    hundredths = (pl.col(column) * 100).round(0).cast(pl.Int64)
    return pl.format("{}.{}", hundredths // 100, (hundredths % 100).cast(pl.String).str.zfill(2))


def buckets(rates: pl.DataFrame) -> pl.DataFrame:
    """Seven difficulty buckets: `problem_id, bucket` (null when the rate is unknown).

    unsolved 0, very_hard (0, .2), hard [.2, .4), medium [.4, .6], easy (.6, .8], very_easy (.8, 1), solved 1:
    symmetric, so that the default band is exactly hard, medium and easy.
    """
    rate = pl.col("pass_rate")
    edges = (rate <= 0, rate < 0.2, rate < 0.4, rate <= 0.6, rate <= 0.8, rate < 1, rate >= 1)
    bucket = pl.coalesce(pl.when(edge).then(pl.lit(name)) for edge, name in zip(edges, BUCKETS))
    return rates.select("problem_id", bucket.alias("bucket"))


def undecided(rates: pl.DataFrame, low: float = 0.2, high: float = 0.8, max_samples: int = 64) -> list[str]:
    """Ids whose verdict on the band may still turn and who are worth more samples, the most doubtful first.

    An id is undecided when all of these hold:
    1. its interval contains an edge of the band strictly inside, so the true rate may lie on either side;
    2. it has fewer than `max_samples` samples (all of them, so that endless truncation ends too);
    3. the samples still allowed could carry its pass rate over such an edge.
    An id with nothing scored is not among them: more of the same samples would say no more. Doubt is the
    smaller posterior mass of the two sides of the edge. Sampling and asking again ends at `max_samples`.
    """
    _refuse_band(low, high, "both")
    known = rates.filter(pl.col("pass_rate").is_not_null() & (pl.col("samples") < max_samples))
    doubt = np.maximum(_doubt(known, low, max_samples), _doubt(known, high, max_samples))
    ranked = known.select("problem_id").with_columns(pl.Series("doubt", doubt)).filter(pl.col("doubt") > 0)
    return ranked.sort("doubt", descending=True, maintain_order=True)["problem_id"].to_list()


def _doubt(rates: pl.DataFrame, edge: float, max_samples: int) -> np.ndarray:
    """Posterior mass on the edge's less likely side; 0 where the edge is settled or out of reach."""
    from scipy.special import betainc

    correct, wrong, samples, rate, below, above = (
        rates[c].to_numpy() for c in ("correct", "wrong", "samples", "pass_rate", "low", "high")
    )
    left = max_samples - samples
    total = correct + wrong + left
    reachable = np.where(rate < edge, (correct + left) / total >= edge, correct / total <= edge)
    mass = betainc(correct + 0.5, wrong + 0.5, edge)
    return np.where((below < edge) & (edge < above) & reachable, np.minimum(mass, 1 - mass), 0.0)
