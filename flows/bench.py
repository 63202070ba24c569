"""How well the filters work: each one's figure on labelled cases beside what it must reach.

With real data (`--data`, folders `sources` and `benchmarks` in the schemas of the recipe `math_pool`; `--cases`, the
files `formats.jsonl` and `decontamination.jsonl`) the figures are of those, else of the small cases of this package.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from assay.filters import answer_format, contamination, duplicates
from assay.pipelines.errors import SourceError

__all__ = ["CASES", "KINDS", "Figure", "contaminated", "copies", "false_positives", "formats", "measure",
           "multiple_choice", "other_formats", "paraphrases", "real_pool", "table"]  # fmt: skip

CASES = Path(__file__).parent / "cases"
CHOICE = ("aqua", "mmlu_stem", "gaokao_math_qa", "cn_middle_school")
KINDS = {"verbatim": 0.99, "case_changed": 0.99, "markup_stripped": 0.99, "operators_spaced": 0.99,
         "operators_unspaced": 0.99, "rewrapped_unicode": 0.99, "wrapped_in_prompt": 0.99, "synonyms": 0.99,
         "digits_changed": 0.95}  # fmt: skip
"""Recall to reach for each way in which a benchmark item was changed."""


@dataclass(frozen=True)
class Figure:
    """One row of the table; `value` is a share of `of` rows, and `misses` are the rows that count against it."""

    what: str
    on: str
    value: float
    of: int
    need: float
    most: bool = False
    """Whether `need` is the most that is allowed instead of the least."""
    misses: list[str] = field(default_factory=list, repr=False)

    @property
    def holds(self) -> bool:
        """Whether the figure is what it must be."""
        return self.of > 0 and (self.value <= self.need if self.most else self.value >= self.need)

    @property
    def bound(self) -> str:
        """What the figure must be, in words."""
        return f"{'<=' if self.most else '>='} {_percent(self.need)}"


def rows_of(path: Path) -> list[dict[str, object]]:
    """The rows of a JSONL file."""
    if not path.is_file():
        raise SourceError(f"{path}: no such file; `assay bench filters --help` says what the folders hold.")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def frame(rows: Sequence[dict[str, object]]) -> pl.DataFrame:
    """`id, problem, answer, options` of labelled cases; an id is the place."""
    schema = pl.Schema({"problem": pl.String(), "answer": pl.String(), "options": pl.List(pl.String)})
    data = [{name: row.get(name) for name in schema} for row in rows]
    return pl.DataFrame(data, schema=schema).with_columns(id=pl.int_range(pl.len()).cast(pl.String))


def real_pool(data: Path) -> pl.DataFrame:
    """The problems of all sources under `data`, as the recipe `math_pool` reads them."""
    from assay.flows.cli import recipe_path
    from assay.pipelines import sources
    from assay.pipelines.recipe import RefreshRecipe, load

    recipe = load(recipe_path("math_pool"), RefreshRecipe, [f"data={data.resolve()}"])
    found = [source for source in recipe.sources if source.path is not None and source.path.exists()]
    if not found:
        raise SourceError(f"{data}: holds no source of the recipe math_pool, such as {recipe.sources[0].path}.")
    return pl.concat(sources.read(source)[0] for source in found)


def formats(cases: Sequence[dict[str, object]]) -> Figure:
    """The format of every labelled case."""
    found = answer_format.classify(frame(cases))["format"].to_list()
    wrong = [f"{case['expected']} read as {kind}: {case['problem']}" for case, kind in zip(cases, found)
             if kind != case["expected"]]  # fmt: skip
    return Figure("formats", f"{len(cases)} labelled cases", 1 - len(wrong) / len(cases), len(cases), 1.0, misses=wrong)


def multiple_choice(pool: pl.DataFrame) -> Figure:
    """Recall on rows that are multiple choice by their gold; the options go into the text, and the field is hidden in
    every second row."""
    rows = pool.filter(pl.col("source").is_in(CHOICE), pl.col("answer").str.contains("^[A-J]{1,4}$"))
    written = pl.col("options").list.eval(pl.format("{}. {}", pl.element().cum_count().replace_strict(
        dict(enumerate("ABCDEFGHIJ", 1)), return_dtype=pl.String), pl.element())).list.join("\n")  # fmt: skip
    hidden = pl.int_range(pl.len()) % 2 == 0
    shown = rows.with_columns(
        problem=pl.concat_str("problem", written.fill_null(""), separator="\n"),
        options=pl.when(~hidden).then("options"),
    )
    found = answer_format.classify(shown).with_columns(shown["problem"])
    missed = found.filter(pl.col("format") != "multiple_choice")
    share = 1 - len(missed) / max(1, len(rows))
    return Figure("multiple choice, recall", "four sources of choices", share, len(rows), 0.99,
                  misses=missed["problem"].to_list())  # fmt: skip


def false_positives(pool: pl.DataFrame) -> Figure:
    """Free answers taken for multiple choice or true/false."""
    return _taken(pool, "formats, false positives", ["multiple_choice", "true_false"])


def other_formats(pool: pl.DataFrame) -> Figure:
    """Free answers dropped as a proof or several questions: false positives too, but for the few that are such."""
    return _taken(pool, "formats, read as proof or several", ["proof", "multi_part"])


def _taken(pool: pl.DataFrame, what: str, formats: list[str], need: float = 0.005) -> Figure:
    rows = pool.filter(~pl.col("source").is_in(CHOICE))
    found = answer_format.classify(rows).with_columns(rows["source", "problem", "answer"])
    wrong = found.filter(pl.col("format").is_in(formats)).rechunk()  # pl.format needs it
    said = wrong.select(pl.format("{}: {} | {} | {}", "source", "evidence", "problem", pl.col("answer").fill_null("")))
    return Figure(what, "free-answer sources", len(wrong) / max(1, len(rows)), len(rows), need,
                  most=True, misses=said.to_series().to_list())  # fmt: skip


def contaminated(items: list[str], cases: Sequence[dict[str, object]]) -> Iterator[Figure]:
    """Recall for every kind of change, of the number variants those that are named so, and the clean rows flagged."""
    index = contamination.BenchmarkIndex.build({"benchmark": items})
    found = index.scan([str(case["problem"]) for case in cases])
    rows = found.with_columns(
        kind=pl.Series([case["kind"] for case in cases]), text=pl.Series([str(case["problem"]) for case in cases])
    )
    for kind, need in KINDS.items():
        own = rows.filter(pl.col("kind") == kind)
        named = pl.col("stage") == "number_variant" if kind == "digits_changed" else pl.col("contaminated")
        missed = own.filter(~named.fill_null(False))["text"].to_list()
        if len(own):
            yield Figure(f"contamination, {kind}", "changed items", 1 - len(missed) / len(own), len(own), need,
                         misses=missed)  # fmt: skip
    clean = rows.filter(pl.col("kind") == "other_source")
    flagged = clean.filter("contaminated")["text"].to_list()
    yield Figure("contamination, clean rows flagged", "rows of other sources", len(flagged) / len(clean), len(clean),
                 2 / 600, most=True, misses=flagged)  # fmt: skip


def paraphrases(
    items: list[str], cases: Sequence[dict[str, object]], embed: Callable[[list[str]], object]
) -> list[Figure]:
    """With the embedding stage: recall on items told in other words, and the clean rows flagged."""
    import numpy as np

    rows = [case for case in cases if case["kind"] in ("paraphrase", "other_source")]
    texts = [str(case["problem"]) for case in rows]
    index = contamination.BenchmarkIndex.build({"benchmark": items}, {"benchmark": np.asarray(embed(items))})
    hit = index.scan(texts, np.asarray(embed(texts)))["contaminated"].to_list()
    told = [bool(h) for h, case in zip(hit, rows) if case["kind"] == "paraphrase"]
    clean = [bool(h) for h, case in zip(hit, rows) if case["kind"] == "other_source"]
    flagged = [text for h, text, case in zip(hit, texts, rows) if h and case["kind"] == "other_source"]
    return [
        Figure("contamination, paraphrase", "with embeddings", sum(told) / max(1, len(told)), len(told), 0.7),
        Figure("contamination, clean rows flagged", "with embeddings", sum(clean) / max(1, len(clean)), len(clean),
               2 / 600, most=True, misses=flagged),
    ]  # fmt: skip


PREFIXES = ("Solve this problem: ", "Question: ", "Please think carefully. ", "Here is a math problem. ")


def _typo(text: str, rng: random.Random) -> str:
    places = [match.start() + 2 for match in re.finditer(r"(?<![\\a-zA-Z])[a-z]{6,}", text)]
    at = rng.choice(places) if len(text) > 60 and places else None
    return text if at is None else text[:at] + text[at + 1 :]


CHANGES: tuple[Callable[[str, random.Random], str], ...] = (
    lambda text, rng: rng.choice(PREFIXES) + text,
    lambda text, _: re.sub(r"\s+", "\n", text),
    lambda text, _: text.replace("$", ""),
    lambda text, _: re.sub(r"[.?。？]\s*$", "", text),
    _typo,
)


def copies(pool: pl.DataFrame, share: float = 0.2, seed: int = 0) -> list[Figure]:
    """Recall and precision on near copies planted in a pool: reworded in front, rewrapped, misspelt, without markup.

    Rows whose texts are equal but for spaces and case are one problem; whatever else is dropped for a row that it was
    not made from counts as wrong, be it a true copy of the pool's own.
    """
    rng, texts = random.Random(seed), pool["problem"].to_list()
    names: dict[str, int] = {}
    origin = [names.setdefault("".join(text.split()).casefold(), i) for i, text in enumerate(texts)]
    planted = rng.sample(range(len(texts)), int(share * len(texts)))
    order = list(range(len(texts) + len(planted)))
    rng.shuffle(order)
    everything = texts + [rng.choice(CHANGES)(texts[i], rng) for i in planted]
    truth = origin + [origin[i] for i in planted]
    mixed = pl.DataFrame({"id": [str(i) for i in order], "problem": [everything[i] for i in order]})
    found = duplicates.decide(mixed).filter(~pl.col("keep"))
    pairs = [(int(i), int(json.loads(e)["kept"])) for i, e in found.select("id", "evidence").iter_rows()]
    right = sum(truth[i] == truth[kept] for i, kept in pairs)
    wrong = [f"{everything[i]} || {everything[kept]}" for i, kept in pairs if truth[i] != truth[kept]]
    dropped, extra = {i for i, _ in pairs}, len(everything) - len(set(truth))
    missed = [everything[i] for i in range(len(texts), len(everything)) if not {i, truth[i]} & dropped]
    on = f"{len(planted)} copies planted among {len(texts)}"
    return [
        Figure("duplicates, recall", on, right / max(1, extra), extra, 0.98, misses=missed),
        Figure("duplicates, precision", on, right / max(1, len(pairs)), len(pairs), 0.99, misses=wrong),
    ]


def measure(data: Path | None, cases: Path | None, embeddings: str | None = None) -> Iterator[Figure]:
    """Every figure, one after the other.

    Args:
        data: real sources and benchmarks; without them, the package's own.
        cases: labelled cases, which need `data`; without them, the package's own.
        embeddings: a sentence-embedding model, for the paraphrases.
    """
    if cases is not None and data is None:
        raise SourceError(f"--cases {cases} needs --data: its contaminated rows are of the benchmarks that lie there.")
    real = data is not None and cases is not None
    folder = cases if real and cases is not None else CASES
    yield formats(rows_of(folder / "formats.jsonl"))
    pool = real_pool(data) if data is not None else frame(rows_of(CASES / "pool.jsonl"))
    if data is not None:
        yield multiple_choice(pool)
        yield false_positives(pool)
        yield other_formats(pool)
    path = data / "benchmarks" / "math500.jsonl" if real and data is not None else CASES / "benchmark.jsonl"
    items = [str(row["problem"]) for row in rows_of(path)]
    changed = rows_of(folder / "decontamination.jsonl")
    yield from contaminated(items, changed)
    if embeddings is not None:
        from assay.pipelines.curation import embed

        told = rows_of(CASES / "paraphrases.jsonl") if real else []
        yield from paraphrases(items, changed + told, lambda texts: embed(embeddings, texts))
    yield from copies(pool, 0.2 if data is not None else 1.0)  # of a small pool, all: fewer copies are all noise


def table(figures: Sequence[Figure]) -> str:
    """The figures as lines of text."""
    head = ("what", "on", "reached", "must reach", "rows", "")
    lines = [head] + [
        (f.what, f.on, _percent(f.value), f.bound, str(f.of), "" if f.holds else "FALLS SHORT")
        for f in figures
    ]  # fmt: skip
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
