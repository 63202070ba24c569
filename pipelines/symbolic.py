"""Symbolic equality of two atoms with math-verify's LaTeX parser; runs in the pool's processes only.

Constants are compared at 40 digits and formulas at fixed points, relative to their size: 1/2004! is not 1/2006!, and
nothing is simplified that need not be. What evaluates at no point (relations, sets, formal sums) goes to math-verify's
own comparison, both ways round.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from assay.pipelines.answer_text import is_text, to_latex
from assay.pipelines.equivalence import Policy, compare, leaves
from assay.pipelines.quantity import MAX_BITS, ExpressionTooLarge, decimal_matches, quantity

__all__ = ["answer", "equal", "parse"]

_POINTS = (
    ("13/7", "29/11", "41/17", "5/3", "59/23"),
    ("3", "5", "2", "7", "4"),
    ("4", "6", "9", "8", "12"),
    ("4", "6", "9", "8", "12"),
    ("1/3", "2/7", "3/11", "4/13", "5/17"),
    ("-9/5", "-14/9", "-7/4", "-11/8", "-19/7"),
    ("37/5", "-23/9", "31/8", "-43/12", "17/6"),
)


class _Unreadable(ValueError):
    """A side that the parser cannot read; `args[0]` is the canonical text."""


def warm() -> None:
    """Load the parser, so that the first item does not pay for it."""
    parse("1+x")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One request of the pool: `{"gold", "prediction", "policy"}` -> `{"equal"}`, or `{"gold"}` -> `{"fault"}`."""
    gold = request["gold"]
    if "prediction" not in request:
        return {"fault": _fault(gold)}
    try:
        same = compare(gold, request["prediction"], Policy(**request["policy"]), equal)
    except ExpressionTooLarge as error:
        return {"equal": False, "reason": "expression_too_large", "detail": str(error)}
    if same:
        return {"equal": True}
    try:
        return {"equal": False, "reason": "gold_unparsable" if _fault(gold) else None}
    except ExpressionTooLarge:
        return {"equal": False, "reason": "expression_too_large"}


def _fault(gold: str) -> str | None:
    for leaf in leaves(gold):
        if quantity(leaf) is None and not is_text(leaf) and parse(leaf) is None:
            return f"cannot be read as mathematics: {leaf[:80]}"
    return None


@lru_cache(maxsize=4_096)
def parse(text: str) -> Any:
    """The sympy object of a canonical text, unevaluated; None when it cannot be read."""
    import math_verify
    from latex2sympy2_extended import NormalizationConfig

    spelling = NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True, boxed="none")
    config = math_verify.LatexExtractionConfig(boxed_match_priority=-1, normalization_config=spelling)
    latex = to_latex(text)
    bare = latex.replace("\\{", "").replace("\\}", "")
    if not latex.strip() or re.search(r"\$|\n", latex) or bare.count("{") != bare.count("}"):
        return None
    found = math_verify.parse(f"${latex}$", [config], fallback_mode="no_fallback", parsing_timeout=0)
    return found[0] if found else None


def equal(a: str, b: str, policy: Policy) -> bool | None:
    """Whether two atoms are equal; False when a side cannot be read.

    Raises:
        ExpressionTooLarge: a power or factorial inside is too large to evaluate.
    """
    import math_verify
    import sympy

    left, right = parse(a), parse(b)
    if left is None or right is None:
        return False
    for side in (left, right):
        _refuse_large(side)
    if left == right:
        return True
    if isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq):
        return _same_equation(left, right)
    left, right = _as_set(left, right), _as_set(right, left)
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        same = _same_expression(left, right, a, b, policy)
        if same is not None:
            return same
    return any(math_verify.verify(x, y, timeout_seconds=None) for x, y in ((left, right), (right, left)))


def _as_set(side: Any, other: Any) -> Any:
    """An inequality in one unknown as the real set it states, where the other side is a set."""
    import sympy

    if not (isinstance(side, sympy.core.relational.Relational) and isinstance(other, sympy.Set)):
        return side
    real = sympy.Symbol("x", real=True)
    try:
        (unknown,) = side.free_symbols
        return sympy.solve_univariate_inequality(side.subs(unknown, real).doit(), real, relational=False)
    except Exception:
        return side


