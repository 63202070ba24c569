"""One spelling for answers: LaTeX, plain text and Chinese become the same short canonical text.

Operators and relations are single characters (`* / ± ≤ ≥ ≠ ≈ ∪ ∈ π ∞ ° … ⟦ ⟧ ⟨ ⟩`), fractions are
`\\frac{a}{b}`, roots `\\sqrt{a}`; a comma that a space followed is `;`, since "1,234" may be one number and
"1, 234" is two. `to_latex` turns a canonical text back for the parser.
"""

import re
from functools import lru_cache

__all__ = ["FUNCTIONS", "canonical", "closing", "is_prose", "is_text", "split_top", "to_latex", "word_key"]


def _words(*lines: str) -> list[str]:
    return " ".join(lines).split()


FUNCTIONS = _words(
    "arcsin arccos arctan arccot sinh cosh tanh sin cos tan cot sec csc log ln exp lim max min gcd lcm det deg",
    "mod arg lg",
)
_GREEK = _words(
    "alpha beta gamma delta epsilon theta lambda mu nu xi rho sigma tau phi varphi psi omega zeta eta kappa",
    "Gamma Delta Theta Lambda Sigma Phi Psi Omega",
)
_COMMANDS = _words(
    *FUNCTIONS,
    *_GREEK,
    "frac dfrac tfrac cfrac sqrt pi cdot times div pm mp left right begin end text mathrm mathbf mathbb textbf",
    "infty cup cap le ge leq geq ne neq lt gt in circ ldots dots quad boxed binom overline angle sum prod int",
    "displaystyle operatorname langle rangle emptyset varnothing approx",
)


def _longest_first(names: list[str]) -> str:
    return "|".join(sorted(names, key=len, reverse=True))


