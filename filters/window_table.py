"""The kernels of decontamination: a table of the benchmarks' windows, and the scan of rows against it.

`contamination.py` says what the stages mean. One pass over a row's symbols makes its windows' hashes, a small filter
answers nearly all of them from the cache, and only what a row has in common with a text is looked at further. All
compiled functions that call one another stand here, so that numba's cache never holds a copy from another file.
"""

from typing import NamedTuple

import numba
import numpy as np

from assay.filters.text import MAX_SYMBOLS, Folded, whole_hashes, window_hashes

__all__ = ["CLEAN", "EMBEDDING", "NEAR", "NUMBER_VARIANT", "STAGES", "Windows", "salted", "scan", "windows"]

STAGES = ("exact", "ngram", "number_variant", "near", "embedding")
EXACT, NGRAM, NUMBER_VARIANT, NEAR, EMBEDDING, CLEAN = range(6)

WINDOW, SMALL = 12, 5  # symbols; twelve are two or three words, or four ideographs
COVER, DISTINCT = 0.6, 20.0  # share and weight of an item's windows that convict whatever else is in the row
SHORT_COVER, SHORT_ROW, SHORT_WEIGHT = 0.8, 0.5, 3.0  # a short item must also be much of the row
HELD_SYMBOLS, HELD_COVER = 14, 0.99  # an item of so many symbols, numbers included, that the row holds
PART_SYMBOLS = 32  # up to which an item that is whole sentences of a row is looked up
ROW_COVER = 0.9  # a row within an item
CANDIDATE, NEAR_JACCARD = 0.1, 0.45
OWN = 0.5  # weighted over plain share of an item's windows, below which what agrees is stock
NUMBERED_JACCARD, NUMBERED_COVER, NUMBERED = 0.25, 0.85, 3  # less will do where windows with digits agree
SAME_NUMBERS = 0.97  # windows with digits found, over windows without digits found
COMMON = 16  # items beyond which a window is stock and not kept at all
SHORT_CORE = 64  # symbols up to which equality of `core` is looked up; windows find longer ones
MIN_CORE, MIN_MASKED = 5, 8  # symbols without which equality of `core`, or of masked texts, says nothing
START_BITS, SALT = 16, 0x5BD1E995
FNV, FNV_BASIS = np.uint64(0x100000001B3), np.uint64(0xCBF29CE484222325)  # of `whole_hashes`
MIX, HIGH_MIX, LAST_MIX = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
WEIGHTS = np.array([0.0, *(1 / n**3 for n in range(1, COMMON + 1))], np.float32)  # of a window, by its texts
HIGH = np.uint64((1 << (8 * (WINDOW - 8))) - 1)  # of a window's symbols, those beyond the last eight


class Windows(NamedTuple):
    """An open-addressed table from a hash to the texts that have it, and what scoring needs of each text.

    Whole texts are entries too, their hashes salted by kind.
    """

    cells: np.ndarray  # [slots, 2] uint64: the hash, 0 when free, and how many texts have it | where << 24
    members: np.ndarray  # int32, text numbers; a hash's are at `where`, and of a single one `where` is the text
    bloom: np.ndarray  # uint64, three bits a hash; answers most look-ups from the cache
    starts: np.ndarray  # [2 ** START_BITS] bool, by the top bits of the hash of a text's first window
    total: np.ndarray  # [texts] float32, the weight of a text's windows
    sizes: np.ndarray  # [texts, 2] int64, symbols of a text's core and its distinct windows
    small: np.ndarray  # uint16, sets of small windows, one text after the other
    small_at: np.ndarray  # [texts + 1] int64
    place: np.ndarray  # [texts, benchmarks] int32, the first index of the text in the benchmark, or -1

    def scratch(self) -> tuple[np.ndarray, ...]:
        """What a thread needs to scan: the last row that met a window or a small window, and sums per text."""
        texts = len(self.total)
        seen = np.full(len(self.cells), -1, np.int32), np.full(1 << 14, -1, np.int32)
        return *seen, np.zeros(texts, np.float32), np.zeros(texts, np.int32), np.zeros(texts, np.int32)


