"""Finds problems that are benchmark items: word for word, reworded, with other numbers, or by meaning.

Stages, cheap before dear; a row's stage is the first that holds, for each benchmark apart:

* `exact`: equal texts once folded (`filters/text.py`).
* `ngram`: the row covers the item's windows of `WINDOW` symbols of the `core` stream, each weighted by
  1 / (items of the index that have it)³, so that a sentence or a formula of several items says next to nothing.
  Also an item too short for windows that the row equals or holds, and a row that is wholly a part of a longer item
  (a question, where the benchmark was indexed with its answers).
* `number_variant`: the same with numbers masked, where the numbers differ.
* `near`: some windows agree and the sets of windows of `SMALL` symbols have a Jaccard similarity of `NEAR_JACCARD`.
* `embedding`: a cosine similarity of `COSINE` between vectors that the caller computed.

The thresholds were set on perturbed items of public benchmarks against training sources that share none with them.
"""

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np
import polars as pl

from assay.filters.text import MAX_SYMBOLS, Folded, fold, whole_hashes, window_hashes

__all__ = ["STAGES", "BenchmarkIndex", "decide"]

STAGES = ("exact", "ngram", "number_variant", "near", "embedding")
EXACT, NGRAM, NUMBER_VARIANT, NEAR, EMBEDDING, CLEAN = range(6)

WINDOW, SMALL = 12, 5  # symbols; twelve are two or three words, or four ideographs
COVER, DISTINCT = 0.6, 20.0  # share and weight of an item's windows that convict whatever else is in the row
SHORT_COVER, SHORT_ROW, SHORT_WEIGHT = 0.8, 0.5, 3.0  # a short item must also be much of the row
HELD_SYMBOLS, HELD_COVER = 14, 0.99  # an item of so many symbols, numbers included, that the row holds
ROW_COVER = 0.9  # a row within an item
CANDIDATE, NEAR_JACCARD = 0.1, 0.45
OWN = 0.5  # weighted over plain share of an item's windows, below which what agrees is stock
NUMBERED_JACCARD, NUMBERED_COVER, NUMBERED = 0.25, 0.85, 3  # less will do where windows with digits agree
SAME_NUMBERS = 0.97  # windows with digits found, over windows without digits found
COMMON = 16  # items beyond which a window is stock and not kept at all
SHORT_CORE = 64  # symbols up to which equality of `core` is looked up; windows find longer ones
MIN_CORE, MIN_MASKED = 5, 8  # symbols without which equality of `core`, or of masked texts, says nothing
COSINE = 0.9
BATCH = 1_024  # rows; what a batch allocates stays in the cache
MIX = np.uint64(0x9E3779B97F4A7C15)


class Windows(NamedTuple):
    """An open-addressed table from a hash to the texts that have it, and what scoring needs of each text.

    Whole texts are entries too, their hashes salted by kind, with weight 0.
    """

    keys: np.ndarray  # [slots] uint64, 0 when free
    span: np.ndarray  # [slots, 2] int32 into `members`
    weights: np.ndarray  # [slots] float32
    members: np.ndarray  # int32, text numbers
    bloom: np.ndarray  # uint64, three bits a hash; answers most look-ups from the cache
    total: np.ndarray  # [texts] float32, the weight of a text's windows
    sizes: np.ndarray  # [texts, 2] int64, symbols of a text's core and its distinct windows
    small: np.ndarray  # uint16, sets of small windows, one text after the other
    small_at: np.ndarray  # [texts + 1] int64
    place: np.ndarray  # [texts, benchmarks] int32, the first index of the text in the benchmark, or -1

    def scratch(self) -> tuple[np.ndarray, ...]:
        """What a thread needs to scan: the last row that met a window or a small window, and sums per text."""
        texts = len(self.total)
        seen = np.full(len(self.keys), -1, np.int32), np.full(1 << 14, -1, np.int32)
        return *seen, np.zeros(texts, np.float32), np.zeros(texts, np.int32), np.zeros(texts, np.int32)


@numba.njit(nogil=True, cache=True)
def bits(mixed):  # type: ignore[no-untyped-def]
    """The three bits of a mixed hash in its word of the Bloom filter."""
    one, six = np.uint64(1), np.uint64(63)
    first = one << ((mixed >> np.uint64(12)) & six) | one << ((mixed >> np.uint64(18)) & six)
    return first | one << ((mixed >> np.uint64(24)) & six)


