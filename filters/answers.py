"""Golds that no program can verify: missing, prose, too long, given away, a letter without options, several.

A set is an answer ("1 and 2", "x = 1 or x = 2", "-1, 5"); bare alternatives ("5 or 7") are two golds, unless
the problem asks for several values or they are one number written twice ("0.5 or 1/2").
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice

import polars as pl

from assay.filters.options import MAX_CHARS, loose, named_labels, plain, runs

__all__ = ["REASONS", "decide", "gold_value", "is_prose", "longest_read", "lost_options", "normalise_gold"]

REASONS = ("empty", "letter_without_options", "prose", "over_long", "several_golds", "stated_in_problem",
           "gold_unparsable")  # fmt: skip
MAX_GOLD = 100  # Big-Math (arXiv 2502.17387) drops answers above 100 characters
MAX_WORDS, MAX_HINTS = 5, 20

# --- one form of a gold ---------------------------------------------------------------------------

DOUBLED = re.compile(r"\\\\(?=[A-Za-z]{2})")
SINGLE = re.compile(r"(?<!\\)\\(?=[A-Za-z]{2})")
WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"))
THOUSANDS = re.compile(r"([-+]?\$?)(\d{1,3}(?:,\d{3})+)(\.\d+)?")
NOTHING = frozenset(("", "none", "null", "nan", "n/a", "na", "-", "--", "?", "...", "[]", "{}"))


def normalise_gold(answer: str | None) -> str:
    """The gold bare: what follows a last `####`, without outer `$`, `\\boxed{}` and closing full stop.

    Doubled escapes (`\\\\frac`) are repaired where every command of the text is doubled, so that the line
    breaks of a matrix stay; "1,234" becomes "1234". Empty for a missing answer, "None", "N/A" and the like.
    """
    text = plain(answer or "").rpartition("####")[2].strip()
    if DOUBLED.search(text) and not SINGLE.search(text):
        text = text.replace("\\\\", "\\")
    while (inner := _unwrapped(text)) != text:
        text = inner
    if match := THOUSANDS.fullmatch(text):
        text = match[1] + match[2].replace(",", "") + (match[3] or "")
    return "" if text.lower() in NOTHING else text


def _unwrapped(text: str) -> str:
    """`text` with one layer less: a full stop, a pair of delimiters or a box."""
    text = text.removesuffix("。").rstrip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    for opening, closing in WRAPPERS:
        inner = text[len(opening) : -len(closing)].replace("\\$", "")
        whole = len(text) >= len(opening + closing) and text.startswith(opening) and text.endswith(closing)
        if whole and not text.endswith("\\$") and opening not in inner and closing not in inner:
            return text[len(opening) : -len(closing)].strip()
    return _unboxed(text)


def _unboxed(text: str) -> str:
    match = re.match(r"\\(?:boxed|fbox)\s{0,3}\{", text)
    if not match or not text.endswith("}"):
        return text
    depth = 1
    for index in range(match.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:  # \boxed{1}, \boxed{2} is no one box
            return text[match.end() : index].strip() if index == len(text) - 1 else text
    return text


# --- prose ----------------------------------------------------------------------------------------

# Phrases that denote a mathematical object; whether the verifier can read them is for `gold_fault` to say.
PHRASES = re.compile(
    r"(?i)\b(?:no (?:\w+ ){0,2}(?:solutions?|roots?|zeros?|real numbers?)"
    r"|all (?:\w+ ){0,2}(?:reals?|numbers|integers)|infinit\w*|undefined|indeterminate|does not exist|dne"
    r"|empty set)\b|无解|无穷|不存在|空集|全体实数"
)
NUMBER_WORDS = re.compile(
    r"(?i)\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)"
    r"teen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million|half|twice|third|quarter)s?\b"
    r"|[零〇一二两三四五六七八九十百千万半]"
)
# Dropped before words are counted: names of environments, and text commands, whose arguments may be words.
WORDLESS = re.compile(
    r"\\(?:begin|end)\s?\{[a-z*]{1,20}\}(?:\{[^{}]{0,60}\})?|\\(?:text|mbox|textrm|textbf|mathrm|operatorname)\b\*?"
)
COMMAND = re.compile(r"\\[A-Za-z]{2,}")
SIGN = re.compile(r"[0-9=<>≤≥≠±+*/^∪∩∈∞∅√°%_π②-⑩①]|(?<!\w)-(?=\w)")
VARIABLE = re.compile(
    r"[(\[]?-?[A-Za-zα-ωΑ-Ω](?:['!]|[({\[]\w{1,3}[)}\]])?(?:\s?[,;]\s?[A-Za-z])*[)\]]?|[A-Z]{2,4}|[a-z]{2}"
)
TRUTH = (
    r"true|false|yes|no|(?:in)?valid|(?:in)?correct|是的?|否|对|错误?|正确|不正确|不是|不对|[√×✓✗✔✘]|[真假](?:命题)?"
)
TRUTH += "|不?能|不?会|不?够|不?可以"
BOOLEAN = re.compile(rf"(?i)\W{{0,3}}(?:{TRUTH})\W{{0,3}}|\\text\{{(?:{TRUTH})\}}")
WORD = re.compile(r"(?i)[a-z]{3,}|\b(?:an|as|at|be|by|if|in|is|it|no|of|on|or|so|to|up|we)\b")  # ab is a product
NOT_FOUND = re.compile(
    r"(?i)(?:see (?:the )?)?(?:proof|solution|explanation|above|below)s?(?: (?:is )?(?:omitted|above|below))?"
    r"|not ?(?:found|given|available|provided|specified)|unknown|q\.?e\.?d\.?|(?:answers? (?:(?:may|will) )?)?vary"
    r"|varies|omitted"
    r"|[见略]?(?:证明|解析|解答|过程|详解)?[见略]?"
)
MATH = re.compile(r"\${1,2}[^$]{1,2000}\${1,2}")


def is_prose(gold: str) -> bool:
    """True where a normalised gold holds no mathematics, or over `MAX_WORDS` words (10 ideographs) around it.

    Not prose: a number with its unit ("12 (oranges)", "3 hours 20 minutes", "12个"), a phrase for a set ("no
    solution"), Yes or No, which are the format's affair. Prose: "diverges", "proof", "not found".
    """
    return bool(_prose_fault(gold))


def _prose_fault(gold: str) -> str | None:
    if gold and NOT_FOUND.fullmatch(gold):
        return "the gold says that there is none"
    words = WORDLESS.sub(" ", gold)
    outside = COMMAND.sub(" ", MATH.sub(" ", words))
    count = len(WORD.findall(outside))
    ideographs = sum("一" <= char <= "鿿" for char in outside)
    if count > MAX_WORDS or ideographs > 10:
        return f"{count} words" if count else f"{ideographs} ideographs"
    marked = COMMAND.search(words) or SIGN.search(words) or VARIABLE.fullmatch(gold)
    known = BOOLEAN.fullmatch(gold) or PHRASES.search(gold) or NUMBER_WORDS.search(gold)
    return None if marked or known else "no mathematics"


# --- given away, letters, alternatives ------------------------------------------------------------

HINT = re.compile(
    r"(?i)(?:\b(?:answers?|ans|solution)\b|答案)"
    r"(?:\s{0,3}(?:to this (?:problem|question)|is|are|[:=]|应?[为是])){1,3}\s{0,3}"
    r"|\\boxed\s{0,3}(?=\{)|####\s{0,3}"
)
ASKS = re.compile(
    r"(?i)[?]|_{2,}|\(\s{0,9}(?:\\quad)?\s{0,9}\)|\b(?:find|compute|calculate|determine|evaluate|solve|simplify|what|how"
    r"|which|give|express|write|factor|show|prove|estimate|convert|use|graph|state|round|add|subtract|multiply|divide"
    r"|name|expand)\b|[求解算简写何多几填]"
)
ENDS_WITH_EQUATION = re.compile(r"=\s{0,3}([^=]{1,60})$")


def _stated(problem: str, gold: str) -> str | None:
    """Where the problem states its gold: a hint that is just it, or a last equation with nothing asked."""
    text, wanted = plain(problem[:MAX_CHARS]), loose(gold)
    for match in islice(HINT.finditer(text), MAX_HINTS):
        rest = text[match.end() : match.end() + len(gold) + 60]
        if any(loose(normalise_gold(piece)) == wanted for piece in _prefixes(rest)):
            return text[match.start() : match.end() + len(gold)][:80]
    ending = ENDS_WITH_EQUATION.search(text[-80:].rstrip(" .。$\n"))
    if ending and loose(ending[1]) == wanted and not ASKS.search(text):
        return ending[0]
    return None


def _prefixes(text: str) -> Iterator[str]:
    """The beginnings of `text` that end where a stated answer may: at punctuation, a bracket or a word."""
    for stop in re.finditer(r"[.,;)\]}\n。，；]+(?=\s|[^\d]|$)|\s(?=[A-Za-z])|(?=\))|$", text):
        yield text[: stop.start()].lstrip("(")
        yield text[: stop.end()]


CHOICE_WORDING = re.compile(
    r"(?i)\bwhich\s{1,3}(?:of|one|statements?|options?|answers?|choices?|expressions?|equations?)\b"
    r"|\bof the following\b|下列|以下|正确的是|错误的是|选项|\(\s{0,9}\)\s{0,3}[.。]?\s{0,9}$"
)
ARTICLE = re.compile(r"(?<![A-Za-z\\])A(?= [a-z])")

LABELLED = re.compile(r"^[(\[]?([A-K])\s?[)\].:、](?=\s|\d)(?!\s{0,3}[A-Z]\b)")
ASKS_LETTER = re.compile(
    r"(?i)\b(?:which|what|whose|the|next|missing|capital)\s(?:\w+\s){0,2}(?:letters?|grade|vitamin|note)\b(?! to)"
    r"|(?:哪|什么)个?(?:大写|小写)?字母"
)
HIGH_BASE = re.compile(  # in which letters are digits; the base of a triangle is none
    r"(?i)\b(?:(?:in|to|into|from)\s(?:a\s)?base[\s$-]{0,4}|base-)(?:1[1-9]|[23]\d|eleven|twelve|thirteen|sixteen)\b"
    r"|\bhex(?:adecimal)?\b|[0-9A-F]\}?_\{?(?:\\text\{)?(?:1[1-9]|[23]\d)\b|(?:1[1-9]|[23]\d|十[一二三四五六七八九])进制"
)


def lost_options(problem: str, gold: str) -> bool:
    """True where the gold is option letters and the problem neither has options nor names them.

    Letters after E, which are units and forces, are so only where the wording is of a choice. The
    vertex B of a triangle and vitamin C are named by the problem; the article A is not a name. Where a letter is
    asked for, or is a digit, it is a value. "B. 5" is a letter, too, but D.N.E. is none.
    """
    labels = named_labels(gold) or tuple(LABELLED.findall(gold[:200]))
    letters = "".join(labels)
    bare = letters.islower() and not re.search(r"\([a-e]\)", gold)
    if bare or not re.fullmatch("[A-K]{1,5}|[a-e]", letters):
        return False
    text = plain(problem[:MAX_CHARS])
    if CHOICE_WORDING.search(text):
        return not _with_labels(text, labels)
    if re.search("[F-K]", letters) or ASKS_LETTER.search(text) or HIGH_BASE.search(text):
        return False
    named = ARTICLE.sub(" ", text)
    return not any(re.search(rf"(?<![a-z\\]){label}(?![a-z])", named) for label in labels) and not runs(text)


def _with_labels(text: str, labels: tuple[str, ...]) -> bool:
    wanted = {loose(label) for label in labels}
    return any(wanted <= {loose(label) for label in run.labels} for run in runs(text))


OR = re.compile(r"(?i)(?<![A-Za-z])or(?![A-Za-z])|或者?")
PLURAL = re.compile(
    r"(?i)\b(?:all|both|possible|values|solutions|roots|zeros|numbers|integers|pairs|points|answers|solve|each)\b"
    r"|解方程|各|分别|哪些|或|几个"
)


def _alternatives(problem: str, gold: str) -> str | None:
    """Bare numbers joined by "or" that differ, where the problem asks for one."""
    if not OR.search(gold):
        return None
    parts = [loose(part).removeprefix("either").strip("()") for part in OR.split(gold)]
    numbers = [_number(part) for part in parts]
    if None in numbers or len(set(numbers)) < 2 or PLURAL.search(problem[:MAX_CHARS]):
        return None
    return " or ".join(parts)


def _number(text: str) -> Fraction | None:
    """A decimal or a/b, with a short unit; None for anything else."""
    match = re.fullmatch(r"([-+]?\d{1,30}(?:\.\d{1,30})?)(?:/(\d{1,30}))?\D{0,12}", text.replace(",", ""))
    if not match or (match[2] and not int(match[2])):
        return None
    return Fraction(match[1]) / int(match[2] or 1)


def gold_value(answer: str | None) -> str | Fraction | None:
    """What golds of one value have in common: a number, however written, or loose text; None where there is none.

    A gold of more than `MAX_GOLD` characters is a solution, in which a word more tells nothing.
    """
    gold = normalise_gold(answer)
    if not gold or len(gold) > MAX_GOLD:
        return None
    text = loose(re.sub(r"\\[dt]?frac\s?\{?(\d+)\}?\s?\{?(\d+)\}?", r"\1/\2", gold))
    number = _number(re.sub(r"^[a-z]=|%$|\\%$", "", text))
    return text if number is None else number


# --- the filter -----------------------------------------------------------------------------------


def decide(problems: pl.DataFrame, max_chars: int = MAX_GOLD) -> pl.DataFrame:
    """One decision for each problem on whether its gold can be verified.

    Args:
        problems: `id, problem, answer`; optional `kind` ("code" rows have tests for a gold and are kept),
            `options`, and `gold_fault`, null or why the verifier cannot read the gold.
        max_chars: longest gold kept, characters after `normalise_gold`.

    Returns:
        `id, keep, reason, evidence` in input order; the reason is the first of `REASONS` that holds.

    Raises:
        ValueError: a column is missing, or `max_chars` is below 1.
    """
    missing = {"id", "problem", "answer"} - set(problems.columns)
    if missing or max_chars < 1:
        raise ValueError(f"answers: columns {sorted(missing)} missing; max_chars is {max_chars}, at least 1")
    frame = problems.select(
        "id",
        pl.col("problem", "answer").fill_null(""),
        _optional(problems, "kind", pl.String),
        _optional(problems, "gold_fault", pl.String),
        _optional(problems, "options", pl.List(pl.String)).list.len().fill_null(0) > 1,
    )
    doubtful = frame.with_row_index("row").filter(~_sound(max_chars))
    rows = doubtful.select("row", "problem", "answer", "options", "kind", "gold_fault").iter_rows()
    faults = [(row, *_fault(max_chars, *rest)) for row, *rest in rows]
    found = pl.DataFrame(faults, {"row": pl.UInt32, "reason": pl.String, "evidence": pl.String}, orient="row")
    decided = frame.select("id").with_row_index("row").join(found, on="row", how="left", maintain_order="left")
    return decided.select("id", pl.col("reason").is_null().alias("keep"), "reason", "evidence").rechunk()


def _sound(max_chars: int) -> pl.Expr:
    """True where a look at the row's characters is enough: a number for a gold that the problem cannot state."""
    number = pl.col("answer").str.contains(r"^\s*-?[0-9]{1,30}(?:\.[0-9]{1,30})?\s*$")
    short = pl.col("answer").str.len_bytes() <= max_chars
    hints = pl.col("problem").str.contains(r"(?i:answer|\bans\b|solution|boxed)|####|答案|[！-～]")
    equation = pl.col("problem").str.tail(80).str.contains(r"=(?:[^=A-Za-z]|\\[A-Za-z]+)*$")  # with no word after it
    return number & short & ~hints & ~equation & pl.col("gold_fault").is_null()


def _optional(problems: pl.DataFrame, name: str, dtype: pl.DataType | type[pl.DataType]) -> pl.Expr:
    return pl.col(name) if name in problems.columns else pl.lit(None, dtype).alias(name)


def longest_read(max_chars: int) -> int:
    """Characters of a gold that are read: what is longer is no answer of `max_chars` in any wrapping."""
    return 4 * max_chars + 1000


def _fault(
    max_chars: int, problem: str, answer: str, options: bool, kind: str | None, gold_fault: str | None
) -> tuple[str | None, str | None]:
    """The first reason against one gold, and its evidence."""
    if kind == "code":
        return None, None
    gold = normalise_gold(answer[: longest_read(max_chars)])
    if not gold:
        return "empty", answer[:80]
    if not options and lost_options(problem, gold):
        return "letter_without_options", f"gold {gold}"
    if not (options or named_labels(gold)) and len(gold) <= 2000 and (fault := _prose_fault(gold)):
        return "prose", f"{fault}: {gold[:80]}"
    if len(gold) > max_chars:
        return "over_long", f"{len(gold)} characters"
    if alternatives := _alternatives(problem, gold):
        return "several_golds", alternatives
    if stated := _stated(problem, gold):
        return "stated_in_problem", stated
    return ("gold_unparsable", gold_fault[:200]) if gold_fault else (None, None)
