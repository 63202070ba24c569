"""Folds problem texts so that layout, markup and phrasing fall away and the mathematics stays.

`fold` writes two streams of bytes for every text:

* `full`: letters, digits and operators only, in lower case; LaTeX spacing, delimiters and font commands dropped,
  LaTeX and Unicode spellings of one sign made the same (`\\leq`, `≤`; `\\dfrac`, `\\frac`; `é`, `e`). White space is
  no symbol, so wrapping and operator spacing do not show, and ideographs stand for themselves.
* `core`: `full` without the words in which problems are asked (`STOCK_WORDS`), so a prompt around a problem, or
  "Compute" for "Find", does not show either.

The loops are compiled and release the interpreter's lock. They take and return whole batches, so that no compiled
function of another module holds a copy of one from here, which would outlive a change of this file in numba's cache.
"""

import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numba
import numpy as np
import polars as pl
import pyarrow as pa

__all__ = ["MAX_SYMBOLS", "Folded", "batches", "fold", "whole_hashes", "window_hashes"]

LETTER, DIGIT, SIGN, STAR, WIDE, STOP = 1, 2, 3, 4, 5, 6
KEEP = -1
SHIFT = 51  # 64 less the bits of a slot in the table of words
GROWTH = 4  # bytes of a stream for a byte of text, at most
MAX_CODE = 0x20000
MAX_SYMBOLS = 1 << 62  # no limit

STOCK_WORDS = (
    "the of is are was were be been being what which who whose that this these those there here and or in "
    "on at to for from by with as an it its into than then if when where we you your our they their he "
    "she his her him them do does did has have had can could will would should may might must not no so "
    "such all each any some per how many much let find compute calculate evaluate determine give simplify "
    "solve express write work out state enter show prove count reduce obtain identify rewrite suppose "
    "given assume consider denote define value values numerical answer answers final put within inside "
    "boxed box enclosed please reason think thinking carefully step steps problem problems following "
    "question questions solution result response respond output format instruction instructions task user "
    "system helpful assistant expert below explain provide using use terms form math mathematics mathematical"
)

DROPPED_WORDS = (
    "left right big bigg bigl bigr biggl biggr displaystyle textstyle mathrm mathbf mathbb mathcal mathsf "
    "mathit operatorname textbf textit textrm quad qquad limits nolimits hspace vspace hfill phantom "
    "boldsymbol lbrace rbrace nbsp amp quot"
)

REPLACED_WORDS = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "times": "*",
    "cdot": "*", "ast": "*", "div": "/", "leq": "<=", "leqslant": "<=", "le": "<=", "geq": ">=", "geqslant": ">=",
    "ge": ">=", "neq": "/=", "ne": "/=", "ldots": "dots", "cdots": "dots", "dotsb": "dots", "dotsc": "dots",
    "langle": "<", "rangle": ">", "vert": "|", "lvert": "|", "rvert": "|", "mid": "|", "rightarrow": "to",
    "longrightarrow": "to", "varepsilon": "epsilon", "varphi": "phi", "emptyset": "varnothing", "degree": "circ",
    "percent": "%", "lt": "<", "gt": ">", "pmod": "mod", "bmod": "mod", "overrightarrow": "vec",
}  # fmt: skip

SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "∕": "/",
    "⁄": "/", "≤": "<=", "⩽": "<=", "≥": ">=", "⩾": ">=", "≠": "/=", "°": "^circ", "√": "sqrt", "∞": "infty",
    "±": "pm", "→": "to", "∠": "angle", "△": "triangle", "∆": "delta", "∈": "in", "∪": "cup", "∩": "cap",
    "∑": "sum", "∏": "prod", "∫": "int", "≡": "equiv", "≅": "cong", "≈": "approx", "⊥": "perp", "∥": "parallel",
    "…": "dots", "⋯": "dots", "∅": "varnothing", "⌊": "lfloor", "⌋": "rfloor", "⌈": "lceil", "⌉": "rceil",
    "⟨": "<", "⟩": ">", "∣": "|", "∂": "partial", "∘": "circ",
}  # fmt: skip


class Folded(NamedTuple):
    """The streams of n texts, uint8, and offsets, int64: text i is `full[full_at[i] : full_at[i + 1]]`.

    `cuts`, int64, are the offsets in `core` where a text, a sentence or a line begins, in order.
    """

    full: np.ndarray
    full_at: np.ndarray
    core: np.ndarray
    core_at: np.ndarray
    cuts: np.ndarray


