"""Finds problems that are benchmark items: word for word, reworded, with other numbers, or by meaning.

Stages, cheap before dear; a row's stage is the first that holds, for each benchmark apart:

* `exact`: equal texts once folded (`filters/text.py`).
* `ngram`: the row covers the item's windows of `WINDOW` symbols of the `core` stream, each weighted by
  1 / (items of the index that have it)³, so that a sentence or a formula of several items says next to nothing.
  Also an item too short for windows that the row equals or holds, and a row that is wholly a part of a longer item
  (a question, where the benchmark was indexed with its answers).
* `number_variant`: the same with numbers masked, where the numbers differ; where only words beside them do, `near`.
* `near`: some windows agree and the sets of windows of `SMALL` symbols have a Jaccard similarity of `NEAR_JACCARD`.
* `embedding`: a cosine similarity of `COSINE` between vectors that the caller computed, or of `APART` where the item is
  ahead of every other of its benchmark by `LEAD`: problems of one kind are like many items, a retold one like one.
  Less will do (`TOLD`) where both hold the same numbers, which whoever retells a problem keeps: two and more, and all
  of them, or `SHARED` of them by weight, a number's weight being how much it tells within the benchmark, in nats, if
  those in common have `NATS`.

A judge that reads both texts may then clear what only resembles an item (`soft`, `settle`).

The thresholds were set on perturbed items of public benchmarks against training sources that share none with them.
"""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from assay.filters.text import batches, fold
from assay.filters.window_table import CLEAN, EMBEDDING, NEAR, NUMBER_VARIANT, STAGES, Windows, salted, scan, windows

__all__ = ["SOFT", "STAGES", "BenchmarkIndex", "decide", "settle", "soft"]

COSINE, APART, LEAD = 0.76, 0.65, 0.2  # set with all-MiniLM-L6-v2
TOLD, TOLD_LEAD = 0.6, 0.1
SHARED, NATS = 0.5, 4.0  # 17 of 20 retold items that were written afterwards are found, 14 by whole sets alone
WORDS = "two three four five six seven eight nine ten eleven twelve"
NUMBERS = {word: str(number) for number, word in enumerate(WORDS.split(), 2)}
MANY = 20  # items, below which being ahead of the others says nothing
SOFT = ("near", "embedding")  # stages that only resemble
SPAN, BATCH = 8_192, 1_024  # rows that a thread takes, and that it folds at once: those stay in the cache


def distinct(owner: np.ndarray, first: np.ndarray, full: np.ndarray, names: int) -> tuple[np.ndarray, np.ndarray]:
    """Item numbers of one copy of each text, and where each benchmark has that text, [texts, names]."""
    _, copies, text = np.unique(full, return_index=True, return_inverse=True)
    place = np.full((len(copies), names), -1, np.int32)
    items = np.arange(len(owner))[::-1]  # backwards, so that the first copy of a benchmark is the one that stays
    place[text[items], owner[items]] = items - first[owner[items]]
    return copies, place


def unit(vectors: np.ndarray, rows: int, what: str) -> np.ndarray:
    """Vectors [rows, d] scaled to length 1; a null vector stays null and is like nothing."""
    vectors = np.asarray(vectors, np.float32)
    if vectors.ndim != 2 or len(vectors) != rows:
        raise ValueError(f"{what}: vectors of shape {vectors.shape} for {rows} texts; give one row for each text")
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def numbers(text: str) -> set[str]:
    """The numbers of a text, of those in words two to twelve; one is mostly an article."""
    found = (NUMBERS.get(word, word) for word in re.findall(r"\d+|[a-z]+", text.replace(",", "").lower()))
    return {word for word in found if word.isdecimal()}


def same_numbers(text: str, other: str) -> bool:
    """Whether the numbers in digits of the text with fewer stand in the other in the same order."""
    fewer, more = sorted((re.findall(r"\d+", t.replace(",", "")) for t in (text, other)), key=len)
    rest = iter(more)
    return all(number in rest for number in fewer)


class ItemNumbers:
    """The numbers of each item of a benchmark, and how many items have each."""

    def __init__(self, items: Sequence[str]) -> None:
        self.of = [numbers(item) for item in items]
        self.items = Counter(number for found in self.of for number in found)

    def same(self, own: set[str], item: int) -> bool:
        """Whether a text with the numbers `own` keeps those of the item."""
        both, either = (self._nats(found) for found in (own & self.of[item], own | self.of[item]))
        return (len(own) > 1 and own == self.of[item]) or (both >= NATS and both >= SHARED * either)

    def _nats(self, found: set[str]) -> float:
        return sum(math.log(len(self.of) / (self.items[number] + 1)) for number in found)