@numba.njit(nogil=True, cache=True)
def fill(keys, span, weights, bloom, new, start, count, weight):  # type: ignore[no-untyped-def]
    """Enter the hashes `new` [m] with their spans and weights."""
    for i in range(new.size):
        mixed = new[i] * MIX
        bloom[(mixed >> np.uint64(36)) & np.uint64(bloom.size - 1)] |= bits(mixed)
        slot = (mixed >> np.uint64(20)) & np.uint64(keys.size - 1)
        while keys[slot] != 0:
            slot = (slot + np.uint64(1)) & np.uint64(keys.size - 1)
        keys[slot], weights[slot] = new[i], weight[i]
        span[slot, 0], span[slot, 1] = start[i], start[i] + count[i]


@numba.njit(nogil=True, cache=True)
def find(keys, bloom, key):  # type: ignore[no-untyped-def]
    """The slot of a hash, or -1."""
    mixed = key * MIX
    wanted = bits(mixed)
    if bloom[(mixed >> np.uint64(36)) & np.uint64(bloom.size - 1)] & wanted != wanted:
        return np.int64(-1)
    slot = (mixed >> np.uint64(20)) & np.uint64(keys.size - 1)
    while keys[slot] != 0:
        if keys[slot] == key:
            return np.int64(slot)
        slot = (slot + np.uint64(1)) & np.uint64(keys.size - 1)
    return np.int64(-1)


@numba.njit(nogil=True, cache=True)
def small_windows(core, start, stop, ids):  # type: ignore[no-untyped-def]
    """Write a 14-bit number of every window of `SMALL` symbols, odd where it has a digit; return how many."""
    value, count, digit = np.uint64(0), 0, -1
    for i in range(start, stop):
        value = (value << np.uint64(8) | np.uint64(core[i])) & np.uint64((1 << (8 * SMALL)) - 1)
        digit = i if 48 <= core[i] <= 57 else digit
        if i - start >= SMALL - 1 or i == stop - 1:
            mixed = (value * MIX) >> np.uint64(51)
            ids[count] = np.uint16(mixed << np.uint64(1)) | np.uint16(digit > i - SMALL)
            count += 1
    return count


@numba.njit(nogil=True, cache=True)
def note(place, found, score, row, text, stage, value):  # type: ignore[no-untyped-def]
    """Keep a hit where it is the best yet of its benchmark: an earlier stage, a higher score, a lower index."""
    for b in range(place.shape[1]):
        index = place[text, b]
        if index < 0:
            continue
        better = value > score[row, b] or (value == score[row, b] and index < found[row, b, 1])
        if stage < found[row, b, 0] or (stage == found[row, b, 0] and better):
            found[row, b, 0], found[row, b, 1], score[row, b] = stage, index, value


@numba.njit(nogil=True, cache=True)
def judge(weight, shared, n_windows, total, sizes, small):  # type: ignore[no-untyped-def]
    """The stage and score of a row and a text from what they share.

    `small` counts small windows: shared, the item's, the row's; then the same of those with digits.
    """
    same, n_item, n_row, same_digit, item_digit, row_digit = small
    covered, row_covered = weight / total, shared / n_windows
    within = weight >= DISTINCT and row_covered >= ROW_COVER
    held = covered >= HELD_COVER and same >= HELD_COVER * n_item and sizes[0] >= HELD_SYMBOLS
    short = covered >= SHORT_COVER and row_covered >= SHORT_ROW and weight >= SHORT_WEIGHT
    if within or held or short or (covered >= COVER and weight >= DISTINCT):
        whole, digits = (n_row, row_digit) if within and row_covered > covered else (n_item, item_digit)
        text_cover = (same - same_digit) / max(1, whole - digits)
        variant = digits > 0 and same_digit / digits < SAME_NUMBERS * text_cover
        return (NUMBER_VARIANT if variant else NGRAM), max(covered, row_covered if within else 0.0)
    jaccard = same / max(1, n_item + n_row - same)
    numbered = item_digit >= NUMBERED and same_digit >= NUMBERED_COVER * item_digit
    alike = jaccard >= NEAR_JACCARD or (numbered and jaccard >= NUMBERED_JACCARD)
    return (NEAR, jaccard) if alike and covered >= OWN * shared / sizes[1] else (CLEAN, 0.0)