@numba.njit(nogil=True, cache=True)
def row_windows(core, start, stop, out):  # type: ignore[no-untyped-def]
    """Write the hash of every window of `WINDOW` symbols of a text, digits that touch as one `#`; return how many.

    Twelve symbols are ninety-six bits, which two words hold; nothing is multiplied from one window to the next. A
    shorter text has one window, itself, and an empty one none.
    """
    low, high, previous = np.uint64(0), np.uint64(0), np.uint64(0)
    symbols, count, one, eight = np.uint64(0), np.uint64(0), np.uint64(1), np.uint64(8)
    for i in range(np.uint64(start), np.uint64(stop)):
        symbol = np.uint64(core[i])
        if symbol - np.uint64(48) < np.uint64(10):
            if previous == np.uint64(35):
                continue
            symbol = np.uint64(35)
        previous = symbol
        high = (high << eight | low >> np.uint64(56)) & HIGH
        low = low << eight | symbol
        symbols += one
        if symbols >= np.uint64(WINDOW):
            out[count] = mix(low, high)
            count += one
    if symbols > 0 and count == 0:
        out[count] = mix(low, high)
        count += one
    return count


@numba.njit(nogil=True, cache=True)
def mix(low, high):  # type: ignore[no-untyped-def]
    """A hash whose bits all depend on all bits of the two words."""
    value = low * MIX ^ high * HIGH_MIX
    return (value ^ value >> np.uint64(32)) * LAST_MIX


@numba.njit(nogil=True, cache=True)
def bits(key):  # type: ignore[no-untyped-def]
    """The three bits of a hash in its word of the Bloom filter."""
    one, six = np.uint64(1), np.uint64(63)
    return one << (key & six) | one << (key >> np.uint64(6) & six) | one << (key >> np.uint64(12) & six)


@numba.njit(nogil=True, cache=True)
def word(key, bloom):  # type: ignore[no-untyped-def]
    """The index of a hash's word in the Bloom filter."""
    return key >> np.uint64(40) & np.uint64(bloom.size - 1)


@numba.njit(nogil=True, cache=True)
def slot_of(key, cells):  # type: ignore[no-untyped-def]
    """Where the search for a hash begins."""
    return key >> np.uint64(18) & np.uint64(cells.shape[0] - 1)


@numba.njit(nogil=True, cache=True)
def find(key, cells):  # type: ignore[no-untyped-def]
    """The slot of a hash, or the free one where it would be."""
    slot = slot_of(key, cells)
    while cells[slot, 0] != 0 and cells[slot, 0] != key:
        slot = (slot + np.uint64(1)) & np.uint64(cells.shape[0] - 1)
    return slot


@numba.njit(nogil=True, cache=True)
def fill(cells, bloom, new, start, count, members):  # type: ignore[no-untyped-def]
    """Enter the hashes `new` [m] with their places in `members`."""
    for i in range(new.size):
        bloom[word(new[i], bloom)] |= bits(new[i])
        slot = find(new[i], cells)
        where = members[start[i]] if count[i] == 1 else start[i]
        cells[slot, 0], cells[slot, 1] = new[i], np.uint64(where) << np.uint64(24) | np.uint64(count[i])


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
def note_equal(key, index, row, stage, found, score):  # type: ignore[no-untyped-def]
    """Note the texts whose whole has this hash, which is not 0."""
    wanted = bits(key)
    slot = find(key, index.cells) if index.bloom[word(key, index.bloom)] & wanted == wanted else np.uint64(0)
    if index.cells[slot, 0] != key:
        return
    where, count = index.cells[slot, 1] >> np.uint64(24), index.cells[slot, 1] & np.uint64((1 << 24) - 1)
    for p in range(count):
        text = where if count == 1 else np.uint64(index.members[where + p])
        note(index.place, found, score, row, text, stage, 1.0)


