"""Exact numbers with their units: integers, decimals, fractions, mixed numbers, powers, percent, bases.

Arithmetic is rational and bounded: an expression whose value would need more than `MAX_BITS` bits (9**9**9) is refused
before it is evaluated.
"""

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import comb, factorial, isqrt, pi, sqrt

from assay.pipelines.answer_text import closing

__all__ = ["ExpressionTooLarge", "Quantity", "Unit", "approximate", "decimal_matches", "quantity", "same_quantity",
           "split_unit"]  # fmt: skip

MAX_BITS = 200_000
MAX_CHARS = 2_000


class ExpressionTooLarge(ValueError):
    """The value, or the expression itself, is too large to be evaluated safely."""


class _NotArithmetic(Exception):
    """The text holds something that is not rational arithmetic."""


@dataclass(frozen=True)
class Unit:
    """A product of base units, as sorted (base, power) pairs, and its factor to them."""

    dimension: tuple[tuple[str, int], ...]
    factor: Fraction


@dataclass(frozen=True)
class Quantity:
    """An exact value. `digits` and `places`: significant digits and decimal places when written as a decimal."""

    value: Fraction
    digits: int | None = None
    places: int = 0
    percent: bool = False
    unit: Unit | None = None
    base: int | None = None


_UNIT_TABLE = """
m: m meter meters metre metres 米 | mm:1/1000 millimeter millimeters 毫米 | cm:1/100 centimeter centimeters centimetre
 centimetres 厘米 | dm:1/10 decimeter decimeters 分米 | km:1000 kilometer kilometers kilometre kilometres 千米 公里
 | inch:127/5000 inches in | ft:381/1250 foot feet | yd:1143/1250 yard yards | mi:201168/125 mile miles
g: g gram grams 克 | mg:1/1000 毫克 | kg:1000 kilogram kilograms 千克 公斤 | t:1000000 ton tons tonne tonnes 吨
s: s sec secs second seconds 秒 | ms:1/1000 | min:60 mins minute minutes 分钟 分 | h:3600 hr hrs hour hours 小时 时
 | day:86400 days 天 日 | week:604800 weeks 周 星期
year: year years yr yrs 年 | month:1/12 months 个月
L: L l liter liters litre litres 升 | mL:1/1000 ml milliliter milliliters 毫升
dollar: dollar dollars usd US ＄ | cent:1/100 cents
元: 元 yuan rmb ¥ | 角:1/10
€: € euro euros eur
£: £ gbp
₹: ₹ Rs rupee rupees inr
N: N newton newtons | kN:1000
J: J joule joules | kJ:1000 | MJ:1000000
W: W watt watts | kW:1000 | MW:1000000
Hz: Hz hertz | kHz:1000 | MHz:1000000
eV: eV | keV:1000 | MeV:1000000 | GeV:1000000000
Pa: Pa | kPa:1000 | atm:101325
V: V volt volts
A: A amp amps ampere amperes
K: K kelvin
mol: mol mole moles
rad: rad radian radians
"""


def _read_units() -> dict[str, tuple[str, Fraction]]:
    units = {}
    for line in _UNIT_TABLE.strip().replace("\n ", " ").splitlines():
        base, entries = line.split(": ", 1)
        for entry in entries.split(" | "):
            names = entry.split()
            name, _, factor = names[0].partition(":")
            for spelling in [name, *names[1:]]:
                units[spelling] = (base, Fraction(factor or 1))
    return units


