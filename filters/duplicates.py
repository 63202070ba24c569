"""Finds problems that are copies of an earlier one, exact or nearly.

A copy is exact when the folded texts (`filters/text.py`) and their numbers are equal. It is near when the set of
windows of `WINDOW` symbols of its `core` has a Jaccard similarity of the threshold with another row's; candidates come
from MinHash with banding (Broder 1997; Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, chapter 3), and each
is verified on the sets themselves.
Rows whose numbers or operators differ are different problems, however alike: "12+34-5" is not "12+34-6". So are near
copies with golds that differ: "the maximum" is not "the minimum".
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numba
import numpy as np
import polars as pl

from assay.filters.answers import gold_value
from assay.filters.text import MAX_SYMBOLS, Folded, fold, whole_hashes, window_hashes

__all__ = ["decide", "sources_of"]

WINDOW = 3
PERMUTATIONS, SEED = 64, 20_240_917
FOUND = 0.995  # chance that a pair at the threshold shares a band
MIN_CORE = 8  # symbols; shorter texts are compared exactly only
BATCH = 10_000
# Numbers with a factorial, and brackets at numbers and operators: "(2+3)*4" is not "2+(3*4)".
NUMBERS = r"\d+(?:\.\d+)?!?|[\d+\-*/^=]\(|\)[\d+\-*/^=!]|\(-?\d"


@numba.njit(nogil=True, cache=True)
def sign_hashes(full, at):  # type: ignore[no-untyped-def]
    """A hash [n] of each text's operators in order; a minus between letters is a hyphen and does not count."""
    out = np.zeros(at.size - 1, np.uint64)
    for row in range(at.size - 1):
        value = np.uint64(0xCBF29CE484222325)
        for i in range(at[row], at[row + 1]):
            byte = full[i]
            if byte >= 128 or 97 <= byte <= 122 or 48 <= byte <= 57:
                continue
            before = i > at[row] and 97 <= full[i - 1] <= 122
            after = i + 1 < at[row + 1] and 97 <= full[i + 1] <= 122
            if byte != 45 or not (before and after):
                value = (value ^ np.uint64(byte)) * np.uint64(0x100000001B3)
        out[row] = value
    return out


@numba.njit(nogil=True, cache=True)
def jaccards(sets, at, left, right):  # type: ignore[no-untyped-def]
    """|A ∩ B| / |A ∪ B| of the sorted sets `sets[at[i] : at[i + 1]]` for each pair of set numbers; 0 for empty ones."""
    out = np.zeros(left.size, np.float32)
    for pair in range(left.size):
        i, j, common = at[left[pair]], at[right[pair]], 0
        stop_i, stop_j = at[left[pair] + 1], at[right[pair] + 1]
        union = stop_i - i + stop_j - j
        while i < stop_i and j < stop_j:
            common += sets[i] == sets[j]
            a, b = sets[i], sets[j]
            i += a <= b
            j += b <= a
        if union > 0:
            out[pair] = common / (union - common)
    return out


@numba.njit(nogil=True, cache=True)
def join(root, left, right):  # type: ignore[no-untyped-def]
    """Union-find over the pairs; the root of a cluster is its first row."""
    for pair in range(left.size):
        a, b = left[pair], right[pair]
        while root[a] != a:
            a = root[a]
        while root[b] != b:
            b = root[b]
        root[max(a, b)] = min(a, b)
    for row in range(root.size):
        root[row] = root[root[row]]


