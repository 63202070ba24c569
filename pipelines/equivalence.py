"""Whether two canonical answers are the same: structure first, then numbers, then words, then mathematics.

An answer may be read in several ways ("1,234" is a number or two; "(1,2)" a point or an interval): two answers are
equal when one reading of each is. Comparison is three-valued: None means that only symbolic mathematics can tell, and
`atom` (the worker's comparison) is asked where it is given. Every rule is symmetric in its two sides.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from assay.pipelines.answer_extraction import find_choice, find_choices
from assay.pipelines.answer_text import closing, is_text, split_top, word_key
from assay.pipelines.quantity import MAX_CHARS, ExpressionTooLarge, approximate, quantity, same_quantity, split_unit

__all__ = ["Policy", "compare", "leaves", "list_length"]


@dataclass(frozen=True)
class Policy:
    """Who grades, and what counts as the same answer.

    Attributes:
        verifier: `rule`; `judge`, a model that reads what the rules do not find correct; or `code`: the gold is tests,
            and the completion's program is run.
        ordered_lists: "1, 2" and "2, 1" differ.
        complete_lists: every listed answer is required; otherwise some of them and nothing else.
        units: `optional` (a missing unit is forgiven, a different one is not), `required`, or `ignored`.
        percent: `optional` (10% is 10 or 0.1) or `required` (both or neither).
        base: `required` (52_8 is not 52) or `optional` (a missing base is taken as the other's).
        decimal_digits: a decimal of at least so many significant digits stands for what rounds to it.
        interval_as_inequality: 0 < x < 1 is (0, 1).
        letters: the gold may be a multiple-choice letter, which "(B) 3.3 MeV" answers.
    """

    verifier: Literal["rule", "judge", "code"] = "rule"
    ordered_lists: bool = False
    complete_lists: bool = True
    units: Literal["optional", "required", "ignored"] = "optional"
    percent: Literal["optional", "required"] = "optional"
    base: Literal["optional", "required"] = "required"
    decimal_digits: int = 5
    interval_as_inequality: bool = True
    letters: bool = True


@dataclass(frozen=True)
class Reading:
    """One way to read an answer: `items` are canonical texts, compared by their own readings."""

    kind: Literal["atom", "list", "tuple", "interval", "matrix", "relation"]
    items: tuple[str, ...]
    shape: tuple[bool, bool] | int = 0  # interval: closed at either end; matrix: columns; list: 1 for a set in braces
    name: str = ""
    equation: str = ""  # the whole text of a named value


Atom = Callable[[str, str, Policy], "bool | None"]
_NAME = re.compile(
    r"^(?:\\?[a-zA-Z]\w{0,9}(?:_\{?\w+\}?)?'*(?:\([a-z](?:[,;][a-z])*\))?"
    r"|\\(?:angle|triangle|overline|vec|hat)\s*\{?[A-Za-z ]+\}?"
    r"|\\frac\{d[^{}]*\}\{d[^{}]*\}|[A-Z][a-z]+(?: [a-z]+)*|[a-z]+(?: [a-z]+)+)$"
)
_VARIABLE = re.compile(r"^(?:[a-zA-Z]|\\?[a-z]{2,7})(?:_\{?\w+\}?)?$")
_MATRIX = re.compile(
    r"^[(\[|]?\\begin\{(?:([pbv]?(?:small)?matrix)|array)\}(?:\{[lcr|]*\})?(.*)\\end\{(?:[pbv]?(?:small)?matrix"
    r"|array)\}[)\]|]?$",
    re.S,
)
_FUNCTION = re.compile(r"^[a-zA-Z]'*\([^()]*\)$")
_SET_BUILDER = re.compile(r"^⟦\w(?:∈[^|:]*)?[|:](.+)⟧$")
_DECIMAL_COMMA = re.compile(r"^(?:-?\d+,\d+ -?\d+\.\d+|-?\d+\.\d+ -?\d+,\d+)$")
_ANGULAR = re.compile(r"π|sin|cos|tan|cot|sec|csc")
_RELATION = re.compile(r"[<>≤≥≠]")
_MIRRORED = {"<": ">", ">": "<", "≤": "≥", "≥": "≤"}


def compare(gold: str, prediction: str, policy: Policy, atom: Atom | None = None) -> bool | None:
    """Equality of two canonical texts; None when symbolic mathematics is needed and `atom` is not given.

    Raises:
        ExpressionTooLarge: a side is too large to be evaluated; nothing was.
    """
    if gold == prediction:
        return True
    if max(len(gold), len(prediction)) > MAX_CHARS:
        raise ExpressionTooLarge(f"an answer of more than {MAX_CHARS} characters")
    if policy.letters and (_is_letter(gold) or _is_letter(prediction)):
        return find_choice(gold) == find_choice(prediction)
    if policy.letters and not policy.ordered_lists and (letters := find_choices(gold)) and find_choices(prediction):
        return letters == find_choices(prediction)
    if _DECIMAL_COMMA.match(gold + " " + prediction) and gold.replace(",", ".") == prediction.replace(",", "."):
        return True
    if sides := _approximation(gold):
        return _approximately(*sides, lambda side: compare(side, prediction, policy, atom), policy, atom)
    if sides := _approximation(prediction):
        return _approximately(*sides, lambda side: compare(gold, side, policy, atom), policy, atom)
    pairs = ((a, b) for a in readings(gold) for b in readings(prediction))
    return _any(_same_reading(a, b, policy, atom) for a, b in pairs)


def _is_letter(text: str) -> bool:
    return len(text) == 1 and "A" <= text <= "J"


def _approximation(text: str) -> tuple[str, str] | None:
    """The first and the last side of "√2 ≈ 1.414"; what has no value ("x ≈ 1.4") only names the side after it."""
    if "≈" not in text or len(split_top(re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text), ",;")) > 1:
        return None
    sides = [side for side in split_top(text, "≈") if side]
    if len(sides) > 1 and not _has_value(sides[0]):
        sides[:2] = [f"{sides[0]}={sides[1]}" if _NAME.match(sides[0]) else sides[1]]
    return (sides[0], sides[-1]) if sides and sides != [text] else None


def _has_value(text: str) -> bool:
    """Whether a text is a number or a constant ("\\ln2", "e", "5 cm"), not a variable ("x", "θ_1", "P(A)")."""
    bare = re.sub(r"\\[a-zA-Z]+", "", text)
    return quantity_or_none(text) or bool(not re.search("[a-df-zA-Z]", bare) and re.search(r"(?<!_)[\deπ]", bare))


def _approximately(
    first: str, last: str, same: Callable[[str], bool | None], policy: Policy, atom: Atom | None
) -> bool | None:
    """An approximation is its first side; its last side too where that is the first, rounded."""
    return _any((same(first), _all(side(last) for side in (same, lambda last: _rounds(first, last, policy, atom)))))


def _rounds(value: str, rounded: str, policy: Policy, atom: Atom | None) -> bool | None:
    """Whether `rounded` is `value` to the digits that it has."""
    exact, coarse = quantity(value.rpartition("=")[2]), quantity(rounded)
    if exact and coarse and exact.digits and exact.places < coarse.places:
        return False
    decimal = re.sub(r"^(-?[\d,]+)(?=[ %°]|$)", r"\1.", rounded)  # with a point, a whole number is rounded too
    return compare(value, decimal, replace(policy, decimal_digits=1), atom)


def _any(results: Iterable[bool | None]) -> bool | None:
    unknown = False
    for result in results:
        if result:
            return True
        unknown |= result is None
    return None if unknown else False


def _all(results: Iterable[bool | None]) -> bool | None:
    unknown = False
    for result in results:
        if result is False:
            return False
        unknown |= result is None
    return None if unknown else True


def list_length(text: str) -> int:
    """Number of answers that a canonical gold lists; 0 when it is one answer."""
    lengths = [len(reading.items) for reading in readings(text) if reading.kind == "list"]
    return max(lengths, default=0)


def leaves(text: str) -> list[str]:
    """The atoms of a text's last reading: what must be readable for the text to be."""
    reading = readings(text)[-1]
    if reading.kind in ("atom", "relation"):
        return list(reading.items)
    return [leaf for item in reading.items for leaf in leaves(item)]


@lru_cache(maxsize=50_000)
def readings(text: str) -> tuple[Reading, ...]:
    """The ways to read a canonical text, at least one."""
    if sides := _approximation(text):
        return readings(sides[0])
    found = [Reading("atom", (text,))] if quantity_or_none(text) else []
    parts = [part.strip() for part in split_top(text, ",;")]
    if len(parts) > 1 and all(parts):
        return (*found, Reading("list", _flat(_share_name(parts))))
    if named := _named(text):
        name, value = named
        return tuple(Reading(r.kind, r.items, r.shape, r.name or name, text) for r in readings(value))
    return (*found, *_structured(text)) or (Reading("atom", (text,)),)


def quantity_or_none(text: str) -> bool:
    return quantity(text) is not None


def _share_name(parts: list[str]) -> list[str]:
    """ "n=2, 3, 4" lists values of n: the name is dropped when only the first has one."""
    first = _named(parts[0])
    if first and not any(re.search(r"[=<>≤≥≠]", part) for part in parts[1:]):
        return [first[1], *parts[1:]]
    return parts


def _flat(parts: list[str]) -> tuple[str, ...]:
    """Items with each ± written out."""
    return tuple(value for part in parts for value in _plus_minus(part))


def _plus_minus(text: str) -> list[str]:
    if "±" not in text:
        return [text]
    plus = re.sub(r"(^|[=({])±", r"\1", text).replace("±", "+")
    return [plus, text.replace("±", "-")]


def _named(text: str) -> tuple[str, str] | None:
    """(name, value) of "x=5", "5=x", "x∈(0,1)", "f(x)=...=3"; None for an equation such as 3x-y=2."""
    text = re.sub(r"^(?:\\forall|∀)[^,;]*[,;:]\s*", "", text)
    sides = split_top(text, "=" if "=" in text else "∈")
    if len(sides) < 2 or not all(sides) or _RELATION.search(text.replace("=", "")):
        return None
    if _NAME.match(sides[0]) and not quantity_or_none(sides[0]):
        return sides[0], sides[-1]
    if len(sides) == 2 and "=" in text and _VARIABLE.match(sides[1]) and quantity_or_none(sides[0]):
        return sides[1], sides[0]
    constant = not any(re.search("[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", side)) for side in sides[:-1])
    return ("", sides[-1]) if constant and "=" in text else None