_DOUBLED = re.compile(rf"\\\\(?=(?:{_longest_first(_COMMANDS)})(?![a-zA-Z]))")
_CONTROL = {  # escapes that JSON or Python read as control characters
    broken: "\\" + command
    for broken, command in zip(
        ["\x0crac", "\x08oxed", "\text{", "\times", "\right", "\x08egin", "\x08inom"],
        ["frac", "boxed", "text{", "times", "right", "begin", "binom"],
    )
}
_FOLD = str.maketrans(
    {"，": ", ", "、": ", ", "\u200b": "", "∅": "\\emptyset", "∠": "\\angle ", "℃": "°C", "℉": "°F", "ℝ": "\\mathbb{R}"}
    | dict(zip("−–—﹣×·⋅∙÷⁄∕；：（）【】％＝＋＜＞⩽⩾≦≧º˚′’“”⋯。", "----****///;:()[]%=+<>≤≥≤≥°°''\"\"….", strict=True))
    | dict.fromkeys("\u00a0\u2009\u202f\u3000", " ")
    | {chr(0xFEE0 + code): chr(code) for code in range(0x30, 0x7B) if chr(code).isalnum()}
)
_VULGAR = dict(zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞", _words("1/2 1/3 2/3 1/4 3/4 1/5 2/5 3/5 4/5 1/6 5/6 1/8 3/8 5/8 7/8")))
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SPELLINGS = (
    "* cdot times ast bullet", "/ div", "± pm", "≤ le leq leqq leqslant", "≥ ge geq geqq geqslant", "≠ ne neq",
    "∪ cup bigcup vee lor", "∩ cap wedge land", "≈ approx thickapprox simeq doteq", "∈ in", "π pi", "< lt", "> gt",
    "∞ infty infin", "… ldots cdots dots dotsc", "⟨ langle", "⟩ rangle", "' prime", "| vert lvert rvert mid", ": colon",
    "[ lbrack", "] rbrack", "⟦ lbrace", "⟧ rbrace",
)  # fmt: skip
_SYMBOL_OF = {name: line[0] for line in _SPELLINGS for name in line[1:].split()}
_LATEX = str.maketrans(
    {line[0]: f"\\{line.split()[1]} " for line in _SPELLINGS if line[0] in "*π∞≤≥≠∪∩∈±"}
    | {"°": "", "⟦": "\\{", "⟧": "\\}", "⟨": "(", "⟩": ")", "…": "\\ldots ", "≈": "\\approx ", ";": ",", "＄": ""}
)
_COMMAND = re.compile(rf"\\({_longest_first(list(_SYMBOL_OF))})(?![a-zA-Z])")
_SPACING = re.compile(
    r"\\(?:left|right|bigl?|bigr|Bigl?|Bigr|biggl?|biggr|displaystyle|textstyle|limits|rm|bf|it)(?![a-zA-Z])\.?|\\!"
    r"|\\(?:hspace|vspace|phantom|label|tag)\*?\{[^{}]*\}"
)
_SPACES = re.compile(r"\\(?:quad|qquad|enspace|thinspace)(?![a-zA-Z])|(?<!\\)\\[ ;:,>]|~")
_TEXT = re.compile(
    r"\\(text(?:bf|it|rm|normal|sf|tt)?|math(?:rm|bf|it|sf|tt|cal|scr)|boldsymbol|bm|mbox|operatorname\*?|emph"
    r"|textcircled|underline|fbox|boxed)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_AND_OR = re.compile(  # begun where no space precedes, so that many spaces cost no more than their number
    r"(?<![\s,])[\s,]*(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])[\s,]*"
    r"|(?<!\s)\s*(?:[,，]\s*)?[和或与且]\s*(?=[-\d\\a-zA-Z(±√])"
)
_QUALIFIER = re.compile(
    r"(?<=[\d})\]π∞⟧])[ ,;]*\(?(?:since|because|where|for (?:all|any|every|some|each))(?![a-zA-Z]).*$"
)
_CASES = re.compile(r"\\begin\{cases\}((?:(?!\\begin)[^&])*?)\\end\{cases\}", re.S)
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "万": 4, "亿": 8}
_MAGNITUDE = re.compile(rf"(?<=\d) ?({'|'.join(_MAGNITUDES)})s?(?![a-zA-Z\d])")
_DOTTED = re.compile(r"(\.\d*)\\dot ?\{?(\d)\}?(?:(\d*)\\dot ?\{?(\d)\}?)?(?!\d)")
_OUTWARD = re.compile(r"^([\]\[])([^\]\[]+,[^\]\[]+)([\]\[])$")  # ]2,3[ is (2,3)
_SYNONYMS = {
    "no solution": "no solution|no solutions|no real solution|no real solutions|\\emptyset|\\varnothing|⟦⟧"
    "|empty set|the empty set|无解|无实数解|no real roots",
    "undefined": "undefined|does not exist|dne|不存在|not defined",
    "yes": "yes|是|是的|能|可以",
    "no": "no|否|不是|不能|不可以",
    "true": "true|对|对的|正确|√|\\checkmark",
    "false": "false|错|错误|不正确",
    "all real numbers": "all real numbers|all reals|every real number|\\mathbb{R}|\\R|全体实数|任意实数",
}
_KEY_OF = {spelling.casefold(): key for key, group in _SYNONYMS.items() for spelling in group.split("|")}
_NUMBER_WORDS = _words("zero one two three four five six seven eight nine ten eleven twelve")
_SHORT_WORDS = set(_words("yes no odd even all none not the of if is both neither true false any"))
_NOT_WORDS = {
    *FUNCTIONS,
    *_GREEK,
    *_words("frac sqrt pi infty begin end matrix pmatrix bmatrix array cases overline binom vec hat angle"),
    *_words("triangle pmod mathbb infinity base"),
}


@lru_cache(maxsize=100_000)
def canonical(text: str) -> str:
    """The canonical spelling of an answer; equal texts are the same answer, unequal ones may still be."""
    if text.isascii() and text.isdigit():
        return text
    text = _repair(text).translate(_FOLD)
    text = _unwrap(_spell_unicode(text))
    text = _COMMAND.sub(lambda match: _SYMBOL_OF[match.group(1)], text)
    text = _arithmetic(_separators(text))
    text = _fractions_and_roots(_squeeze(text))
    return _trim(text)


def _repair(text: str) -> str:
    """Undo doubled escapes (`\\\\frac`) and escapes that JSON or Python read as control characters."""
    for broken, command in _CONTROL.items():
        text = text.replace(broken, command)
    return _DOUBLED.sub(r"\\", text) if "\\\\" in text else text