_UNITS = _read_units()
_UNIT_PREFIX = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "平方": 2, "立方": 3}
_RATES = {"mph": "mi/h", "kmh": "km/h", "kph": "km/h", "fps": "ft/s"}
_UNIT_TOKEN = re.compile(r"(平方|立方)?([A-Za-z]+|[\u4e00-\u9fff]+|[＄€£¥₹])\.?(?:\^\{?(-?\d)\}?)?")
_PERCENT = re.compile(r"\s*(?:%|percentage points?|percent(?:age)?|per cent|pct)$", re.I)
_DEGREES = re.compile(r"\s*(?:°|degrees?)(?: ?([CF])(?:elsius|ahrenheit)?)?$|度$")
_DEGREE, *_TEMPERATURES = (((f"°{scale}", 1),) for scale in ("", "C", "F"))
_TRAILING = re.compile(
    r"^(.*?(?:\d\.?|[})π%]))(?:( ?)([A-Za-z\u4e00-\u9fff＄€£¥₹].*)|\(([A-Za-z\u4e00-\u9fff][^()]*)\))$"
)
_NOUN = re.compile(
    r"(?!.*(?:\b(?:not|never|wrong|incorrect)\b|n['’]t\b|不|错))"  # "42 is not the answer" is no number of things
    r"(?=.*(?:[A-Za-z]{3}|[\u4e00-\u9fff]))[A-Za-z\u4e00-\u9fff][^\d=<>≤≥*/^{}\\;]*"
)
_CURRENCY = re.compile(  # the symbol goes behind its amount: "$12 per hour" is "12 $ per hour"
    r"^(-?) ?(?:US ?)?([＄€£¥₹]|US|Rs|RMB)\.? ?((?:\\[a-z]+|[^ A-Za-z\u4e00-\u9fff])*)(?: ?(?:dollar|euro|rupee)s?)?"
)
_UNIT_FRACTION = re.compile(r"(?<=[\d})π]) ?\\frac\{([^{}]+)\}\{([^{}]+)\}$")
_COMPOUND = re.compile(r"(?:\d+(?:\.\d+)? ?(?:[A-Za-z]{1,12}|[\u4e00-\u9fff]{1,3}) ?){2,}")
_AMOUNT = re.compile(r"([\d.]+) ?([^\d. ]+)")
_BASED = re.compile(
    r"^\(?([0-9]|[0-9A-F]{2,})\)?(?:_\{?(\d+|two|eight|ten|sixteen)\}?|\s*\(?(?:in )?base[ -](\d+)\)?)$"
)
_BASE_WORDS = {"two": 2, "eight": 8, "ten": 10, "sixteen": 16}
_DECIMAL = re.compile(r"^([+-]?)(\d*)\.(\d*)(?:\*10\^\{?(-?\d+)\}?)?$")
_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3}(?:[, ]\d{3})+)(?![\d,])")


@lru_cache(maxsize=100_000)
def quantity(text: str) -> Quantity | None:
    """The number that a canonical text states, or None when it is not rational arithmetic.

    Raises:
        ExpressionTooLarge: the value would need more than `MAX_BITS` bits.
    """
    if len(text) > MAX_CHARS or not re.search(r"\d", text):
        return None
    if match := _BASED.match(text):
        return _based(match)
    if _COMPOUND.fullmatch(text):
        return _compound(text)
    text, unit = split_unit(text)
    percent = _PERCENT.search(text)
    body = text[: percent.start()] if percent else text
    body = _THOUSANDS.sub(lambda match: re.sub("[, ]", "", match.group()), body)
    ratio = re.fullmatch(r"(\d+):(\d+)", body)
    try:
        value = _Arithmetic(f"{ratio[1]}/{ratio[2]}" if ratio else body).value()
    except (_NotArithmetic, ZeroDivisionError, RecursionError):
        return None
    digits, places = _decimal_digits(body)
    return Quantity(value, digits, places, percent is not None, unit)


def split_unit(text: str) -> tuple[str, Unit | None]:
    """Part a canonical text from its unit; words that are no known unit ("12 paper clips") are dropped too."""
    if degrees := _DEGREES.search(text):
        return text[: degrees.start()], Unit(((f"°{degrees[1] or ''}", 1),), Fraction(1))
    if (rate := _UNIT_FRACTION.search(text)) and (unit := _unit(f"{rate[1]}/{rate[2]}")):
        return text[: rate.start()], unit
    match = _TRAILING.match(_CURRENCY.sub(r"\1\3 \2", text))
    if match is None:
        return text, None
    body, space, words = match[1], match[2], match[3] or match[4]
    unit = _unit(words)
    joined = space == "" and match[4] is None
    if unit is None:
        free = re.sub(r"\\[a-zA-Z]+", "", body)
        apart = ord(words[0]) > 0x2E80 or (not joined and len(words) > 1)
        noun = _NOUN.fullmatch(words) and not _PERCENT.fullmatch(words)
        return (body, None) if noun and apart and not re.search("[A-Za-z]", free) else (text, None)
    if joined and len(words) == 1 and words.isascii():
        return text, None  # 4t and 5m are products
    return body, unit


@lru_cache(maxsize=10_000)
def _unit(words: str) -> Unit | None:
    powers: dict[str, int] = {}
    factor = Fraction(1)
    prefix = 1
    for index, side in enumerate(re.split(r"/| per |每", words)):
        for rate, spelled in _RATES.items():
            side = spelled if side.strip() == rate else side
        if "/" in side:
            return _unit(side)
        for part in re.split(r"[\s*]+|-(?=[A-Za-z])", side.strip()):
            match = _UNIT_TOKEN.fullmatch(part)
            if part in _UNIT_PREFIX:
                prefix = _UNIT_PREFIX[part]
                continue
            if match is None or (name := _unit_name(match[2])) is None:
                return None
            power = int(match[3] or 1) * prefix * _UNIT_PREFIX.get(match[1] or "", 1) * (-1 if index else 1)
            prefix = 1
            base, scale = _UNITS[name]
            powers[base] = powers.get(base, 0) + power
            factor *= scale**power
    return Unit(tuple(sorted((base, power) for base, power in powers.items() if power)), factor) if powers else None