def _refuse_large(expression: Any) -> None:
    import sympy

    for node in sympy.preorder_traversal(expression):
        if isinstance(node, sympy.Pow | sympy.factorial) and not node.free_symbols and _bits(node) > MAX_BITS:
            raise ExpressionTooLarge("a power or factorial too large to evaluate")
        if isinstance(node, sympy.Sum | sympy.Product) and any(_bits(bound) > 17 for bound in node.limits[0][1:]):
            raise ExpressionTooLarge("a sum or product of too many terms")


def _bits(node: Any) -> float:
    """About log2 of the size of a constant, without evaluating it."""
    import sympy

    if isinstance(node, sympy.Integer):
        return float(int(node).bit_length())
    if isinstance(node, sympy.Pow):
        exponent = _bits(node.exp)
        return float("inf") if exponent > 20 else max(_bits(node.base), 1.0) * 2.0**exponent
    if isinstance(node, sympy.factorial):
        bits = _bits(node.args[0])
        return float("inf") if bits > 20 else bits * 2.0**bits
    return (
        sum(_bits(part) for part in node.args)
        if isinstance(node, sympy.Mul)
        else max([_bits(part) for part in node.args], default=1.0)
    )


def _same_expression(left: Any, right: Any, a: str, b: str, policy: Policy) -> bool | None:
    """Compare values at fixed points; None when fewer than two points can be evaluated."""
    imaginary = _imaginary(left, right)
    left, right = _evaluated(left.subs(imaginary)), _evaluated(right.subs(imaginary))
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    if not symbols:
        return _same_constant(left, right, a, b, policy)
    seen = 0
    for row in _POINTS:
        values = _values_at(left, right, symbols, row, bool(imaginary))
        if values is None:
            continue
        if not _near(values[0], values[1], "." in a + b):
            return False
        seen += 1
    return True if seen >= 2 else None


def _evaluated(expression: Any) -> Any:
    """Sums and integrals in closed form where sympy finds one."""
    try:
        return expression.doit()
    except Exception:
        return expression


def _imaginary(left: Any, right: Any) -> dict[Any, Any]:
    import sympy

    names = {symbol for symbol in left.free_symbols | right.free_symbols if str(symbol) == "i"}
    bound = left.has(sympy.Sum, sympy.Product) or right.has(sympy.Sum, sympy.Product)
    return {} if bound else dict.fromkeys(names, sympy.I)


def _values_at(left: Any, right: Any, symbols: list, row: tuple[str, ...], complex_allowed: bool) -> tuple | None:
    import sympy

    point = {symbol: sympy.Rational(row[i % len(row)]) + i // len(row) for i, symbol in enumerate(symbols)}
    values = _value(left.subs(point)), _value(right.subs(point))
    if None in values:
        return None
    real = [abs(sympy.im(value)) < 1e-25 * (1 + abs(value)) for value in values]
    return values if all(real) or complex_allowed else None


def _value(expression: Any) -> Any:
    import sympy

    try:
        value = sympy.N(expression.doit(), 40)
    except Exception:
        return None
    return value if value.is_number and value.is_finite and not value.has(sympy.Symbol) else None


def _near(left: Any, right: Any, decimal: bool) -> bool:
    scale = max(abs(left), abs(right))
    return bool(abs(left - right) <= scale * (1e-9 if decimal else 1e-25)) or scale < 1e-30


def _same_constant(left: Any, right: Any, a: str, b: str, policy: Policy) -> bool | None:
    values = _value(left), _value(right)
    if None in values:
        return None
    if abs(values[0] - values[1]) <= max(map(abs, values)) * 1e-25:
        return True
    for number, value in ((quantity(a), values[1]), (quantity(b), values[0])):
        if (
            number
            and number.digits
            and value.is_real
            and decimal_matches(_fraction(value), number, policy.decimal_digits)
        ):
            return True
    return False


def _fraction(value: Any) -> Fraction:
    return Fraction(str(value))


def _same_equation(left: Any, right: Any) -> bool | None:
    """Two equations are one when their sides' differences have a constant ratio."""
    first, second = left.lhs - left.rhs, right.lhs - right.rhs
    if first.free_symbols != second.free_symbols:
        return False
    symbols, ratios = sorted(first.free_symbols, key=str), []
    for row in _POINTS:
        values = _values_at(first, second, symbols, row, False)
        if values and values[1] != 0:
            ratios.append(values[0] / values[1])
    return len(ratios) > 1 and ratios[0] != 0 and all(_near(ratio, ratios[0], False) for ratio in ratios)