EMPTY = (np.zeros(0, np.uint8), np.zeros(1, np.int64)) * 2 + (np.zeros(0, np.int64),)  # the streams of no texts


class Tables(NamedTuple):
    """What folding looks up: the class of a byte, the spelling of a character beyond ASCII, the action of a word."""

    kinds: np.ndarray  # [256] uint8
    spelling: np.ndarray  # [MAX_CODE] int32: KEEP, or start << 5 | length in `pool`
    pool: np.ndarray  # uint8
    mix: np.uint64  # the factor at which no two words share a slot
    words: np.ndarray  # [slots] uint64 hash of the word, 0 when free
    actions: np.ndarray  # [slots] int32: KEEP leaves the word out of `core`, else start << 5 | length in `pool`


def spell(char: str) -> str | None:
    """The symbols that stand for a character beyond ASCII; None when it stands for itself."""
    if char in SIGNS:
        return SIGNS[char]
    mark = "^" if unicodedata.decomposition(char).startswith("<super>") else ""
    bare = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
    spelled = mark + "".join(SIGNS.get(c) or letter(c) for c in bare)
    return None if spelled == char else spelled


def letter(char: str) -> str:
    """A decomposed character: the name of a Greek letter, nothing for a mark or punctuation, or the character."""
    if "Ͱ" <= char <= "Ͽ":
        return unicodedata.name(char, "").partition("LETTER ")[2].removeprefix("FINAL ").lower()
    return char if char in "+-=<>/^|%" or unicodedata.category(char)[0] in "LN" else ""


def perfect(hashes: np.ndarray) -> tuple[np.uint64, np.ndarray]:
    """An odd factor that sends each hash to a slot of its own, and the slots."""
    for factor in np.random.default_rng(0).integers(1 << 63, size=100_000, dtype=np.uint64) | np.uint64(1):
        slots = (hashes * factor) >> np.uint64(SHIFT)
        if len(np.unique(slots)) == len(slots):
            return factor, slots
    raise ValueError(f"no factor keeps {len(hashes)} words apart in {1 << (64 - SHIFT)} slots; lower SHIFT")


def word_hash(word: str) -> int:
    """The hash `fold` keeps of a run of letters."""
    value = 0
    for byte in word.encode():
        value = (value * 131 + byte) & 0xFFFFFFFFFFFFFFFF
    return value


# Font commands that run into what they set once a source has lost its backslashes and braces: "mathbfa".
MARKUP_PREFIXES = tuple(np.uint64(word_hash("math" + font)) for font in ("bf", "rm", "bb", "it", "sf"))
TAG_NAMES = "p br hr b i u s em strong span div font center sub sup ul ol li table tbody thead tr td th img a"
TAGS = tuple(np.uint64(word_hash(name)) for name in TAG_NAMES.split())


@numba.njit(nogil=True, cache=True)
def tag_end(data, i, begin, stop):  # type: ignore[no-untyped-def]
    """Where the HTML tag that opens at byte i ends, or i: x<y>z, a < b, and x<b>z after a letter are mathematics."""
    one, name = np.uint64(1), np.uint64(0)
    j = i + np.uint64(2 if i + one < stop and data[i + one] == 47 else 1)
    while j < stop and 97 <= (data[j] | 32) <= 122:
        name = name * np.uint64(131) + np.uint64(data[j] | 32)
        j += one
    if name not in TAGS:
        return i
    if j == i + np.uint64(2) and i > begin:  # a single letter
        before = data[i - one] | np.uint8(32)
        if 97 <= before <= 122 or 48 <= before <= 57:
            return i
    bare, quoted = True, False
    for k in range(j, min(j + np.uint64(200), stop)):
        byte = data[k]
        if byte == 62:
            return k + one if bare or quoted else i
        if byte == 60 or (k == j and byte != 32 and byte != 47):
            return i
        bare &= byte == 32 or byte == 47
        quoted |= byte == 34 or byte == 39
    return i