def _spell_unicode(text: str) -> str:
    if text.isascii():
        return text
    text = re.sub(r"(?<=\d)(?=[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])", " ", text)
    text = "".join(_VULGAR.get(char, char) for char in text)
    text = re.sub(r"[⁻⁰¹²³⁴-⁹]+", lambda m: "^{" + m.group().translate(_SUPERSCRIPTS) + "}", text)
    text = re.sub(r"[₀-₉]+", lambda m: "_{" + m.group().translate(_SUBSCRIPTS) + "}", text)
    text = re.sub(r"√\s*(?=[({])", r"\\sqrt", text)
    return re.sub(r"√\s*(\d+|[a-zA-Z])", r"\\sqrt{\1}", text)


def _unwrap(text: str) -> str:
    """Drop delimiters, spacing commands and text wrappers; what was text keeps a space around it."""
    text = re.sub(r"(?<=\d)(?:\\,|\{,\}|,\\!|\\ )(?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree(?![a-zA-Z])|\\circ(?=\s*$)", "°", text)
    text = re.sub(r"\\+\$|^\s*\$(?=[\d.][^$]*$)", "＄", text)
    text = re.sub(r"\$|\\[()\[\]](?![a-zA-Z])|\*\*(?=[^\d(\-\w])|^\*\*|\*\*$", " ", text)
    text = _SPACES.sub(" ", _SPACING.sub(" ", text))
    text = text.replace("\\%", "%").replace("\\{", "⟦").replace("\\}", "⟧").replace("\\#", "#").replace("{,}", ",")
    for _ in range(3):
        text, count = _TEXT.subn(_plain_text, text)
        if not count:
            break
    return text


def _plain_text(match: re.Match[str]) -> str:
    kind, content = match.group(1), match.group(2)
    if kind.startswith("operatorname") and content.strip() in FUNCTIONS:
        return "\\" + content.strip() + " "
    if not kind.startswith(("text", "mbox")) and len(content.strip()) == 1:
        return content.strip()  # \\mathrm{e}, \\mathbf{u}
    return f" {content} "


def _separators(text: str) -> str:
    text = _CASES.sub(lambda match: re.sub(r"\s*[,;.]?\s*\\\\", "; ", match[1]), text)
    text = _AND_OR.sub("; ", text)
    text = re.sub(r",\s*\n|,\s+(?!$)", "; ", text)
    return re.sub(r"<=|=<", "≤", text).replace(">=", "≥").replace("!=", "≠").replace("~=", "≈").replace("...", "…")


def _arithmetic(text: str) -> str:
    """Plain-text powers, e-notation, constants and mixed numbers."""
    text = re.sub(r"(?<![\w})])\.(?=\d)", "0.", text.replace("**", "^"))
    text = re.sub(r"(?<![\w\\])pi(?![a-zA-Z])|(?<=\d)pi(?![a-zA-Z])", "π", text)
    text = re.sub(r"(?<![\w\\])(?:inf|infinity|oo)(?![a-zA-Z])|无穷大", "∞", text)
    text = re.sub(r"(?<![\w\\])sqrt(?=\s*[({])", r"\\sqrt", text)
    text = re.sub(r"(?<=\d)[eE]([+-]?\d+)(?![\w.])", lambda m: f"*10^{{{int(m.group(1))}}}", text)
    text = _MAGNITUDE.sub(lambda match: f"*10^{{{_MAGNITUDES[match[1]]}}}", text)
    text = re.sub(r"(?<=\d)\s*比\s*(?=\d)", ":", text)
    text = re.sub(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", "*", text)
    text = re.sub(r"(\d:\d\d)\s*([ap])\.?\s?m?\.*\s*$", r"\1 \2m", text, flags=re.I)
    text = re.sub(r"\^\s*(-?\d{2,}|-\d)(?!\d)", r"^{\1}", text)
    return re.sub(r"(?<![\d./^_{])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d/])", r"\1\\frac{\2}{\3}", text)


def _squeeze(text: str) -> str:
    """Remove spaces, but for those that part words, or a formula from the word after it."""
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"(?<![\w})°%]) (?=.)|(?<=.) (?!\w)|(?<=[_^]) ", "", text)


def closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`, or -1."""
    pair = {"{": "}", "(": ")", "[": "]"}[text[start]]
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == text[start]) - (text[index] == pair)
        if depth == 0:
            return index
    return -1


def _fractions_and_roots(text: str) -> str:
    text = re.sub(r"\\[dtc]frac", r"\\frac", text)
    text = re.sub(r"\\frac ?([^{}\s\\])", r"\\frac{\1}", text)
    text = re.sub(r"(\\frac\{[^{}]*\}) ?([^{}\s\\])", r"\1{\2}", text)
    text = _DOTTED.sub(r"\1\\overline{\2\3\4}", text)
    text = re.sub(r"(?<![\w\\])C_\{?(\d+)\}? ?\^ ?\{?(\d+)\}?(?!\d)", r"\\binom{\1}{\2}", text)
    text = re.sub(r"\\sqrt ?([\w])", r"\\sqrt{\1}", text)
    for command in ("\\sqrt(", "^("):
        start = 0
        while (start := text.find(command, start)) >= 0:
            opening = start + len(command) - 1
            end = closing(text, opening)
            if end > 0:
                text = text[:opening] + "{" + text[opening + 1 : end] + "}" + text[end + 1 :]
            start = opening
    return re.sub(r"([\^_])\{(\w)\}", r"\1\2", text)


def _trim(text: str) -> str:
    text = text.strip(' ,;:*"`').rstrip(' .,;:*"`')
    text = _QUALIFIER.sub("", text)
    if outward := _OUTWARD.match(text):
        text = f"{outward[1].replace(']', '(')}{outward[2]}{outward[3].replace('[', ')')}"
    text = re.sub(r"(?<=.)[,; ]*\(?[a-zA-Z]∈(?:\\mathbb\{)?[ZNQ]\}?(?:\^\W)?\)?$", "", text)  # ..., k ∈ ℤ
    while text[:1] in ("{", "(") and "," not in text and ";" not in text and closing(text, 0) == len(text) - 1:
        text = text[1:-1].strip(" .,;:")
    return text


def split_top(text: str, separators: str) -> list[str]:
    """Split at separators outside every bracket and |...|-free nesting; no part is stripped away."""
    if not any(separator in text for separator in separators):
        return [text]
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char in "({[⟦⟨") - (char in ")}]⟧⟩")
        if char in separators and depth <= 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


def words(text: str) -> list[str]:
    """The natural-language words of a canonical text, commands and function names apart."""
    found = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?:-[a-z]+)?", text)
    return [word for word in found if word not in _NOT_WORDS]


def is_text(text: str) -> bool:
    """Whether a canonical text is words and not mathematics ("odd n", "Evelyn", "甲"; not "xy")."""
    if re.search(r"[\u4e00-\u9fff]", text) or text.casefold() in _KEY_OF:
        return True
    found = words(text)
    return any(len(word) > 3 or word.casefold() in _SHORT_WORDS for word in found) or (len(found) > 1 and " " in text)


def is_prose(text: str) -> bool:
    """Whether a canonical text is a sentence, which only its own words can match."""
    return len(words(text)) > 4 or len(re.findall(r"[\u4e00-\u9fff]", text)) > 8


def word_key(text: str) -> str:
    """What two worded answers must share: case, articles, spaces and known synonyms folded."""
    folded = re.sub(r"\s+", " ", text.casefold()).strip(" .,;:!\"'")
    folded = re.sub(r"^(?:the|a|an) (?=\w\w)", "", folded)
    if folded in _NUMBER_WORDS:
        return str(_NUMBER_WORDS.index(folded))
    return _KEY_OF.get(folded, re.sub(r"[\s,;.()\"']", "", folded))


def to_latex(text: str) -> str:
    """A canonical text as LaTeX that latex2sympy reads."""
    text = re.sub(r"\\?(?<![a-zA-Z])lg(?![a-zA-Z])", r"\\log_{10}", text)
    text = re.sub(r"(?<=\d)\.(?!\d)", "", text.translate(_LATEX))
    text = re.sub(r"(?<![\\a-zA-Z])(" + "|".join(FUNCTIONS) + r")(?![a-zA-Z])", r"\\\1 ", text)
    return re.sub(r"(?<![\\a-zA-Z])(" + "|".join(_GREEK) + r")(?![a-zA-Z])", r"\\\1 ", text)