@dataclass(frozen=True)
class BenchmarkIndex:
    """Benchmarks made ready to be looked for. Build it with `BenchmarkIndex.build`."""

    texts: Mapping[str, Sequence[str]]
    table: Windows
    vectors: Mapping[str, np.ndarray]

    @cached_property
    def _numbers(self) -> dict[str, ItemNumbers]:
        return {name: ItemNumbers(self.texts[name]) for name in self.vectors}

    @classmethod
    def build(
        cls, benchmarks: Mapping[str, Sequence[str]], vectors: Mapping[str, np.ndarray] | None = None
    ) -> "BenchmarkIndex":
        """Index benchmark items, each a question or a question with its answer.

        Args:
            benchmarks: the items of each benchmark by its name.
            vectors: embeddings [items, d] of the benchmarks to compare by meaning as well.

        Raises:
            ValueError: no benchmark, one without items, or vectors that do not fit it.
        """
        if hollow := [name for name, items in benchmarks.items() if len(items) == 0] or not benchmarks:
            raise ValueError(f"no items to look for in {hollow if benchmarks else 'an empty set of benchmarks'}")
        if unknown := set(vectors or {}) - set(benchmarks):
            raise ValueError(f"vectors for {sorted(unknown)}, which is no benchmark; there are {sorted(benchmarks)}")
        sizes = [len(items) for items in benchmarks.values()]
        everything = pl.Series([t for items in benchmarks.values() for t in items], dtype=pl.String)
        folded = fold(everything)
        owner, first = np.repeat(np.arange(len(sizes)), sizes), np.cumsum([0, *sizes[:-1]])
        copies, place = distinct(owner, first, salted(folded, np.arange(len(everything)))[0], len(sizes))
        folded = fold(everything[copies])
        scaled = {n: unit(v, len(benchmarks[n]), f"benchmark {n}") for n, v in (vectors or {}).items()}
        return cls(dict(benchmarks), windows(folded, salted(folded, np.arange(len(copies))), place), scaled)

    def hits(
        self, texts: Sequence[str | None] | pl.Series, vectors: np.ndarray | None = None, cosine: float = COSINE
    ) -> pl.DataFrame:
        """Every benchmark that a row hits, with the item it is most like.

        Args:
            texts: n problems; a null hits nothing.
            vectors: their embeddings [n, d], from the model that embedded the benchmarks.
            cosine: the least similarity of an `embedding` hit.

        Returns:
            `row, stage, benchmark, benchmark_index, score`, by row, then stage, then falling score. A score is the
            share of the item found (exact to number_variant), a Jaccard similarity (near) or a cosine (embedding).
        """
        column = texts if isinstance(texts, pl.Series) else pl.Series(texts, dtype=pl.String)
        found = np.full((len(column), len(self.texts), 2), CLEAN, np.int32)
        score = np.zeros((len(column), len(self.texts)), np.float32)

        def work(spans: range) -> None:
            scratch = self.table.scratch()
            for start in spans:
                for at, folded in batches(column[start : start + SPAN], BATCH):
                    part = slice(start + at, start + at + BATCH)
                    scan(folded, start + at, self.table, scratch, found[part], score[part])

        workers = os.cpu_count() or 1
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, [range(SPAN * k, len(column), SPAN * workers) for k in range(workers)]))
        for b, items in enumerate(self.texts.values()):
            for row in np.flatnonzero(found[:, b, 0] == NUMBER_VARIANT):
                if same_numbers(column[int(row)], items[found[row, b, 1]]):
                    found[row, b, 0] = NEAR
        if vectors is not None:
            self._compare(column, unit(vectors, len(column), "texts"), cosine, found, score)
        return self._table(found, score)

    def _compare(
        self, texts: pl.Series, vectors: np.ndarray, least: float, found: np.ndarray, score: np.ndarray
    ) -> None:
        """Add embedding hits where a benchmark has vectors and nothing cheaper hit it."""
        for b, name in enumerate(self.texts):
            for at in range(0, len(vectors) if name in self.vectors else 0, BATCH):
                cosine = vectors[at : at + BATCH] @ self.vectors[name].T
                best, part = cosine.argmax(axis=1), slice(at, at + BATCH)
                rows = np.arange(len(best))
                value = cosine[rows, best].copy()
                cosine[rows, best] = -1
                lead = (value - cosine.max(axis=1)) * (cosine.shape[1] >= MANY)
                alike = (value >= least) | ((value >= APART) & (lead >= LEAD))
                for row in np.flatnonzero(~alike & (value >= TOLD) & (lead >= TOLD_LEAD)):
                    own, items = numbers(texts[at + int(row)] or ""), self._numbers[name]
                    alike[row] = items.same(own, int(best[row]))
                new = (found[part, b, 0] == CLEAN) & alike
                found[part, b][new] = np.stack([np.full(new.sum(), EMBEDDING), best[new]], axis=1)
                score[part, b][new] = value[new]

    def _table(self, found: np.ndarray, score: np.ndarray) -> pl.DataFrame:
        row, benchmark = np.nonzero(found[:, :, 0] != CLEAN)
        stage, index = found[row, benchmark].T
        hits = pl.DataFrame(
            {
                "row": row,
                "stage": stage,
                "benchmark": benchmark,
                "benchmark_index": index,
                "score": score[row, benchmark],
            }
        ).sort("row", "stage", -pl.col("score"), "benchmark")
        names = pl.Series(list(self.texts), dtype=pl.String)
        return hits.with_columns(
            pl.Series("stage", STAGES, dtype=pl.String).gather(hits["stage"]),
            names.gather(hits["benchmark"]).alias("benchmark"),
        )

    def scan(self, texts: Sequence[str | None] | pl.Series, vectors: np.ndarray | None = None) -> pl.DataFrame:
        """The best hit of every row, in order: `row, contaminated, stage, benchmark, benchmark_index, score`.

        The arguments are those of `hits`. A clean row has nulls and score 0.
        """
        best = self.hits(texts, vectors).unique("row", keep="first", maintain_order=True)
        rows = pl.DataFrame({"row": np.arange(len(texts))}).join(best, on="row", how="left", maintain_order="left")
        return rows.with_columns(pl.col("score").fill_null(0.0)).insert_column(
            1, rows["stage"].is_not_null().alias("contaminated")
        )