@cache
def tables() -> Tables:
    """The tables of `fold`, built once in a process."""
    kinds = np.zeros(256, np.uint8)
    kinds[128:] = WIDE
    kinds[[*range(65, 91), *range(97, 123)]] = LETTER
    kinds[48:58] = DIGIT
    kinds[[ord(c) for c in "+-=<>/^|%"]] = SIGN
    kinds[ord("*")] = STAR
    kinds[[ord(c) for c in "\n.?!:;"]] = STOP
    pool = bytearray()

    def pooled(text: str, limit: int = 31) -> int:
        raw = text.encode()[:limit]
        pool.extend(raw)
        return (len(pool) - len(raw)) << 5 | len(raw)

    spelling = np.full(MAX_CODE, KEEP, np.int32)
    for code in range(128, MAX_CODE):
        char = chr(code)
        ideograph = 0x3400 <= code < 0xF900 or code >= 0x1F200 or 0x10000 <= code < 0x1D400
        if not ideograph and (spelled := spell(char)) is not None:
            spelling[code] = pooled(spelled, GROWTH * len(char.encode()))
    entries = {word_hash(w): KEEP for w in STOCK_WORDS.split()} | {word_hash(w): 0 for w in DROPPED_WORDS.split()}
    entries |= {word_hash(word): pooled(to) for word, to in REPLACED_WORDS.items()}
    hashes = np.array(list(entries), np.uint64)
    mix, at = perfect(hashes)
    words, actions = (np.zeros(1 << (64 - SHIFT), kind) for kind in (np.uint64, np.int32))
    words[at], actions[at] = hashes, list(entries.values())
    return Tables(kinds, spelling, np.frombuffer(bytes(pool), np.uint8), mix, words, actions)


def fold(texts: pl.Series) -> Folded:
    """Fold a column of texts; a null is an empty text."""
    return next((folded for _, folded in batches(texts, max(1, len(texts)))), Folded(*EMPTY))


def batches(texts: pl.Series, size: int) -> Iterator[tuple[int, Folded]]:
    """The column folded `size` rows at a time, each with the number of its first row."""
    array = texts.cast(pl.String).fill_null("").to_arrow().cast(pa.large_string())
    _, offsets, data = array.buffers()
    at = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(data or b"\0", np.uint8)
    for start in range(0, len(array), size):
        yield start, Folded(*fold_rows(content, at[start : start + size + 1], tables()))


@numba.njit(nogil=True, cache=True)
def fold_rows(data, at, tabs):  # type: ignore[no-untyped-def]
    """`fold` on the UTF-8 bytes `data` with row offsets `at`; one step for each character, or for each run of letters.

    Positions are unsigned because numba tests signed ones for wrapping at each access.
    """
    kinds, spelling, pool, mix, words, actions = tabs
    room = GROWTH * (at[-1] - at[0])
    full, core = np.empty(room, np.uint8), np.empty(room, np.uint8)
    full_at, core_at = np.zeros(at.size, np.int64), np.zeros(at.size, np.int64)
    cuts, n_cuts = np.empty(at[-1] - at[0] + at.size, np.int64), 0
    zero, one = np.uint64(0), np.uint64(1)
    n, gap = zero, zero  # symbols in `full`, and how many fewer there are in `core`
    for row in range(at.size - 1):
        begin, stop = np.uint64(at[row]), np.uint64(at[row + 1])
        i = begin
        cuts[n_cuts] = n - gap
        n_cuts += 1
        while i < stop:
            byte = data[i]
            kind = kinds[byte]
            if kind == LETTER:
                word, hashed = n, zero
                while kind == LETTER:
                    byte |= np.uint8(32)
                    full[n] = core[n - gap] = byte
                    hashed = hashed * np.uint64(131) + np.uint64(byte)
                    n, i = n + one, i + one
                    if i == stop:
                        break
                    byte = data[i]
                    kind = kinds[byte]
                length = n - word
                slot = (hashed * mix) >> np.uint64(SHIFT)
                known, action = words[slot] == hashed, actions[slot]
                gap += length * np.uint64(known & (action == KEEP))  # no branch, for it would be mispredicted
                if not known or action == KEEP:
                    if length == one:
                        gap += np.uint64(full[word] == 115 and i >= begin + 2 and data[i - 2] == 39)  # the s of "let's"
                    elif length > np.uint64(6) and full[word] == 109 and full[word + one] == 97:  # "ma"
                        prefix = zero
                        for j in range(np.uint64(6)):
                            prefix = prefix * np.uint64(131) + np.uint64(full[word + j])
                        if prefix in MARKUP_PREFIXES:
                            n -= np.uint64(6)
                            for j in range(word, n):
                                full[j] = core[j - gap] = full[j + np.uint64(6)]
                    continue
                n = word
                origin, first, size = pool, np.uint64(action >> 5), np.uint64(action & 31)
            elif kind == WIDE:
                size = np.uint64(2 if byte < 0xE0 else (3 if byte < 0xF0 else 4))
                code = np.int64(byte) & (0x7F >> np.int64(size))
                for j in range(i + one, min(i + size, stop)):
                    code = code << 6 | (data[j] & 0x3F)
                action = spelling[code] if code < MAX_CODE else KEEP
                origin, first, size, i = data, i, min(size, stop - i), i + size
                if action != KEEP:
                    origin, first, size = pool, np.uint64(action >> 5), np.uint64(action & 31)
                if size == zero and cuts[n_cuts - 1] != n - gap:
                    cuts[n_cuts] = n - gap
                    n_cuts += 1
            elif kind == STOP:  # of a sentence, unless a letter or a digit follows
                i += one
                ends = byte == 10 or i == stop or kinds[data[i]] == 0 or kinds[data[i]] > DIGIT
                if ends and cuts[n_cuts - 1] != n - gap:
                    cuts[n_cuts] = n - gap
                    n_cuts += 1
                continue
            else:
                past = tag_end(data, i, begin, stop) if byte == 60 else i
                if past > i:
                    i = past
                    if cuts[n_cuts - 1] != n - gap:
                        cuts[n_cuts] = n - gap
                        n_cuts += 1
                    continue
                before, after = i > begin and data[i - one] == byte, i + one < stop and data[i + one] == byte
                if kind != 0 and not (kind == STAR and (before or after)):  # two stars are bold print
                    full[n] = core[n - gap] = byte
                    n += one
                i += one
                continue
            for j in range(first, first + size):
                full[n] = core[n - gap] = origin[j]
                n += one
        full_at[row + 1], core_at[row + 1] = n, n - gap
    return full[:n], full_at, core[: n - gap], core_at, cuts[:n_cuts]