def _structured(text: str) -> list[Reading]:
    if match := _SET_BUILDER.match(text):
        return list(readings(match[1]))
    if word_key(text) == "all real numbers":
        return [_interval("-∞", "∞", False, False)]
    if "±" in text:
        return [Reading("list", tuple(_plus_minus(text)))]
    if len(pieces := split_top(text, "∪")) > 1:
        return [Reading("list", tuple(pieces))]
    if match := _MATRIX.match(text):
        rows = [row.split("&") for row in re.split(r"\\\\", match[2].strip("\\ ")) if row.strip()]
        if len({len(row) for row in rows}) == 1:
            cells = tuple(cell.strip() for row in rows for cell in row)
            return [Reading("matrix", cells, len(rows[0]))]
    if bracketed := _bracketed(text):
        return bracketed
    outside = _outside_brackets(text)
    if _RELATION.search(outside):
        return _inequality(text) or [Reading("relation", (text,))]
    return [Reading("relation", (text,))] if "=" in outside else []


def _outside_brackets(text: str) -> str:
    for _ in range(text.count("{") + text.count("(")):
        text, count = re.subn(r"\{[^{}]*\}|\([^()]*\)", "", text)
        if not count:
            break
    return text


def _bracketed(text: str) -> list[Reading]:
    if len(text) < 3 or text[0] not in "([⟦⟨{" or text[-1] not in ")]⟧⟩}":
        return []
    inside = [part.strip() for part in split_top(text[1:-1], ",;")]
    if not all(inside) or any(char in part for part in inside for char in "⟦⟧") or _unbalanced(text):
        return []
    items = _flat(inside)
    if text[0] in "⟦{":
        return [Reading("list", items, 1)] if not re.search(r"[|:]", text) else []
    found = (
        [Reading("tuple", items)] if len(items) > 1 and (text[0] + text[-1] in ("()", "⟨⟩") or len(items) > 2) else []
    )
    if len(inside) == 2 and text[0] in "([" and text[-1] in ")]":
        found.append(_interval(items[0], items[1], text[0] == "[", text[-1] == "]"))
    return found