@numba.njit(nogil=True, cache=True)
def scan_rows(streams, wholes, first, index, scratch, found, score):  # type: ignore[no-untyped-def]
    """Fill `found` [rows, benchmarks, (stage, index)] and `score` [rows, benchmarks] for a batch from row `first`."""
    core, core_at, hashes, hashes_at = streams
    keys, span, weights, members, bloom, total, sizes, small, small_at, place = index
    window_row, small_row, weight, shared, touched = scratch
    ids = np.empty(1 + core.size, np.uint16)
    for row in range(core_at.size - 1):
        stamp = first + row
        for kind in range(3):
            slot = find(keys, bloom, wholes[kind, row])
            if slot >= 0:
                for p in range(span[slot, 0], span[slot, 1]):
                    stage = EXACT if kind == 0 else (NGRAM if kind == 1 else NUMBER_VARIANT)
                    note(place, found, score, row, members[p], stage, 1.0)
        n_touched = 0
        for i in range(np.uint64(hashes_at[row]), np.uint64(hashes_at[row + 1])):
            slot = find(keys, bloom, hashes[i])
            if slot < 0 or window_row[slot] == stamp:
                continue
            window_row[slot] = stamp
            for p in range(span[slot, 0], span[slot, 1]):
                text = members[p]
                if shared[text] == 0:
                    touched[n_touched] = text
                    n_touched += 1
                shared[text] += 1
                weight[text] += weights[slot]
        n_row, row_digit = -1, 0
        for t in range(n_touched):
            text, n_windows = touched[t], hashes_at[row + 1] - hashes_at[row]
            matched, count = weight[text], shared[text]
            weight[text], shared[text] = 0.0, 0
            if matched < CANDIDATE * total[text] and (matched < DISTINCT or count < ROW_COVER * n_windows):
                continue
            if n_row < 0:
                n_row = row_digit = 0
                for i in range(small_windows(core, core_at[row], core_at[row + 1], ids)):
                    new = small_row[ids[i]] != stamp
                    n_row += new
                    row_digit += new and np.int64(ids[i]) & 1
                    small_row[ids[i]] = stamp
            same = same_digit = n_digit = 0
            for p in range(small_at[text], small_at[text + 1]):
                digit, hit = np.int64(small[p]) & 1, small_row[small[p]] == stamp
                n_digit += digit
                same += hit
                same_digit += hit and digit
            n_item = small_at[text + 1] - small_at[text]
            counts = (same, n_item, n_row, same_digit, n_digit, row_digit)
            stage, value = judge(matched, count, n_windows, total[text], sizes[text], counts)
            if stage != CLEAN:
                note(place, found, score, row, text, stage, value)


def salted(folded: Folded) -> np.ndarray:
    """Hashes of whole texts [3, n]: `full`, `core`, and `full` with numbers masked, in the order of their stages."""
    full, masked = whole_hashes(folded.full, folded.full_at, MAX_SYMBOLS)
    wholes = [full, whole_hashes(folded.core, folded.core_at, SHORT_CORE)[0], masked]
    return np.stack([np.where(h == 0, 0, h ^ np.uint64(0x5BD1E995 * (kind + 1))) for kind, h in enumerate(wholes)])