@numba.njit(nogil=True, cache=True)
def scan_wholes(wholes, rows, index, found, score):  # type: ignore[no-untyped-def]
    """Note the texts that equal a whole row, for the row numbers `rows` [m] with their hashes `wholes` [3, m]."""
    for i in range(rows.size):
        for kind in range(3):
            if wholes[kind, i] != 0:
                stage = EXACT if kind == 0 else (NGRAM if kind == 1 else NUMBER_VARIANT)
                note_equal(wholes[kind, i], index, rows[i], stage, found, score)


@numba.njit(nogil=True, cache=True)
def scan_parts(core, core_at, cuts, index, found, score):  # type: ignore[no-untyped-def]
    """Note the texts that equal sentences or lines of a row and are too short for windows to find them in it."""
    first = 0
    for row in range(core_at.size - 1):
        stop = core_at[row + 1]
        while first < cuts.size and cuts[first] < core_at[row]:
            first += 1
        for i in range(first, cuts.size):
            at, value = cuts[i], FNV_BASIS
            for j in range(i + 1, cuts.size + 1):
                end = min(cuts[j], stop) if j < cuts.size else stop
                if at >= stop or end - cuts[i] > PART_SYMBOLS:
                    break
                while at < end:
                    value = (value ^ np.uint64(core[at])) * FNV
                    at += 1
                if at - cuts[i] >= MIN_CORE:
                    note_equal(value ^ np.uint64(2 * SALT), index, row, NGRAM, found, score)
            if cuts[i] >= stop:
                break


@numba.njit(nogil=True, cache=True)
def scan_rows(core, core_at, first, index, scratch, found, score, likely):  # type: ignore[no-untyped-def]
    """Fill `found` [rows, benchmarks, (stage, index)] and `score` [rows, benchmarks] for a batch from row `first`.

    `likely` [rows] is set where the row starts like a text of the index, and so may equal it.
    """
    cells, members, bloom, starts, total, sizes, small, small_at, place = index
    window_row, small_row, weight, shared, touched = scratch
    ids = np.empty(1 + core.size, np.uint16)
    hashes, ahead = np.empty(1 + core.size, np.uint64), np.empty(1 + core.size, np.uint64)
    for row in range(core_at.size - 1):
        stamp = first + row
        n_windows = row_windows(core, core_at[row], core_at[row + 1], hashes)
        likely[row] = n_windows == 0 or starts[hashes[0] >> np.uint64(64 - START_BITS)]
        n_likely, n_touched = np.uint64(0), 0
        for i in range(n_windows):
            key = hashes[i]
            wanted = bits(key)
            if bloom[word(key, bloom)] & wanted == wanted:
                hashes[n_likely] = key
                ahead[n_likely] = cells[slot_of(key, cells), 0]  # fetched while the filter goes on
                n_likely += np.uint64(1)
        for i in range(n_likely):
            slot = find(hashes[i], cells)
            if cells[slot, 0] == 0 or window_row[slot] == stamp:
                continue
            window_row[slot] = stamp
            where, count = cells[slot, 1] >> np.uint64(24), cells[slot, 1] & np.uint64((1 << 24) - 1)
            for p in range(count):
                text = where if count == 1 else np.uint64(members[where + p])
                if shared[text] == 0:
                    touched[n_touched] = text
                    n_touched += 1
                shared[text] += 1
                weight[text] += WEIGHTS[count]
        n_row, row_digit = -1, 0
        for t in range(n_touched):
            text = touched[t]
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


def salted(folded: Folded, rows: np.ndarray) -> np.ndarray:
    """Hashes of the whole texts `rows` [3, n]: `full`, `core`, and `full` masked, in the order of their stages."""
    full, masked = whole_hashes(folded.full, folded.full_at, MAX_SYMBOLS, rows)
    wholes = [full, whole_hashes(folded.core, folded.core_at, SHORT_CORE, rows)[0], masked]
    return np.stack([np.where(h == 0, 0, h ^ np.uint64(SALT * (kind + 1))) for kind, h in enumerate(wholes)])