def decide(
    problems: pl.DataFrame,
    index: BenchmarkIndex,
    vectors: np.ndarray | None = None,
    stages: Sequence[str] = STAGES,
    cosine: float = COSINE,
) -> pl.DataFrame:
    """Drop problems that are benchmark items; the reason is the stage.

    Args:
        problems: `id, problem`.
        index: the benchmarks.
        vectors: embeddings of the problems [n, d], if the index has them.
        stages: those that drop; a hit at another stage is kept and stays in the evidence.
        cosine: the least similarity of an `embedding` hit.

    Returns:
        Decisions. The evidence is JSON: the benchmark, index, score and first 200 characters of the item most alike,
        and under `also` the same of each further benchmark that was hit.
    """
    hits = index.hits(problems["problem"], vectors, cosine)
    found: dict[int, list[dict[str, object]]] = {}
    for hit in hits.iter_rows(named=True):
        text = index.texts[hit["benchmark"]][hit["benchmark_index"]][:200]
        item = {"benchmark": hit["benchmark"], "index": hit["benchmark_index"], "stage": hit["stage"]}
        found.setdefault(hit["row"], []).append(item | {"score": round(hit["score"], 3), "text": text})
    evidence = [
        json.dumps(found[row][0] | ({"also": found[row][1:]} if found[row][1:] else {}), ensure_ascii=False)
        if row in found else None for row in range(len(problems))
    ]  # fmt: skip
    best = hits.filter(pl.col("stage").is_in(stages)).unique("row", keep="first")
    rows = problems.select("id").with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    reasons = rows.join(best.select("row", reason="stage"), on="row", how="left", maintain_order="left")
    return reasons.select(
        "id", pl.col("reason").is_null().alias("keep"), "reason", pl.Series("evidence", evidence, dtype=pl.String)
    )


def soft(decisions: pl.DataFrame) -> pl.DataFrame:
    """The hits that a judge may clear: `id, benchmark, index`, for every row that is dropped for a stage of `SOFT`.

    A row that has hits in several benchmarks has a row here for each.
    """
    doubtful = decisions.filter(~pl.col("keep") & pl.col("reason").is_in(SOFT))
    rows = []
    for name, evidence in doubtful.select("id", "evidence").iter_rows():
        first = json.loads(evidence)
        rows += [(name, hit["benchmark"], hit["index"]) for hit in [first, *first.get("also", [])]]
    return pl.DataFrame(rows, {"id": pl.String, "benchmark": pl.String, "index": pl.Int64}, orient="row")


def settle(decisions: pl.DataFrame, judged: pl.DataFrame) -> pl.DataFrame:
    """The decisions after a judge's word: a row is kept where it said no to every one of its hits.

    Args:
        judged: `id, same`, a row for each of `soft`; null where the judge was not clear, which clears nothing.
    """
    words = judged.group_by("id").agg(
        cleared=(pl.col("same") == False).fill_null(False).all(),  # noqa: E712
        judge=pl.when(pl.col("same").any()).then(pl.lit("yes"))
        .when(pl.col("same").is_null().any()).then(pl.lit("unclear")).otherwise(pl.lit("no")),
    )  # fmt: skip
    rows = decisions.join(words, on="id", how="left", maintain_order="left")
    cleared, said = pl.col("cleared").fill_null(False), pl.col("evidence").str.strip_suffix("}")
    return rows.select(
        "id",
        keep=pl.col("keep") | cleared,
        reason=pl.when(~cleared).then("reason"),
        evidence=pl.when(pl.col("judge").is_null())
        .then("evidence")
        .otherwise(pl.concat_str(said, pl.lit(', "judge": "'), "judge", pl.lit('"}'))),
    )