def entries(folded: Folded, wholes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every hash of every text, the text's number, and whether it is of the whole text; [m] each, by hash then text."""
    hashes, at = window_hashes(folded.core, folded.core_at, WINDOW, True)
    texts = np.arange(len(at) - 1)
    masked = np.diff(window_hashes(folded.core, folded.core_at, 1, True)[1])
    usable = [wholes[0] != 0, np.diff(folded.core_at) >= MIN_CORE, masked >= MIN_MASKED]
    key = np.concatenate([hashes, *(wholes[kind][keep] for kind, keep in enumerate(usable))])
    text = np.concatenate([np.repeat(texts, np.diff(at)), *(texts[keep] for keep in usable)]).astype(np.int32)
    whole = np.arange(len(key)) >= len(hashes)
    order = np.lexsort((text, key))
    key, text, whole = key[order], text[order], whole[order]
    first = np.append(True, (key[1:] != key[:-1]) | (text[1:] != text[:-1])) & (key != 0)
    return key[first], text[first], whole[first]


def small_sets(folded: Folded) -> tuple[np.ndarray, np.ndarray]:
    """The distinct small windows of every text, and where each text's begin."""
    ids, sets = np.empty(len(folded.core) + 1, np.uint16), []
    for start, stop in zip(folded.core_at[:-1], folded.core_at[1:]):
        sets.append(np.unique(ids[: small_windows(folded.core, start, stop, ids)]))
    return np.concatenate([*sets, np.zeros(0, np.uint16)]), np.cumsum([0, *map(len, sets)])


def windows(folded: Folded, wholes: np.ndarray, place: np.ndarray) -> Windows:
    """Build the table over distinct texts."""
    key, text, whole = entries(folded, wholes)
    unique, start, count = np.unique(key, return_index=True, return_counts=True)
    texts = len(place)
    weight = (1.0 / count**3).astype(np.float32)
    weight[whole[start]] = 0
    total = np.bincount(text, np.repeat(weight, count), minlength=texts).astype(np.float32)
    live = whole[start] | (count <= COMMON)
    slots = 1 << int(2 * len(unique) + 1).bit_length()
    keys, span, weights = np.zeros(slots, np.uint64), np.zeros((slots, 2), np.int32), np.zeros(slots, np.float32)
    bloom = np.zeros(max(1, min(slots >> 3, 1 << 22)), np.uint64)
    fill(keys, span, weights, bloom, unique[live], start[live], count[live], weight[live])
    sizes = np.stack([np.diff(folded.core_at), np.bincount(text[~whole], minlength=texts)], axis=1)
    return Windows(keys, span, weights, text, bloom, np.maximum(total, 1e-6), sizes, *small_sets(folded), place)


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


@dataclass(frozen=True)
class BenchmarkIndex:
    """Benchmarks made ready to be looked for. Build it with `BenchmarkIndex.build`."""

    texts: Mapping[str, Sequence[str]]
    table: Windows
    vectors: Mapping[str, np.ndarray]

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
        copies, place = distinct(owner, first, salted(folded)[0], len(sizes))
        folded = fold(everything[copies])
        scaled = {n: unit(v, len(benchmarks[n]), f"benchmark {n}") for n, v in (vectors or {}).items()}
        return cls(dict(benchmarks), windows(folded, salted(folded), place), scaled)

    def hits(self, texts: Sequence[str | None] | pl.Series, vectors: np.ndarray | None = None) -> pl.DataFrame:
        """Every benchmark that a row hits, with the item it is most like.

        Args:
            texts: n problems; a null hits nothing.
            vectors: their embeddings [n, d], from the model that embedded the benchmarks.

        Returns:
            `row, stage, benchmark, benchmark_index, score`, by row, then stage, then falling score. A score is the
            share of the item found (exact to number_variant), a Jaccard similarity (near) or a cosine (embedding).
        """
        column = texts if isinstance(texts, pl.Series) else pl.Series(texts, dtype=pl.String)
        found = np.full((len(column), len(self.texts), 2), CLEAN, np.int32)
        score = np.zeros((len(column), len(self.texts)), np.float32)

        def work(starts: range) -> None:
            scratch = self.table.scratch()
            for at in starts:
                part = slice(at, at + BATCH)
                folded = fold(column[part])
                hashes = window_hashes(folded.core, folded.core_at, WINDOW, True)
                streams = (folded.core, folded.core_at, *hashes)
                scan_rows(streams, salted(folded), at, self.table, scratch, found[part], score[part])

        workers = os.cpu_count() or 1
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, [range(BATCH * k, len(column), BATCH * workers) for k in range(workers)]))
        if vectors is not None:
            self._compare(unit(vectors, len(column), "texts"), found, score)
        return self._table(found, score)

    def _compare(self, vectors: np.ndarray, found: np.ndarray, score: np.ndarray) -> None:
        """Add embedding hits where a benchmark has vectors and nothing cheaper hit it."""
        for b, name in enumerate(self.texts):
            for at in range(0, len(vectors) if name in self.vectors else 0, BATCH):
                cosine = vectors[at : at + BATCH] @ self.vectors[name].T
                best, part = cosine.argmax(axis=1), slice(at, at + BATCH)
                value = cosine[np.arange(len(best)), best]
                new = (found[part, b, 0] == CLEAN) & (value >= COSINE)
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
) -> pl.DataFrame:
    """Drop problems that are benchmark items; the reason is the stage.

    Args:
        problems: `id, problem`.
        index: the benchmarks.
        vectors: embeddings of the problems [n, d], if the index has them.
        stages: those that drop; a hit at another stage is kept and stays in the evidence.

    Returns:
        Decisions. The evidence is JSON: the benchmark, index, score and first 200 characters of the item most alike,
        and under `also` the same of each further benchmark that was hit.
    """
    hits = index.hits(problems["problem"], vectors)
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