def window_sets(folded: Folded) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The windows' hashes of all texts, the text of each, and which texts' first windows they are."""
    out, texts, count = np.empty(len(folded.core) + 1, np.uint64), len(folded.core_at) - 1, 0
    sizes = np.zeros(texts, np.int64)
    for text, (start, stop) in enumerate(zip(folded.core_at[:-1], folded.core_at[1:])):
        sizes[text] = row_windows(folded.core, start, stop, out[count:])
        count += sizes[text]
    firsts = np.cumsum([0, *sizes[:-1]])[sizes > 0]
    return out[:count], np.repeat(np.arange(texts), sizes), out[:count][firsts]


def entries(folded: Folded, wholes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Every hash of every text, the text's number, and whether it is of the whole text, [m] each, by hash then text.

    Then the `starts` of the table.
    """
    hashes, owner, firsts = window_sets(folded)
    texts, starts = np.arange(len(folded.core_at) - 1), np.zeros(1 << START_BITS, np.bool_)
    starts[firsts >> np.uint64(64 - START_BITS)] = True
    masked = np.diff(window_hashes(folded.core, folded.core_at, 1, True)[1])
    usable = [wholes[0] != 0, np.diff(folded.core_at) >= MIN_CORE, masked >= MIN_MASKED]
    key = np.concatenate([hashes, *(wholes[kind][keep] for kind, keep in enumerate(usable))])
    text = np.concatenate([owner, *(texts[keep] for keep in usable)]).astype(np.int32)
    whole = np.arange(len(key)) >= len(hashes)
    order = np.lexsort((text, key))
    key, text, whole = key[order], text[order], whole[order]
    first = np.append(True, (key[1:] != key[:-1]) | (text[1:] != text[:-1])) & (key != 0)
    return key[first], text[first], whole[first], starts


def small_sets(folded: Folded) -> tuple[np.ndarray, np.ndarray]:
    """The distinct small windows of every text, and where each text's begin."""
    ids, sets = np.empty(len(folded.core) + 1, np.uint16), []
    for start, stop in zip(folded.core_at[:-1], folded.core_at[1:]):
        sets.append(np.unique(ids[: small_windows(folded.core, start, stop, ids)]))
    return np.concatenate([*sets, np.zeros(0, np.uint16)]), np.cumsum([0, *map(len, sets)])


def windows(folded: Folded, wholes: np.ndarray, place: np.ndarray) -> Windows:
    """Build the table over distinct texts."""
    key, text, whole, starts = entries(folded, wholes)
    unique, start, count = np.unique(key, return_index=True, return_counts=True)
    texts = len(place)
    window = ~whole[start]
    weight = np.where(window, 1.0 / count**3, 0.0)
    total = np.bincount(text, np.repeat(weight, count), minlength=texts).astype(np.float32)
    live = ~window | (count <= COMMON)
    slots = 1 << int(1.5 * len(unique) + 1).bit_length()
    cells, bloom = np.zeros((slots, 2), np.uint64), np.zeros(max(1, min(slots >> 3, 1 << 22)), np.uint64)
    fill(cells, bloom, unique[live], start[live], count[live], text)
    sizes = np.stack([np.diff(folded.core_at), np.bincount(text[~whole], minlength=texts)], axis=1)
    sums = np.maximum(total, 1e-6)
    return Windows(cells, text, bloom, starts, sums, sizes, *small_sets(folded), place)


def scan(
    folded: Folded, first: int, table: Windows, scratch: tuple[np.ndarray, ...], found: np.ndarray, score: np.ndarray
) -> None:
    """Compare a batch of rows that begins at row number `first` with all texts; see `scan_rows`."""
    likely = np.zeros(len(found), np.bool_)
    scan_rows(folded.core, folded.core_at, first, table, scratch, found, score, likely)
    scan_parts(folded.core, folded.core_at, folded.cuts, table, found, score)
    rows = np.flatnonzero(likely)
    scan_wholes(salted(folded, rows), rows, table, found, score)
