"""Labelled runs in a problem's text, (A) ... (B) ... (C) ..., and the golds that name one of their labels.

A run is what options and parts have in common; which of the two it is, `answer_format` says. Labels are read
in the styles of textbooks, competitions and exams: (A) A. A) A: {A} |A| a) 1) (i) ① 甲 in ASCII, full width or LaTeX;
letters begin at A or, as in every other question of the ACT, at F.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

__all__ = ["Run", "loose", "named_labels", "runs", "value_of"]

# Bounds that keep a hostile text cheap: longer texts are no problems or options, what follows is not read.
MAX_CHARS, MAX_VALUE, MAX_RUNS = 100_000, 2_000, 5
FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
FULL_WIDTH |= {0x3000: 0x20, 0xA0: 0x20, ord("【"): ord("["), ord("】"): ord("]")}
ENCLOSED = ("Ⓐ", "ⓐ⒜🄐🄰🅐🅰", 26), ("①", "❶➀➊⓵", 10)  # letters and numbers in a circle, a box or brackets
FULL_WIDTH |= {ord(a) + i: ord(first) + i for first, alike, n in ENCLOSED for a in alike for i in range(n)}
# Blanked to as many spaces, so that offsets stay those of the text. \( \) go too: \(A\) is no label.
MARKUP = re.compile(
    r"\\(?:text|math)(?:bf|rm|sf|it|tt|normal)?\s{0,3}\{|\\(?:bf|rm|sf)\b|\\q?quad\b|\\\\|\\[ ,;:!()\[\]]"
    r"|\*\*|\$|\\n(?=\W{0,3}[A-Ja-j][.):])|\\item\b|(?<=[A-Ja-j0-9.):\s])\}"
)
# A letter that markup alone sets off is a label before a value, \(A\) 4 or <b>A</b> 4, and a name before a word.
SET_OFF = re.compile(
    r"(?:\\\(|\$|\*\*|<(?:b|i|u|em|strong)>|\\(?:text|math)(?:bf|rm)?\{)([A-K])[.:)]?"
    r"(?:\\\)|\$|\*\*|</\w{1,6}>|\})(?=\s{0,4}[-+]?(?:\d|\$\d|\\d?frac))"
    r"|(?<![\w\\^}\])])\{([A-Ka-k])\}(?=[.:)]?\s{0,4}[^\s^_{}])|(?<!\w)<([A-K])>(?! ?[<>])"
    r"|(?<=[\[\s,(])['\"]([A-K])[.:)]"
)
ORDERS = ("FGHJK", "FGHIJ")  # of every other list of options in the ACT
HEADS = "(?:Q|Question|Problem|Part|Task|Choice|Option) ?", "(?:问题|任务|第)"
STEMS, NUMERALS = "甲乙丙丁戊己", "一二三四五六七八九十"
ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")
FREE = r"(?<![A-Za-z0-9\\_^'{(\[.])"  # what a label may follow: never a letter, as in P(A) or f(1)
STYLES = {
    "letters": (
        re.compile(r"(?<![A-Za-z\\_^'])[(\[]\s{0,20}([A-K]|(?<!\d.)[a-k])\.?\s{0,20}[)\]]"),  # (A)4(B)5, not 4(b)
        re.compile(FREE + r"([A-Ka-k]) {0,2}[.、](?!\s{0,2}[A-K][.、])"),
        re.compile(FREE.replace("0-9", "") + r"([A-K])[.、](?![A-K][.、])"),  # A.7B.8C.9
        re.compile(FREE + r"([A-Ka-k]) {0,2}\)"),
        re.compile(r"(?:(?m:^)|(?<=\s))([A-K]),(?=\s?[^\s,]{1,20}\s{0,9}(?:[B-K],|$))"),  # A，4 B，5
        re.compile(FREE + r"([A-Ka-k]) {0,2}:"),
        re.compile(r"(?m)^[ \t>*-]{0,8}([A-Ka-k])(?:[ \t]{0,3}[-–—|][ \t]{0,3}|[ \t]{1,4}|[ \t]*\n\s{0,4})(?=\S)"),
        re.compile(r"(?:^|[.,;?:])\s?([A-K]) [-–—] (?=\S)"),
        re.compile(r"([Ⓐ-Ⓚ])"),
    ),
    "cells": (
        re.compile(
            r"(?:(?m:^)[ \t]{0,8}|(?<=[^\s|=])|(?<=\S )(?=\| ))\|[ \t]{0,8}([A-K])[ \t]{0,8}\|(?=[^|\n]{1,200}\|)"
        ),
    ),
    "stems": (re.compile(rf"(?<![^\W_0-9])\(?([{STEMS}])(?:[.:)]|、(?![{STEMS}]))"),),
    "circled": (
        re.compile(r"([①-⑩])"),
        re.compile(r"\\(?:textcircled|circled)\s{0,3}\{?\s{0,3}(\d{1,2})\s{0,3}\}?"),
    ),
    "digits": (
        re.compile(r"(?<![A-Za-z0-9\\_^'})])\(\s{0,3}(\d{1,2})\s{0,3}\)"),
        re.compile(rf"\b{HEADS[0]}(\d{{1,2}})\s?[.:)]"),
        re.compile(rf"{HEADS[1]}([{NUMERALS}])[问题]?[:,、]"),
        re.compile(r"(?:(?<![^\n.;:!?。；])|(?<=[\n.;:!?。；] ))(\d{1,2})\s?[.、](?!\d)"),
        re.compile(FREE + r"(\d{1,2})\s?[.、](?!\d)"),
        re.compile(FREE + r"(\d{1,2})\)"),
        re.compile(r"([⑴-⑽])"),
    ),
    "roman": (
        re.compile(r"(?i)(?<![A-Za-z0-9\\_^'])\(\s{0,3}([ivx]{1,4})\s{0,3}\)"),
        re.compile(r"(?i)" + FREE + r"([ivx]{1,4})[.):](?=\s)"),
        re.compile(r"([Ⅰ-Ⅹⅰ-ⅹ])\s?[.、)]?"),
    ),
}
# A run has a second label: one search spares the others in most texts.
SECOND = {
    "letters": re.compile(r"(?m)(?<![A-Za-z\\_^'])[BbG]\s{0,20}[.)\]:、,|–—-]|^[ \t>*-]{0,8}[BbG]\s|[ⒷⒼ]"),
    "cells": re.compile(r"\|\s{0,8}[BG]\s{0,8}\|"),
    "stems": re.compile(r"乙[.:)、]"),
    "circled": re.compile(r"②|circled"),
    "digits": re.compile(rf"(?<![\w^])2\s{{0,3}}[.)、]|⑵|{HEADS[0]}2|{HEADS[1]}二"),
    "roman": re.compile(r"(?i)(?<![a-z0-9])ii\s{0,3}[.):]|[Ⅱⅱ]"),
}


@dataclass(frozen=True)
class Run:
    """Labels 1, 2, ... of one style in the order of the text.

    `kind` is a key of `STYLES` (lower-case letters apart, as `lowercase`); `values` are the texts after the
    labels, the last one up to a blank line; `tail` is all that follows the last label; `before` is the word
    before each label.
    """

    kind: str
    labels: tuple[str, ...]
    stem: str
    values: tuple[str, ...]
    tail: str
    before: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class _Mark:
    number: int
    text: str
    start: int
    end: int


def plain(text: str) -> str:
    """`text` with full-width ASCII made narrow; the same length."""
    return text if text.isascii() else text.translate(FULL_WIDTH)


def ordinal(label: str) -> int:
    """1 for A, a, 1, i, ①, Ⓐ, ⑴, Ⅰ, 甲; 2 for the next; 0 for what is no label."""
    for series in (STEMS, NUMERALS):
        if label in series:
            return series.find(label) + 1
    for first, last in (("Ⓐ", "Ⓩ"), ("①", "⑩"), ("⑴", "⑽"), ("Ⅰ", "Ⅹ"), ("ⅰ", "ⅹ")):
        if first <= label <= last:
            return ord(label) - ord(first) + 1
    if label.isascii() and label.isdigit():
        return int(label)
    return ord(label.upper()) - 64 if len(label) == 1 and label.isascii() and label.isalpha() else 0


def runs(problem: str) -> list[Run]:
    """The runs of two or more labels that start at the first one, longest first, at most five for a pattern."""
    text = plain(problem[:MAX_CHARS])
    labels = SET_OFF.sub(lambda match: f"({match[match.lastindex or 1]:^{len(match[0]) - 2}})", text)
    blank = MARKUP.sub(lambda match: " " * len(match[0]), labels)
    found = []
    for kind, patterns in STYLES.items():
        for pattern in patterns if SECOND[kind].search(blank) else ():
            marks = list(_marks(kind, pattern, text if kind == "circled" else blank))
            longest = sorted(_sequences(marks), key=len, reverse=True)[:MAX_RUNS]
            found += [_run(kind, text, blank, marks) for marks in longest]
    return sorted(found, key=len, reverse=True)


def _marks(kind: str, pattern: re.Pattern[str], text: str) -> Iterator[_Mark]:
    for match in pattern.finditer(text):
        label = match[1]
        number = number_of(label) if kind == "roman" else ordinal(label)
        if number:
            yield _Mark(number, label, match.start(), match.end())


def _sequences(marks: list[_Mark]) -> Iterator[list[_Mark]]:
    """Runs of labels that begin at the first one, be that F."""
    yield from _consecutive(marks)
    for order in ORDERS if any(mark.text in "FⒻ" for mark in marks) else ():
        yield from _consecutive(replace(mark, number=order.find(chr(mark.number + 64)) + 1) for mark in marks)


def _consecutive(marks: Iterable[_Mark]) -> Iterator[list[_Mark]]:
    """Consecutive labels; a first label starts anew, any other label out of turn is passed over."""
    current: list[_Mark] = []
    for mark in marks:
        if mark.number == 1:
            if len(current) > 1:
                yield current
            current = [mark]
        elif current and mark.number == len(current) + 1 and mark.text.isupper() == current[0].text.isupper():
            current.append(mark)
    if len(current) > 1:
        yield current


def _run(kind: str, text: str, blank: str, marks: list[_Mark]) -> Run:
    ends = [mark.start for mark in marks[1:]] + [len(text)]
    spans = [text[mark.end : end] for mark, end in zip(marks, ends)]
    spans[-1], tail = spans[-1].strip().split("\n\n")[0], spans[-1]
    lower = kind == "letters" and marks[0].text.islower()
    before = (re.search(r"([A-Za-z]+)[ \t]*$", blank[max(0, mark.start - 24) : mark.start]) for mark in marks)
    return Run(
        "lowercase" if lower else kind,
        tuple(mark.text for mark in marks),
        text[: marks[0].start],
        tuple(value_of(span) for span in spans),
        tail,
        tuple(match[1].lower() if match else "" for match in before),
    )


SPACING = r"(?:\\q?quad\b|\\[ ,;:!]|\\\\|\\hspace\{[^{}]{0,20}\}|\s|<br\s?/?>)"
WRAPPER = r"\\(?:text|math)(?:bf|rm|sf|it|tt|normal)?\s{0,3}\{"  # of the next label
EDGES = re.compile(
    rf"^(?:{SPACING}|[.:)}}、]|\*\*)+"
    rf"|(?:{SPACING}|{WRAPPER}|\\item|\b[Oo]ption|[;,；，。|]|\*\*|\n[ \t]{{0,8}}[>*•-]+)+$"
)
LABEL = re.compile(r"^\s{0,5}(?:\(\s?[A-K]\s?\)|[A-K]\s?[.):、])\s{0,5}(?=\S)")


def value_of(option: str) -> str:
    """An option without its label, spacing around it, closing full stop and dollar sign without a fellow."""
    value = LABEL.sub("", plain(option[:MAX_VALUE]))
    for _ in range(3):  # "\\ 5 $ \\quad" peels in layers
        value = EDGES.sub("", value)
        if value.count("$") % 2:
            value = value.removesuffix("$") if value.endswith("$") else value.removeprefix("$")
    if value.count("}") > value.count("{"):  # of \textbf{(A) 5}
        value = value.removesuffix("}").rstrip()
    return value.removesuffix(".") if not value.endswith("..") else value


def loose(value: str) -> str:
    """A value for comparing: no markup, spaces, brackets of size or letter case."""
    value = re.sub(r"\\(?:left|right|d?frac(?=\{)|text|mathrm|boxed)\b|\\[ ,;:!]|[$\s{}]", "", plain(value))
    return value.strip(".,").lower()


NAMES = re.compile(
    r"(?i:\s*(?:the\s+)?(?:answers?|options?|choices?|选项?|答案)?\s*(?:is|are|为|是)?\s*[:：]?\s*)"
    r"((?:[(\[\s]*(?:[A-K]|[a-k]|[1-9]|[IViv]{1,3}|[①-⑩⑴-⑽Ⓐ-Ⓚ甲乙丙丁戊己])[)\].:\s]*(?:,|;|、|and|or|&|和|only)?\s*){1,10})"
)
NAME = re.compile(r"[IViv]{1,3}(?![A-Za-z])|[A-Ka-k1-9①-⑩⑴-⑽Ⓐ-Ⓚ甲乙丙丁戊己]")
WORDS = re.compile(r"and|or|only")
ADJACENT = re.compile(r"[a-h1-9]{2}")  # 15 and ab are a number and a product; AC and ①③ are labels


def named_labels(gold: str) -> tuple[str, ...]:
    """The labels a gold consists of ("B", "(b)", "\\text{A, C}", "①③", "1,3"); empty for anything else."""
    if len(gold) > 60:
        return ()
    text = re.sub(r"\\(?:text|math|box)[a-z]*|\\[ ,;]|[${}*]|\s+", " ", plain(gold))
    match = NAMES.fullmatch(re.sub(r" {2,}", " ", text).strip())
    if not match or ADJACENT.search(match[1].replace("and", ",").replace("or", ",")):
        return ()
    found = tuple(NAME.findall(WORDS.sub(" ", match[1])))
    numbers = [number_of(label) for label in found]
    one_kind = len({(label.isalpha(), label.isupper()) for label in found}) == 1  # "B. 5" is a label and a value
    return found if one_kind and numbers == sorted(set(numbers)) else ()


def number_of(label: str) -> int:
    """The place of a label, a Roman one's too: 2 for B, ② and ii."""
    lower = label.lower()
    return ROMAN.index(lower) + 1 if lower in ROMAN else ordinal(label)