@numba.njit(nogil=True, cache=True)
def window_hashes(text, at, size, masked):  # type: ignore[no-untyped-def]
    """Hashes of every window of `size` symbols of each text of a stream, uint64 [m], and the texts' offsets in them.

    A text shorter than `size` has one window, itself; an empty text has none. With `masked`, digits that touch are
    one symbol `#`, so texts that differ in their numbers only agree.
    """
    base, removed = np.uint64(0x100000001B3), np.uint64(1)
    for _ in range(size):
        removed *= base
    out, out_at = np.empty(text.size, np.uint64), np.zeros(at.size, np.int64)
    longest = 0
    for row in range(at.size - 1):
        longest = max(longest, at[row + 1] - at[row])
    symbols = np.empty(longest, np.uint8)
    one, width, emitted = np.uint64(1), np.uint64(size), np.uint64(0)
    for row in range(at.size - 1):
        length, previous = np.uint64(0), np.uint8(0)
        for i in range(np.uint64(at[row]), np.uint64(at[row + 1])):
            digit = masked and np.uint8(48) <= text[i] <= np.uint8(57)
            symbols[length] = symbol = np.uint8(35) if digit else text[i]
            length += np.uint64(symbol != 35 or previous != 35)
            previous = symbol
        value = np.uint64(0)
        for i in range(min(width, length)):
            value = value * base + np.uint64(symbols[i])
        if length > np.uint64(0):
            out[emitted] = value
            emitted += one
        for i in range(width, length):
            value = value * base + (np.uint64(symbols[i]) - removed * np.uint64(symbols[i - width]))
            out[emitted] = value
            emitted += one
        out_at[row + 1] = emitted
    return out[:emitted], out_at


@numba.njit(nogil=True, cache=True)
def whole_hashes(text, at, longest, rows):  # type: ignore[no-untyped-def]
    """Two hashes of each of the texts `rows` [n], uint64 [2, n]: as it is, and masked as in `window_hashes`.

    0 for a text that is empty or has more than `longest` symbols.
    """
    out = np.zeros((2, rows.size), np.uint64)
    factor, basis = np.uint64(0x100000001B3), np.uint64(0xCBF29CE484222325)  # FNV-1a
    for place in range(rows.size):
        row = rows[place]
        if not 0 < at[row + 1] - at[row] <= longest:
            continue
        plain, masked, previous = basis, basis, np.uint8(0)
        for i in range(np.uint64(at[row]), np.uint64(at[row + 1])):
            byte = text[i]
            plain = (plain ^ np.uint64(byte)) * factor
            if np.uint8(48) <= byte <= np.uint8(57):
                byte = np.uint8(35)
                if previous == byte:
                    continue
            previous = byte
            masked = (masked ^ np.uint64(byte)) * factor
        out[0, place], out[1, place] = plain, masked
    return out
