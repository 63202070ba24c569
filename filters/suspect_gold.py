"""Golds that the evidence speaks against: a queue for repair, since what nobody solves is often mislabelled.

Two signs. A model is always wrong by the gold and agrees with itself on another answer; or a strong model is
always wrong where a weak one is right, which wrong golds bring about and hard problems do not.
"""

import re
from collections.abc import Sequence
from fractions import Fraction

import polars as pl

__all__ = ["agreement", "canonical", "decide"]

NUMBER = re.compile(r"([-+]?\d+(?:\.\d+)?)(?:/(\d*[1-9]\d*))?")


def decide(
    problems: pl.DataFrame,
    answers: pl.DataFrame,
    min_share: float = 0.6,
    min_samples: int = 4,
    strong: str | None = None,
    weak: str | Sequence[str] | None = None,
) -> pl.DataFrame:
    """Reject as suspect_gold; the evidence is the majority answer and its share, or the two models' counts.

    Args:
        problems: `id`.
        answers: one row per sample that thought: `problem_id, extracted, status`, and `model` where two
            models are compared. Only correct and wrong samples count; a truncated one is no vote.
        min_share: of the scored samples that give the majority answer, which must be graded wrong.
        min_samples: scored samples below which nothing is said.
        strong: the model whose agreement counts; all samples together when null.
        weak: suspects also what `strong` never gets right and this model, or one of these, gets right in `min_share`
            of its scored samples. Needs `strong`.

    Raises:
        ValueError: `weak` without `strong`, or a model that `answers` does not hold.
    """
    others = [weak] if isinstance(weak, str) else list(weak or ())
    _refuse_models(answers, strong, others)
    scored = answers.filter(pl.col("status").is_in(["correct", "wrong"]))
    judged = scored if strong is None else scored.filter(pl.col("model") == strong)
    found = agreement(judged).filter(pl.col("samples") >= min_samples, pl.col("correct") == 0)
    agreed = found.filter(pl.col("share") >= min_share).select("problem_id", evidence=_majority())
    agreed = pl.concat([agreed, *(_inverted(found, scored, name, min_share, min_samples) for name in others)])
    merged = agreed.group_by("problem_id", maintain_order=True).agg(pl.col("evidence").str.join("; "))
    ids = problems.select("id")
    joined = ids.join(merged, left_on="id", right_on="problem_id", how="left", maintain_order="left")
    reason = pl.when(pl.col("evidence").is_not_null()).then(pl.lit("suspect_gold"))
    return joined.select("id", keep=reason.is_null(), reason=reason, evidence="evidence")


def _refuse_models(answers: pl.DataFrame, strong: str | None, weak: list[str]) -> None:
    if weak and strong is None:
        raise ValueError("a weak model is compared with a strong one: name both")
    held = set(answers["model"].unique()) if "model" in answers.columns else set()
    missing = [name for name in (strong, *weak) if name is not None and name not in held]
    if missing:
        raise ValueError(f"no answer of model {missing[0]!r}; the answers hold {sorted(held)}")


def agreement(scored: pl.DataFrame) -> pl.DataFrame:
    """The majority answer of each problem: `problem_id, samples, correct, answer, votes, share`.

    Answers that differ in notation only (see `canonical`) are one; a sample without an answer is no vote but
    is in the denominator of the share. Ties go to the answer seen first.
    """
    unique = scored["extracted"].drop_nulls().unique().to_list()
    classes = pl.DataFrame(
        {"extracted": unique, "answer_class": [canonical(text) for text in unique]},
        schema={"extracted": pl.String, "answer_class": pl.String},
    )
    rows = scored.join(classes, on="extracted", how="left", maintain_order="left")
    totals = rows.group_by("problem_id", maintain_order=True).agg(
        samples=pl.len(), correct=(pl.col("status") == "correct").sum()
    )
    votes = (
        rows.filter(pl.col("answer_class").is_not_null())
        .group_by("problem_id", "answer_class", maintain_order=True)
        .agg(answer=pl.col("extracted").first(), votes=pl.len())
        .sort("votes", descending=True, maintain_order=True)
        .unique("problem_id", keep="first", maintain_order=True)
    )
    joined = totals.join(votes.drop("answer_class"), on="problem_id", how="left", maintain_order="left")
    return joined.with_columns(share=pl.col("votes") / pl.col("samples"))


def canonical(answer: str) -> str:
    """One text for the notations of a number ("0.50", "1/2", "$.5$"), else the text, folded."""
    text = re.sub(r"[\s$]|\\[,;!]|\\left|\\right", "", answer).rstrip(".").casefold()
    text = re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text)
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    plain = "0" + plain if plain.startswith(".") else plain
    number = NUMBER.fullmatch(plain)
    return str(Fraction(number[1]) / Fraction(number[2] or 1)) if number and len(plain) < 40 else text


def _majority() -> pl.Expr:
    percent = (pl.col("share") * 100).round(0).cast(pl.Int64)
    return pl.format(
        'never the gold in {} samples; "{}" in {} of them ({}%)',
        "samples",
        pl.col("answer").str.slice(0, 200),
        "votes",
        percent,
    )


def _inverted(
    strong: pl.DataFrame, scored: pl.DataFrame, weak: str, min_share: float, min_samples: int
) -> pl.DataFrame:
    """`problem_id, evidence` where the weak model is right and `strong` (all of them never right) is not."""
    right = (pl.col("status") == "correct").sum()
    weaker = scored.filter(pl.col("model") == weak).group_by("problem_id")
    rates = weaker.agg(weak_right=right, weak_of=pl.len()).filter(pl.col("weak_of") >= min_samples)
    usual = rates.filter(pl.col("weak_right") >= min_share * pl.col("weak_of"))
    text = pl.format("strong model 0/{} correct, weak model {}/{}", "samples", "weak_right", "weak_of")
    return strong.join(usual, on="problem_id", maintain_order="left").select("problem_id", evidence=text)