def _unit_name(name: str) -> str | None:
    return next((spelling for spelling in (name, name.lower()) if spelling in _UNITS), None)


def _compound(text: str) -> Quantity | None:
    """ "1 hour 30 minutes": amounts of one kind, each of a smaller unit than the one before, in the last unit."""
    amounts = [(Fraction(number), _unit(name)) for number, name in _AMOUNT.findall(text)]
    units = [unit for _, unit in amounts if unit]
    factors = [unit.factor for unit in units]
    if len(units) < len(amounts) or len({unit.dimension for unit in units}) > 1:
        return None
    if any(larger <= smaller for larger, smaller in pairwise(factors)):
        return None
    return Quantity(sum(amount[0] * factor for amount, factor in zip(amounts, factors)) / factors[-1], unit=units[-1])


def _based(match: re.Match[str]) -> Quantity | None:
    subscript = match[2] or match[3]
    base = _BASE_WORDS.get(subscript) or int(subscript)
    try:
        return Quantity(Fraction(int(match[1], base)), base=base)
    except ValueError:
        return None


def _decimal_digits(text: str) -> tuple[int | None, int]:
    match = _DECIMAL.match(text)
    if match is None:
        return None, 0
    exponent = int(match[4] or 0)
    if abs(exponent) > 10_000:
        return None, 0
    return len((match[2] + match[3]).lstrip("0")), len(match[3]) - exponent


def decimal_matches(value: Fraction, decimal: Quantity, digits: int) -> bool:
    """Whether a decimal of at least `digits` significant digits is `value` rounded or, after its point, cut off."""
    if decimal.digits is None or decimal.digits < digits:
        return False
    scaled = (value - decimal.value) * Fraction(10) ** decimal.places
    cut = scaled * (1 if decimal.value >= 0 else -1)
    return abs(scaled) <= Fraction(1, 2) or (0 <= cut < 1 and decimal.places > 0)


def same_quantity(a: Quantity, b: Quantity, units: str, percent: str, base: str, digits: int) -> bool:
    """Equality under a policy; symmetric in `a` and `b`."""
    if base == "required" and (a.base or 10) != (b.base or 10) and not (a.base and b.base):
        return False
    if a.percent != b.percent and percent == "required":
        return False
    if a.unit != b.unit and units != "ignored":
        if a.unit and b.unit:
            return not _other_kind(a.unit, b.unit) and a.value * a.unit.factor == b.value * b.unit.factor
        if units == "required":
            return False
    if _close(a, b, digits):
        return True
    return a.percent != b.percent and _close(_as_share(a), _as_share(b), digits)


def _other_kind(a: Unit, b: Unit) -> bool:
    """Whether two units measure different things; a bare degree may be one of temperature."""
    kinds = {a.dimension, b.dimension}
    return len(kinds) == 2 and not (_DEGREE in kinds and any(kind in kinds for kind in _TEMPERATURES))


def _as_share(number: Quantity) -> Quantity:
    """12.5% as 0.125."""
    return replace(number, value=number.value / 100, places=number.places + 2) if number.percent else number


def _close(a: Quantity, b: Quantity, digits: int) -> bool:
    if a.value == b.value:
        return True
    if a.value.denominator == 1 and a.digits is None and b.digits is None:
        return False
    coarse, fine = (a, b) if b.digits is None or (a.digits is not None and a.places <= b.places) else (b, a)
    return decimal_matches(fine.value, coarse, digits)


_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")
_BAR = re.compile(r"\\overline\{(\d{1,50})\}")
_FRACTION = re.compile(r"\\frac\{(\d+)\}\{(\d+)\}")