def banding(threshold: float) -> tuple[int, int]:
    """Bands and rows a band: the most rows at which 1 - (1 - threshold^rows)^bands is still `FOUND`."""
    rows = [r for r in range(1, 17) if 1 - (1 - threshold**r) ** (PERMUTATIONS // r) >= FOUND]
    return PERMUTATIONS // max(rows, default=1), max(rows, default=1)


def batches(column: pl.Series) -> Iterator[tuple[slice, Folded]]:
    """The column folded part by part."""
    for start in range(0, len(column), BATCH):
        part = slice(start, min(start + BATCH, len(column)))
        yield part, fold(column[part])


def signatures(texts: pl.Series, folded: Folded) -> np.ndarray:
    """A hash [n] of what tells two problems apart however alike their words: numbers, their brackets, operators."""
    bare = texts.fill_null("").str.normalize("NFKC").str.replace_all(r"\\left|\\right|[$\\]", "")
    bare = bare.str.replace_all(r"\{,\}", ",").str.replace_all(r"[{}]", " ")
    bare = bare.str.replace_all(r"frac(\d)(\d)", "frac$1 $2")  # as \frac12 is one half
    bare = bare.str.replace_all(r"\s*([-+*/^=(])\s*|\s*(\))", "$1$2")
    numbers = bare.str.replace_all(r"(\d),(\d{3})\b", "$1$2").str.extract_all(NUMBERS).list.join(" ").hash()
    return numbers.to_numpy() ^ sign_hashes(folded.full, folded.full_at)


def keys(column: pl.Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each row the hash of its folded text, of its numbers and operators, and the symbols of its core; [n] each."""
    text, signature, length = (np.zeros(len(column), kind) for kind in (np.uint64, np.uint64, np.int64))

    def work(part: slice) -> None:
        folded = fold(column[part])
        text[part] = whole_hashes(folded.full, folded.full_at, MAX_SYMBOLS, np.arange(len(folded.full_at) - 1))[0]
        signature[part] = signatures(column[part], folded)
        length[part] = np.diff(folded.core_at)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(work, (slice(start, start + BATCH) for start in range(0, len(column), BATCH))))
    return text, signature, length


def candidates(column: pl.Series, group: np.ndarray, threshold: float, masked: bool) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows of one group that share a band; each row is paired with the first and with the last before it."""
    from rensa import RMinHash

    bands, width = banding(threshold)
    band_keys = np.zeros((bands, len(column)), np.uint64)
    odd = np.random.default_rng(SEED).integers(1 << 62, size=width, dtype=np.uint64) | np.uint64(1)
    for part, folded in batches(column):
        hashes, at = window_hashes(folded.core, folded.core_at, WINDOW, masked)
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(hashes, at.astype(np.uint64), PERMUTATIONS, SEED)
        digest = np.array(matrix.to_rows(), np.uint64)[:, : bands * width].reshape(-1, bands, width)
        band_keys[:, part] = ((digest + np.uint64(1)) * odd).sum(axis=2).T ^ group[part]
    left, right = [], []
    for key in band_keys:
        order = np.argsort(key, kind="stable")
        starts = np.append(True, key[order][1:] != key[order][:-1])
        first = order[np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))]
        left += [first[~starts], order[:-1][~starts[1:]]]
        right += [order[~starts], order[1:][~starts[1:]]]
    pairs = np.unique(np.stack([np.concatenate(left), np.concatenate(right)]), axis=1)
    return pairs[0], pairs[1]


def similarities(column: pl.Series, left: np.ndarray, right: np.ndarray, masked: bool) -> np.ndarray:
    """The true Jaccard similarity of each pair of rows, float32."""
    out = np.zeros(len(left), np.float32)
    for start in range(0, len(left), BATCH):
        part = slice(start, start + BATCH)
        rows, pair = np.unique(np.concatenate([left[part], right[part]]), return_inverse=True)
        folded = fold(column[rows])
        hashes, at = window_hashes(folded.core, folded.core_at, WINDOW, masked)
        row = np.repeat(np.arange(len(rows)), np.diff(at))
        order = np.lexsort((hashes, row))
        hashes, row = hashes[order], row[order]
        new = np.append(True, (hashes[1:] != hashes[:-1]) | (row[1:] != row[:-1]))[: len(row)]
        ends = np.cumsum([0, *np.bincount(row[new], minlength=len(rows))])
        half = len(pair) // 2
        out[part] = jaccards(hashes[new], ends, pair[:half], pair[half:])
    return out


def decide(problems: pl.DataFrame, threshold: float = 0.8, numbers: bool = True) -> pl.DataFrame:
    """Drop copies and keep the first of each in the frame's order, so sort by preference before.

    Args:
        problems: `id, problem`, and `answer` where near copies with different golds shall both be kept. A problem
            without letters or digits is kept: there is nothing to compare.
        threshold: the least Jaccard similarity of a near copy, above 0 to 1; at 1 only exact copies go.
        numbers: whether rows that differ in numbers or operators are different problems.

    Returns:
        Decisions with the reasons exact_duplicate and near_duplicate. The evidence is JSON: the `kept` id and the
        `similarity` to it, which may be under the threshold where a cluster links the two through others.

    Raises:
        ValueError: a threshold outside (0, 1].
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold {threshold}: a Jaccard similarity is above 0 and at most 1")
    column = problems["problem"]
    text, signature, length = keys(column)
    copy_of = first_of(text ^ (signature * np.uint64(3)), text != 0)
    root, near = copy_of.copy(), np.zeros(len(column), bool)
    group = signature if numbers else np.zeros_like(signature)
    rows = np.flatnonzero((copy_of == np.arange(len(column))) & (length >= MIN_CORE))
    _, inverse, size = np.unique(group[rows], return_inverse=True, return_counts=True)
    rows = rows[size[inverse] > 1]
    if threshold < 1 and len(rows):
        left, right = candidates(column[rows], group[rows], threshold, not numbers)
        alike = similarities(column[rows], left, right, not numbers) >= threshold
        left, right = rows[left[alike]], rows[right[alike]]
        gold = golds(problems, left, right)
        agree = (gold[left] == gold[right]) | (gold[left] == 0) | (gold[right] == 0)
        join(root, left[agree], right[agree])
        part(root, gold)
        near[rows] = root[rows] != rows
    return decisions(problems, root[copy_of], near[copy_of], not numbers)


def golds(problems: pl.DataFrame, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """A number [n] for each gold of the rows in the pairs, equal where they are; 0 where there is none."""
    out = np.zeros(problems.height, np.int64)
    names: dict[str | Fraction | None, int] = {None: 0}
    if "answer" in problems.columns:
        rows = np.unique(np.concatenate([left, right]))
        values = map(gold_value, problems["answer"].cast(pl.String)[rows])
        out[rows] = [names.setdefault(value, len(names)) for value in values]
    return out


def part(root: np.ndarray, gold: np.ndarray) -> None:
    """Split clusters that a row without a gold joined: one of another gold than the first is a cluster of its own."""
    known = np.flatnonzero(gold)
    cluster, first = np.unique(root[known], return_index=True)
    leader = np.zeros_like(gold)
    leader[cluster] = gold[known[first]]
    other = known[gold[known] != leader[root[known]]]
    _, place, own = np.unique(root[other] * (gold.max() + 1) + gold[other], return_index=True, return_inverse=True)
    root[other] = other[place][own]


def first_of(key: np.ndarray, comparable: np.ndarray) -> np.ndarray:
    """For each row the first row with its key, or itself where it is not comparable; [n]."""
    rows = np.arange(len(key))
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return np.where(comparable, first[inverse], rows)


def decisions(problems: pl.DataFrame, root: np.ndarray, near: np.ndarray, masked: bool) -> pl.DataFrame:
    """The frame of decisions from each row's kept row and whether it is near."""
    dropped = root != np.arange(len(root))
    similarity = np.ones(len(root), np.float32)
    at = np.flatnonzero(near)
    similarity[at] = similarities(problems["problem"], root[at], at, masked)
    ids = problems["id"]
    evidence = [
        json.dumps({"kept": ids[int(root[i])], "similarity": round(float(similarity[i]), 3)}) if dropped[i] else None
        for i in range(len(root))
    ]
    reason = np.where(near, "near_duplicate", "exact_duplicate")
    return pl.DataFrame(
        {"id": ids, "keep": ~dropped, "reason": reason, "evidence": pl.Series(evidence, dtype=pl.String)}
    ).with_columns(pl.when(~pl.col("keep")).then("reason").alias("reason"))


def sources_of(problems: pl.DataFrame, decisions: pl.DataFrame) -> pl.DataFrame:
    """What the kept rows stand for: `id, sources, copies`, one row for each, in order.

    `sources` are the distinct sources of the row and its copies, its own first; `copies` counts rows dropped for it.

    Args:
        problems: `id, source`, the frame that was decided on.
        decisions: what `decide` said of it.
    """
    kept = pl.coalesce(pl.col("evidence").str.json_path_match("$.kept"), pl.col("id"))
    return (
        decisions.select("id", kept=kept)
        .with_columns(problems["source"])
        .group_by("kept", maintain_order=True)
        .agg(sources=pl.col("source").unique(maintain_order=True), copies=pl.len().cast(pl.Int64) - 1)
        .rename({"kept": "id"})
    )