def _unbalanced(text: str) -> bool:
    """Whether the first and last bracket do not belong to each other: "(1,2)+(3,4)"."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char in "([⟦⟨{") - (char in ")]⟧⟩}")
        if depth == 0 and index < len(text) - 1:
            return True
    return depth != 0


def _interval(low: str, high: str, closed_low: bool, closed_high: bool, name: str = "") -> Reading:
    return Reading("interval", (low, high), (closed_low and "∞" not in low, closed_high and "∞" not in high), name)


def _inequality(text: str) -> list[Reading]:
    """x < a, a < x < b, x ≠ a, with a bare variable x, as an interval or two; of two variables as a relation too."""
    parts = re.split(r"([<>≤≥≠])", text)
    if not all(parts) or len(parts) not in (3, 5):
        return []
    if len(parts) == 5:
        low, first, name, second, high = parts
        if first in ">≥" and second in ">≥":
            low, first, second, high = high, second, first, low
        elif first not in "<≤" or second not in "<≤":
            return []
        return [_interval(low, high, first in "≤≥", second in "≤≥", name)] if _VARIABLE.match(name) else []
    left, sign, right = parts
    if not _VARIABLE.match(left) or quantity_or_none(left):
        if not _VARIABLE.match(right):
            return []
        left, right, sign = right, left, _MIRRORED.get(sign, sign)
    if re.search(rf"(?<![a-zA-Z\\]){re.escape(left)}(?![a-zA-Z])", right):
        return []
    if sign == "≠":
        return [Reading("list", (f"(-∞,{right})", f"({right},∞)"), name=left)]
    below = sign in "<≤"
    low, high = ("-∞", right) if below else (right, "∞")
    ordered = f"{left}{sign}{right}" if below else f"{right}{_MIRRORED[sign]}{left}"
    found = [_interval(low, high, sign == "≥", sign == "≤", left)]
    return [*found, Reading("relation", (ordered,))] if _VARIABLE.match(right) else found


def _same_reading(a: Reading, b: Reading, policy: Policy, atom: Atom | None) -> bool | None:
    if a.name != b.name and any(kind.match(a.name) and kind.match(b.name) for kind in (_VARIABLE, _FUNCTION)):
        return False
    kinds = {a.kind, b.kind}
    if kinds == {"atom"}:
        return _same_atom(a.items[0], b.items[0], policy, atom)
    if kinds == {"interval"}:
        if not policy.interval_as_inequality and bool(a.name) != bool(b.name):
            return False
        return a.shape == b.shape and _pairwise(a, b, policy, atom)
    if kinds == {"list"}:
        return _pairwise(a, b, policy, atom) if policy.ordered_lists else _unordered(a.items, b.items, policy, atom)
    if kinds == {"matrix"}:
        return a.shape == b.shape and _pairwise(a, b, policy, atom)
    column = kinds == {"tuple", "matrix"} and 1 in (a.shape, b.shape)
    if kinds == {"tuple"} or column or (kinds == {"tuple", "list"} and 1 not in (a.shape, b.shape)):
        return _pairwise(a, b, policy, atom)
    if a.kind == "list" and len(b.items) == 1 and not policy.complete_lists:
        return _any(compare(item, b.items[0], policy, atom) for item in a.items)
    if "list" in kinds and len(a.items) == len(b.items) == 1:
        return compare(a.items[0], b.items[0], policy, atom)
    if "relation" in kinds and (a.equation or b.equation):
        return _symbolic(a.equation or a.items[0], b.equation or b.items[0], policy, atom)
    if kinds <= {"relation", "interval"} or kinds in ({"atom", "matrix"}, {"relation", "list"}):
        return _symbolic(_written(a), _written(b), policy, atom)
    return False


def _written(reading: Reading) -> str:
    if reading.kind == "interval":
        low, high = reading.items
        closed = reading.shape if isinstance(reading.shape, tuple) else (False, False)
        return f"{'[' if closed[0] else '('}{low},{high}{']' if closed[1] else ')'}"
    if reading.kind == "list":
        items = [next((_written(r) for r in readings(item) if r.kind == "interval"), item) for item in reading.items]
        return ("∪" if all(item.startswith(("(", "[")) for item in items) else ",").join(items)
    if reading.kind == "matrix" and isinstance(reading.shape, int):
        rows = [reading.items[i : i + reading.shape] for i in range(0, len(reading.items), reading.shape)]
        return r"\begin{pmatrix}" + r"\\".join("&".join(row) for row in rows) + r"\end{pmatrix}"
    return reading.items[0]


def _pairwise(a: Reading, b: Reading, policy: Policy, atom: Atom | None) -> bool | None:
    if len(a.items) != len(b.items):
        return False
    return _all(compare(x, y, policy, atom) for x, y in zip(a.items, b.items, strict=True))


def _unordered(gold: tuple[str, ...], predicted: tuple[str, ...], policy: Policy, atom: Atom | None) -> bool | None:
    """Match each item with one of the other side; items equal at once are matched before mathematics is asked."""
    if len(gold) != len(predicted) and (policy.complete_lists or len(predicted) > len(gold)):
        return False
    rest, doubtful = list(gold), []
    for item in predicted:
        known = [compare(other, item, policy) for other in rest]
        if True in known:
            rest.pop(known.index(True))
        elif None not in known:
            return False
        else:
            doubtful.append(item)
    if doubtful and atom is None:
        return None
    for item in doubtful:
        index = next((i for i, other in enumerate(rest) if compare(other, item, policy, atom)), None)
        if index is None:
            return False
        rest.pop(index)
    return True


def _same_atom(a: str, b: str, policy: Policy, atom: Atom | None) -> bool | None:
    if a == b:
        return True
    left, right = quantity(a), quantity(b)
    if left and right:
        return same_quantity(left, right, policy.units, policy.percent, policy.base, policy.decimal_digits)
    if (left is None and is_text(split_unit(a)[0])) or (right is None and is_text(split_unit(b)[0])):
        return word_key(a) == word_key(b)
    if len(a) == len(b) == 1:
        return False  # two symbols, and the parser would fold their case
    return _symbolic(a, b, policy, atom)


def _symbolic(a: str, b: str, policy: Policy, atom: Atom | None) -> bool | None:
    """Ask mathematics, units aside; different units settle it at once."""
    if "°" in a + b and _ANGULAR.search(a + b):
        a, b = (re.sub(r"(\d+(?:\.\d+)?)°", r"(\1*π/180)", side) for side in (a, b))
    (a, unit_a), (b, unit_b) = split_unit(a), split_unit(b)
    if unit_a != unit_b and policy.units != "ignored" and ((unit_a and unit_b) or policy.units == "required"):
        return False
    if policy.percent == "required" and a.endswith("%") != b.endswith("%"):
        return False
    a, b = a.removesuffix("%"), b.removesuffix("%")
    if closing(a, 0) == len(a) - 1 if a[:1] in ("(", "{") else False:
        a = a[1:-1]
    if a == b:
        return True
    if _far_apart(a, b, policy):
        return False
    return atom(a, b, policy) if atom else None


def _far_apart(a: str, b: str, policy: Policy) -> bool:
    """Whether two constants differ by more than any rounding: settled here, without a worker."""
    left, right = approximate(a), approximate(b)
    if left is None or right is None:
        return False
    return abs(left - right) > max(abs(left), abs(right)) / Fraction(10) ** min(policy.decimal_digits - 1, 9)