class _Arithmetic:
    """Recursive descent over + - * / ^ ! () \\frac and perfect \\sqrt, in exact fractions."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text.replace(" ", ""), 0

    def value(self) -> Fraction:
        result = self._sum()
        if self.at != len(self.text):
            raise _NotArithmetic
        return result

    def _take(self, *texts: str) -> str:
        """The one of `texts` that stands here, and past it; "" for none."""
        found = next((text for text in texts if self.text.startswith(text, self.at)), "")
        self.at += len(found)
        return found

    def _sum(self) -> Fraction:
        result = self._product()
        while sign := self._take("+", "-"):
            result += self._product() * (1 if sign == "+" else -1)
        return result

    def _product(self) -> Fraction:
        result = self._signed()
        while self.at < len(self.text):
            if sign := self._take("*", "/"):
                factor = self._signed()
                result = result * factor if sign == "*" else result / factor
            elif self.text[self.at] in "({\\π":
                result *= self._power()
            else:
                break
            _bounded(result)
        return result

    def _signed(self) -> Fraction:
        if sign := self._take("+", "-"):
            return -self._signed() if sign == "-" else self._signed()
        return self._power()

    def _power(self) -> Fraction:
        result = self._atom()
        while self._take("!"):
            if result.denominator != 1 or result < 0:
                raise _NotArithmetic
            if result > 5_000:
                raise ExpressionTooLarge("factorial of more than 5000")
            result = Fraction(factorial(result.numerator))
        return _bounded_power(result, self._signed()) if self._take("^") else result

    def _atom(self) -> Fraction:
        if match := _NUMBER.match(self.text, self.at):
            self.at = match.end()
            repeating = self._repeating(match.group())
            return self._mixed(match.group()) if repeating is None else repeating
        if self._take("\\binom"):
            return _binomial(self._group(), self._group())
        if self._take("\\frac"):
            return self._group() / self._group()
        return self._root(self._group()) if self._take("\\sqrt") else self._group()

    def _repeating(self, number: str) -> Fraction | None:
        """0.1\\overline{6}: the digits under the bar repeat for ever."""
        match = _BAR.match(self.text, self.at)
        if match is None or "." not in number:
            return None
        self.at = match.end()
        places = len(number.partition(".")[2])
        return Fraction(number + "0") + Fraction(int(match[1]), 10**places * (10 ** len(match[1]) - 1))

    def _mixed(self, number: str) -> Fraction:
        """A number; an integer right before a proper fraction of integers is a mixed number."""
        if len(number) > 4_000:
            raise ExpressionTooLarge("a number of more than 4000 digits")
        whole = Fraction(number.rstrip(".") if number != "." else "0")
        match = _FRACTION.match(self.text, self.at) if number.isdigit() else None
        if match and len(match[1]) < 20 > len(match[2]) and int(match[1]) < int(match[2]):
            self.at = match.end()
            return whole + Fraction(int(match[1]), int(match[2]))
        return whole

    def _group(self) -> Fraction:
        end = closing(self.text, self.at) if self.text[self.at : self.at + 1] in ("(", "{") else -1
        if end < 0:
            raise _NotArithmetic
        inner = type(self)(self.text[self.at + 1 : end]).value()
        self.at = end + 1
        return inner

    def _root(self, value: Fraction) -> Fraction:
        return _exact_root(value)


class _Approximation(_Arithmetic):
    """The same with π and every real square root, in double precision."""

    def _atom(self) -> Fraction:
        return Fraction(pi) if self._take("π") else super()._atom()

    def _root(self, value: Fraction) -> Fraction:
        return Fraction(sqrt(value)) if value >= 0 else _raise()


@lru_cache(maxsize=100_000)
def approximate(text: str) -> Fraction | None:
    """A canonical constant of numbers, square roots and π to about 15 digits; None for anything else.

    Raises:
        ExpressionTooLarge: as `quantity`.
    """
    try:
        return _Approximation(text).value()
    except (_NotArithmetic, ZeroDivisionError, RecursionError, OverflowError):
        return None


def _raise() -> Fraction:
    raise _NotArithmetic


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise ExpressionTooLarge(f"a value of more than {MAX_BITS} bits")
    return value


def _bounded_power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise _NotArithmetic
    if base not in (0, 1, -1):
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(exponent) * bits > MAX_BITS:
            raise ExpressionTooLarge(f"a power of more than {MAX_BITS} bits")
    elif exponent.numerator.bit_length() > 64:
        exponent = Fraction(exponent.numerator % 2 or 2)
    return base**exponent.numerator


def _binomial(n: Fraction, k: Fraction) -> Fraction:
    if n.denominator != 1 or k.denominator != 1 or n < 0 or k < 0:
        raise _NotArithmetic
    if min(int(k), max(int(n - k), 0)) * n.numerator.bit_length() > MAX_BITS:
        raise ExpressionTooLarge("a binomial coefficient too large to evaluate")
    return Fraction(comb(n.numerator, k.numerator))


def _exact_root(value: Fraction) -> Fraction:
    if value < 0:
        raise _NotArithmetic
    root = Fraction(isqrt(value.numerator), isqrt(value.denominator))
    return root if root * root == value else _raise()
