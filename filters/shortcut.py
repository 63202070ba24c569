"""Problems that can be answered without reasoning: by the model at once, or by anyone who knows the source.

`decide` reads direct answers (an empty thinking block) and `guessable` reads only golds and options: what a
guesser gets who knows the source and never reads the problem.
"""

import re

import polars as pl

from assay.filters import difficulty

__all__ = ["decide", "guessable", "guesses"]

LABEL = re.compile(r"^[(（]?[a-z][)）.:、．]\s*")  # of an option in its folded text: "a) 12 metre"
LETTER = re.compile(r"[(（]?([a-z])[)）.]?")


def decide(problems: pl.DataFrame, direct_rates: pl.DataFrame, threshold: int = 1) -> pl.DataFrame:
    """Reject as solvable_without_cot what was right at least `threshold` times within its direct answers.

    Args:
        problems: `id`.
        direct_rates: `difficulty.pass_rates` of the samples in direct mode, one row per id.
        threshold: right answers that reject; 1 is "right within N" (Kimi k1.5, section 2.1, N = 8). With an
            answer that a guess may hit, ask for more: a 4-option item falls to 8 guesses 9 times in 10.

    Returns:
        Decisions. A problem without direct answers is kept, and its evidence says that none was recorded.
    """
    if threshold < 1:
        raise ValueError(f"threshold {threshold} would reject every problem; it counts right answers, from 1")
    ids = problems.select("id")
    joined = ids.join(direct_rates, left_on="id", right_on="problem_id", how="left", maintain_order="left")
    reason = pl.when(pl.col("correct") >= threshold).then(pl.lit("solvable_without_cot"))
    evidence = pl.format("direct: {}", difficulty.evidence())
    return joined.select("id", keep=reason.is_null(), reason=reason, evidence=evidence)


def guessable(problems: pl.DataFrame, min_rows: int = 20, bound: float = 0.5, p_value: float = 0.001) -> pl.DataFrame:
    """Reject as guessable the rows whose gold is what a guess from the source alone gives.

    A guess (see `guesses`) counts when it applies to at least `min_rows` rows, its `lift` is `bound` or more,
    and so many hits by chance have a probability under `p_value`.

    Args:
        problems: `id, source, answer`, and `options` (list of strings, or null) if there are any. A gold
            among options is its letter or its text.
    """
    if not 0 < bound <= 1:
        raise ValueError(f"bound {bound} is not in (0, 1]")
    uses = _uses(problems)
    good = _count(uses).filter(pl.col("n") >= min_rows, pl.col("lift") >= bound, pl.col("p") < p_value)
    hits = uses.filter("hit").drop("chance").join(good, on=["source", "rule", "guess"], nulls_equal=True)
    best = hits.sort("p", "rule").unique("row", keep="first", maintain_order=True).select("row", _evidence())
    rows = problems.select("id").with_row_index("row")
    joined = rows.join(best, on="row", how="left", maintain_order="left")
    reason = pl.when(pl.col("evidence").is_not_null()).then(pl.lit("guessable"))
    return joined.select("id", keep=reason.is_null(), reason=reason, evidence="evidence")


def guesses(problems: pl.DataFrame) -> pl.DataFrame:
    """Every guess that needs no reading: `source, rule, guess, hits, n, chance, lift, p`, highest lift first.

    Rules: `answer` (one gold for the whole source), `position` (one place among the options) and `option` (an
    option text, wherever it is offered). Chance is one over the number of options; for `answer`, one over the
    source's distinct golds, at least two. Lift is what the guess earns of what chance leaves,
    (hits/n - chance) / (1 - chance), the form of Cohen's kappa. p is the binomial tail P(X >= hits).
    """
    return _count(_uses(problems)).sort("lift", descending=True, maintain_order=True)


def _uses(problems: pl.DataFrame) -> pl.DataFrame:
    """One row for each way a problem bears on a guess: `row, source, rule, guess, hit, chance`."""
    options = problems["options"] if "options" in problems.columns else [None] * len(problems)
    uses: list[tuple[int, str | None, str, str, bool, float | None]] = []
    for row, (source, answer, offered) in enumerate(zip(problems["source"], problems["answer"], options)):
        gold = _fold(answer or "")
        if gold:
            uses.append((row, source, "answer", gold, True, None))
        texts = [LABEL.sub("", _fold(text or "")) for text in offered] if offered is not None else []
        place = _place(gold, texts)
        if place is None or len(texts) < 2:
            continue
        uses.append((row, source, "position", chr(ord("A") + place), True, 1 / len(texts)))
        uses += [(row, source, "option", text, i == place, 1 / len(texts)) for i, text in enumerate(texts)]
    schema = {"row": pl.UInt32, "source": pl.String, "rule": pl.String, "guess": pl.String, "hit": pl.Boolean}
    return pl.DataFrame(uses, schema=schema | {"chance": pl.Float64}, orient="row")


def _fold(text: str) -> str:
    return " ".join(text.replace("$", " ").casefold().split())


def _place(gold: str, texts: list[str]) -> int | None:
    """Index of the gold among the options: by its letter, else by its text; null when it is none of them."""
    letter = LETTER.fullmatch(gold)
    if letter and ord(letter[1]) - ord("a") < len(texts):
        return ord(letter[1]) - ord("a")
    text = LABEL.sub("", gold)
    return texts.index(text) if text in texts else None


def _count(uses: pl.DataFrame) -> pl.DataFrame:
    from scipy.special import bdtrc

    rule = ["source", "rule"]
    by_rule = uses.group_by(rule).agg(
        rows=pl.col("row").n_unique(),
        distinct=pl.col("guess").n_unique(),
        mean_chance=pl.col("chance").mean(),
    )
    by_guess = uses.group_by([*rule, "guess"], maintain_order=True).agg(
        hits=pl.col("hit").sum(), offered=pl.len(), own_chance=pl.col("chance").mean()
    )
    is_option, one_of_golds = pl.col("rule") == "option", 1 / pl.col("distinct").clip(lower_bound=2)
    found = by_guess.join(by_rule, on=rule, nulls_equal=True, maintain_order="left").with_columns(
        n=pl.when(is_option).then("offered").otherwise("rows"),
        chance=pl.when(is_option).then("own_chance").otherwise(pl.coalesce("mean_chance", one_of_golds)),
    )
    hits = found["hits"].cast(pl.Int64).to_numpy()
    tail = bdtrc(hits - 1, found["n"].cast(pl.Int64).to_numpy(), found["chance"].to_numpy())
    lift = (pl.col("hits") / pl.col("n") - pl.col("chance")) / (1 - pl.col("chance"))
    columns = ("source", "rule", "guess", "hits", "n", "chance")
    return found.select(*columns, lift=lift).with_columns(pl.Series("p", tail, pl.Float64))


def _evidence() -> pl.Expr:
    words = {"answer": "is the gold", "position": "is the gold's place", "option": "is right when offered"}
    said = pl.col("rule").replace_strict(words, return_dtype=pl.String)
    source = pl.col("source").fill_null("no source")
    share = (pl.col("chance") * 100).round(0).cast(pl.Int64)
    text = pl.format('"{}" {} in {} of {} rows of {} (chance {}%)', "guess", said, "hits", "n", source, share)
    return text.alias("evidence")
