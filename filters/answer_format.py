"""What kind of answer a problem wants: open, multiple choice, true/false, proof, parts, or a missing figure.

A cheap expression over the frame finds the rows that could be anything but open; only those are read singly.
The first of these that holds is the format: a gold that is Yes, No, True or False, whatever the wording;
options in their field or in the text, or a letter for a gold with its options lost; an embedded figure;
true/false wording; several parts; a proof; a reference to a figure without which too little is given.
"""

import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from assay.filters.answers import ASKS, CHOICE_WORDING, NOT_FOUND, TRUTH, is_prose, lost_options, normalise_gold
from assay.filters.options import HEADS, MAX_CHARS, Run, loose, named_labels, number_of, plain, runs, value_of

__all__ = ["ACTIONS", "FORMATS", "classify", "decide", "reformulate"]

FORMATS = ("open", "multiple_choice", "true_false", "proof", "multi_part", "figure")
ACTIONS = ("drop", "keep", "reformulate")
Finding = tuple[str, str]  # format, evidence
MAX_GOLD = 10_000  # characters of a gold that are read

# A text that a rule below could name matches the rule's signs. (?-u:\b) keeps the engine's fast path on Chinese.
LABEL_SIGNS = (  # of a letter, of a digit, of a Roman number, and of the signs that are labels by themselves
    r"(?:^|[^A-Za-z0-9])[{}][\s}}$*]{{0,20}}(?:[.．)）:：、，\]】}}>\-–—|]|</|\\\)|\*\*)"
    r"|(?m:^[ \t>*-]{{0,8}}[{}]\s)|[0-9][{}][.．、]"
    r"|(?:^|[^A-Za-z0-9.])[{}]\s{{0,3}}[.．)）、:]|(?i:(?-u:\b){}\s{{0,3}}[.):）])|[{}]|circled"
)
HEADED = r"|(?i:choices|options|that apply)|选项|" + f"{HEADS[0]}[12]|{HEADS[1]}[一二]"
FIRST = LABEL_SIGNS.format("AaＡａFＦ甲", "AaF", "AF", "1１", "i", "①❶➀➊⓵⑴ⅠⅰⒶⓐ⒜🄐🄰🅐🅰Ⓕⓕ⒡🄕🄵🅕🅵") + HEADED
SIGNS = {
    "options": LABEL_SIGNS.format("BbＢｂGＧ乙", "BbG", "BG", "2２", "ii", "②❷➁➋⓶⑵ⅡⅱⒷⓑ⒝🄑🄱🅑🅱Ⓖⓖ⒢🄖🄶🅖🅶") + HEADED,
    "boolean": r"(?i:true|false|(?-u:\b)yes(?-u:\b)|(?-u:\b)T ?(?:/|or) ?F(?-u:\b)|wrong|correct|valid)"
    r"|√|判断|是否|正误|对错|的打",
    "proof": r"(?i:show|prove|demonstrate|verify)|证",
    "explain": r"(?i:explain|justify|describe|discuss|interpret|compare|comment|derive|reason|proof"
    r"|why|show|establish|deduce|argue|confirm|essay)"
    r"|说明|解释|简述|谈谈",
    "embedded": r"(?i:\[asy\]|!\[|includegraphics|<im|tikz|\[image|data:image|\.(?:png|jpe?g|gif|svg|webp|bmp))",
    "figure": r"(?i:fig(?:ure|\.)|diagram|graph|picture|image|chart|plot|histogram|drawing|drawn|shown|illustrat"
    r"|depicted)|图",
}
TEXT_SIGNS = "|".join(SIGNS.values())
BITS = {rule: 1 << place for place, rule in enumerate(SIGNS)}
GOLD_SIGNS = (
    r"(?i)^[^A-Za-z0-9]{0,12}(?:true|false|yes|no|t(?-u:\b)|f(?-u:\b)|(?:in)?(?:valid|correct)"
    r"|[yn][^A-Za-z0-9]{0,3}$|wrong|right|(?:not|it|they|there|this|that|s?he)(?-u:\b)"
    r"|q\.?e\.?d|see|proof|the |answer|option|choice)"
    r"|^[^A-Za-z0-9]{0,4}(?:text|math|box)"
    r"|(?-u:\b)[A-K]{1,5}[^A-Za-z0-9]{0,3}$|^\W{0,4}[A-KＡ-Ｋ]\s?[).:、\]）．：】]"
    r"|[是否对错正确真假√×✓✗✔✘能够会以证略见①-⑩❶-➓Ⓐ-ⓩ⒜-⒵🄐-🅿甲乙丙丁戊己]"
)
NUMBER = r"^[-+0-9\s.,/()$%]*[0-9][-+0-9\s.,/()$%]*$"  # a gold that is a value and nothing else


def classify(problems: pl.DataFrame) -> pl.DataFrame:
    """The format of each problem.

    Args:
        problems: `id, problem, answer`, and `options` (List(String) or absent); any of them may be null. Of a
            text above 100,000 characters the beginning is read.

    Returns:
        `id, format, evidence` in input order; `format` is one of `FORMATS`, `evidence` says what was matched
        and is null for open.

    Raises:
        ValueError: a column is missing.
    """
    if missing := {"id", "problem", "answer"} - set(problems.columns):
        raise ValueError(f"answer_format: columns {sorted(missing)} missing; found {problems.columns}")
    options = pl.col("options") if "options" in problems.columns else pl.lit(None, pl.List(pl.String))
    frame = problems.select(
        "id", pl.col("problem", "answer").cast(pl.String).fill_null(""), options.alias("options")
    ).with_row_index("row")
    suspects = frame.filter(_suspect()).with_columns(signs=_signs()).filter((pl.col("signs") > 0) | _odd())
    rows = suspects.select("row", "problem", "answer", "options", "signs").iter_rows()
    found = [(row, *_format(*rest)) for row, *rest in rows]
    named = pl.DataFrame(found, {"row": pl.UInt32, "format": pl.String, "evidence": pl.String}, orient="row")
    formats = frame.select("row", "id").join(named, on="row", how="left", maintain_order="left")
    return formats.select("id", pl.col("format").fill_null("open"), "evidence").rechunk()


def _suspect() -> pl.Expr:
    """True where a row may be anything but open."""
    return pl.col("problem").str.contains(TEXT_SIGNS) | _odd()


def _odd() -> pl.Expr:
    """True where that is so whatever the text says."""
    blank = pl.col("answer").str.strip_chars() == ""
    return (
        (pl.col("options").list.len().fill_null(0) > 1)
        | pl.col("answer").str.contains(GOLD_SIGNS)
        | (blank & pl.col("problem").str.contains("[?？]"))
    )


def _signs() -> pl.Expr:
    """Which of `SIGNS` the problem shows, as `BITS`; options have a first label, too.

    True/false wording and a call to explain decide nothing beside a gold that is a number.
    """
    shown = {rule: pl.col("problem").str.contains(pattern) for rule, pattern in SIGNS.items()}
    shown["options"] &= pl.col("problem").str.contains(FIRST)
    for rule in ("boolean", "explain"):
        shown[rule] &= ~pl.col("answer").str.contains(NUMBER)
    return pl.sum_horizontal(is_shown * BITS[rule] for rule, is_shown in shown.items())


def _format(problem: str, answer: str, options: list[str | None] | None, signs: int) -> tuple[str, str | None]:
    """The first rule that holds; one whose signs are not there is not tried, which is most of the cost."""
    text, gold = plain(problem[:MAX_CHARS]), normalise_gold(answer[:MAX_GOLD])
    if finding := _boolean_gold(gold, text) or _options_field(options, gold):
        return finding
    found = runs(text) if signs & BITS["options"] else []
    return (
        (_options_in_text(text, gold, found) if signs & BITS["options"] else None)
        or _letter_gold(text, gold)
        or (_embedded_figure(text) if signs & BITS["embedded"] else None)
        or _boolean_wording(text, gold, bool(signs & BITS["boolean"]))
        or _parts(text, gold, found)
        or _proof(text, gold, bool(signs & BITS["proof"]), bool(signs & BITS["explain"]))
        or (_missing_figure(text) if signs & BITS["figure"] else None)
        or ("open", None)
    )


# --- true or false --------------------------------------------------------------------------------

BOOLEAN_GOLD = re.compile(rf"(?i)(?:{TRUTH})(?:\s*[,;.:，；。、!-]\s*(?:(?:{TRUTH})\s*[,;，；、.]?\s*)*|$)")
BECAUSE = re.compile(
    r"(?i)(?:yes|no|true|false|是的?|不是|不?对|不?正确|错误?|否|不?能|不?会|不?可以)\b\s?"
    r"(?:[,;.:]\s?(?:[^\d?]*$|[^?]{0,80}[是能会有为])|[,;.:]?\s?\(?\s?(?:because|since|as|it|they|this)\b)"
)
TRUE_OR_FALSE = re.compile(
    r"(?i)\btrue\b\W{0,3}(?:T\W{1,2})?(?:or|/|and)?\W{0,3}false\b|\bT\s?(?:/|or)\s?F\b"
    r"|\b(?:right|correct|valid) or (?:wrong|incorrect|invalid)\b|\byes\W{1,3}(?:or|/)?\W{0,3}no\b"
    r"|判断(?:题|正误|对错|真假|下列|以下|[:,])|是否正确"
    r"|对的打|正确的打|打[“\"]?√|\([√×对错] ?[或/] ?[√×对错]\)"
)
SENTENCE = re.compile(  # "It does not"
    r"(?i)(?:not\b|(?:it|they|there|this|that|s?he)\s(?:(?:do|does|is|are|can|will|has|have)\b|cannot|\w+n'?t))[^\d=]*"
)
WHETHER = re.compile(r"是否(?:一定|可能|都|能|会)?([一-鿿]{1,6})")
LETTERS_TF = re.compile(r"(?i)(?:(?:[tfyn]|right|wrong)\b[\s,;]*)+")
YES_NO_QUESTION = re.compile(
    r"(?i)(?:^|[.!?:\n]\s{1,3})(?:is|are|was|were|does|do|did|can|could|will|has|have|must)\b"
    r"(?P<rest>[^?.!]{1,300})\?\s*$"
)


def _boolean_gold(gold: str, text: str) -> Finding | None:
    word = re.sub(r"\\(?:text|math)[a-z]*|[\\{}$\"'“”()*]", "", gold[:200]).strip()
    if BOOLEAN_GOLD.fullmatch(word) or BECAUSE.match(word):
        return "true_false", f'gold "{gold[:40]}"'
    if LETTERS_TF.fullmatch(word) and (TRUE_OR_FALSE.search(text) or _asks_yes_or_no(text)):
        return "true_false", f'gold "{gold[:40]}", wording "true or false"'
    asked = WHETHER.search(text)
    said = (asked and word.removeprefix("不") == asked[1]) or (SENTENCE.fullmatch(word) and _asks_yes_or_no(text))
    return ("true_false", f'gold "{gold[:40]}" to a question of yes or no') if said else None


def _asks_yes_or_no(text: str) -> str | None:
    question = YES_NO_QUESTION.search(text[-400:])
    if question and not re.search(r"(?i)\b(?:or|if so)\b", question["rest"]):
        return f'question "{question[0].strip()[:60]}"'
    return "question ends with 吗" if re.search(r"吗[?]?\s*$", text[-20:]) else None


def _boolean_wording(text: str, gold: str, signs: bool) -> Finding | None:
    if (gold and not signs) or (gold and not is_prose(gold)):
        return None
    if signs and (match := TRUE_OR_FALSE.search(text)):
        return "true_false", f'wording "{match[0]}"'
    asked = None if gold else _asks_yes_or_no(text)
    return ("true_false", asked) if asked else None


# --- multiple choice ------------------------------------------------------------------------------

COUNTS = re.compile(r"(?i)\bhow many\b|\bthe number of\b|的个数|个数[是为有]|多少|几个|有 ?\( {0,9}\) ?个")
SELECTS = re.compile(
    r"(?i)\b(?:select|that apply|choose|which|pick|circle|mark|tick)\b|下列|以下|哪|选|序号|正确的|\(\s{0,9}\)\s{0,3}$"
)
CONDITIONS = re.compile(r"(?i)(?:such that|satisf|conditions?|properties|rules|as follows|满足|条件)[^.?!。]{0,60}$")
PART_ASKS = re.compile(
    r"(?i)[?]|_{2,}|(?:^|[.,;:!\n]\s{0,5}|\b(?:and|then|hence|thus|please|also)\s{1,3})(?:find|compute|calculate|what|how"
    r"|determine|evaluate|solve|simplify|which|give|express|write|factor|show|prove|estimate|convert|graph|sketch|state"
    r"|explain|describe|expand|verify|list|draw|construct|name|plot|identify|differentiate|integrate|justify)\b"
    r"|\( {0,9}(?:\\quad)? {0,9}\)|(?<![要需])求|证明|计算|化简|解[不方]|写出|判断|画出|多少"
)
HEADING = re.compile(
    r"(?im)(?:^\W{0,4}|[.?!。]\s{1,3})(?:answer )?(?:choices|options)\s?:|选项:"
    r"|\b(?:select|choose|check|mark) all that apply"
    r"|\\begin\{\w{0,8}choices\}"
)
BARE = re.compile(r"[$(]?-?\d[\d.,/]{0,20}[$)%]?[个只元]?")
DATA = re.compile(
    r"(?i)\b(?:these|following|each|below\W{0,3}$|numbers|values|data|list|scores|sequence)\b|下列|以下|各|数据"
)
STEM_ENDS = re.compile(r"(?i)(?:\b(?:is|are|equals?|be)|[=是为])\s{0,3}:?\s*$")
TRIVIAL = re.compile(r"(?:[\s,;.:、，。；()\[\]$-]|and|or|与|和|或|及){0,12}")


def _options_field(options: list[str | None] | None, gold: str) -> Finding | None:
    values = [value for value in options or () if value and value.strip()]
    if len(values) < 2:
        return None
    if all(BOOLEAN_GOLD.fullmatch(value_of(value)) for value in values) and len(values) == 2:
        return "true_false", "options field: " + ", ".join(values)
    return "multiple_choice", f"options field, {len(values)}; gold {gold[:20] or 'missing'}"


def _options_in_text(text: str, gold: str, found: list[Run]) -> Finding | None:
    for run in found:
        if _is_choice(run, text, gold):
            span = f"options {run.labels[0]} to {run.labels[-1]} in the text"
            return "multiple_choice", f"{span}; gold {gold[:20] or 'missing'}"
    match = HEADING.search(text)
    return ("multiple_choice", f'heading "{match[0].strip()}"') if match else None


def _is_choice(run: Run, text: str, gold: str) -> bool:
    """Whether labelled values are options; parts, conditions, names of points and arguments are not."""
    if any(TRIVIAL.fullmatch(value) for value in run.values) or _is_naming(run):
        return False
    labels = named_labels(gold)
    by_label = bool(labels) and set(map(number_of, labels)) <= set(map(number_of, run.labels))
    if run.kind in ("letters", "lowercase"):
        sure = by_label and labels[0].isalpha()
        return sure or _gold_among(run, gold) or (len(run) > 2 and _looks_like_options(run, text, gold))
    if run.kind in ("cells", "stems"):  # as are the rows of data, and persons
        named = by_label and run.kind == "cells" and ASKS.search(run.stem)
        chosen = (by_label or _gold_among(run, gold)) and (SELECTS.search(run.stem) or STEM_ENDS.search(run.stem))
        return bool(named or chosen) and not _asking(run)
    if (by_label and not labels[0].isascii()) or _offers_numbers(run, gold, by_label):
        return True  # a gold ② names ②, whatever is counted
    if COUNTS.search(run.stem + run.tail) or not SELECTS.search(f"{run.tail[-60:]}\n{run.stem}"):
        return False
    if len(run) < 3:  # of two, a bare 2 is more often a value than a label
        return by_label and not labels[0].isdigit()
    return by_label or ((_gold_among(run, gold) or not gold) and not _asking(run))


def _offers_numbers(run: Run, gold: str, by_label: bool) -> bool:
    """Bare numbers after a question that is not about them, one of which the gold names or is."""
    bare = len(run) > 2 and all(BARE.fullmatch(value) for value in run.values)
    asked = bare and not DATA.search(run.stem) and (ASKS.search(run.stem) or STEM_ENDS.search(run.stem))
    return bool(asked) and len(set(run.values)) == len(run) and (by_label or _gold_among(run, gold))


def _is_naming(run: Run) -> bool:
    """True for "Plan A: ... Plan B: ...", P (A) = ..., P (B) = ..., and Ann (A), Bob (B)."""
    words = set(run.before)
    if all(len(word) > 1 and word[0] == label.lower() for word, label in zip(run.before, run.labels)):
        return True
    repeated = len(words) == 1 and not words & {"", "option", "choice", "answer", "part", "question"}
    return repeated or all(value.startswith(("=", "+", "∪", "∩", "|")) for value in run.values)


def _gold_among(run: Run, gold: str) -> bool:
    return bool(gold) and loose(value_of(gold)) in {loose(value) for value in run.values}


def _asking(run: Run) -> bool:
    """True where a value but the last asks something, or text after them does that the stem does not."""
    late = "?" in run.tail or (PART_ASKS.search(run.tail) and not ASKS.search(run.stem))
    return bool(late) or any(PART_ASKS.search(value) for value in run.values[:-1])


def _looks_like_options(run: Run, text: str, gold: str) -> bool:
    """Values that neither ask nor are conditions, under a gold that is no list of as many pieces."""
    if _asking(run) or CONDITIONS.search(run.stem) or _pieces(gold) == len(run):
        return False
    return run.kind == "letters" or bool(SELECTS.search(text) or CHOICE_WORDING.search(text))


def _letter_gold(text: str, gold: str) -> Finding | None:
    return ("multiple_choice", f"gold {gold}, options lost") if lost_options(text, gold) else None


# --- parts, proofs, figures -----------------------------------------------------------------------

SHARED_ASK = re.compile(r"(?i)\b(?:each|following|these|below)\b|:\s*$|下列各|各[题式]")
PROOF_GOLD = re.compile(
    r"(?i)(?:see )?(?:the )?proof(?: omitted| above| below)?|q\.?e\.?d\.?|[见略]?证明[见略]?|见解析|见解答|略"
)
OPENING = (  # where an imperative may stand
    r"(?:^|[.!?:;,)\]$\n。；]\s{0,5}|\b(?:and|then|hence|thus|or|please)\s{1,3}|\buse[^.?!\n]{1,80}\bto )"
    r"(?:[a-z]{1,20}ly,? )?"
)
PROVE = re.compile(
    rf"(?i){OPENING}(?:(?:dis)?prove\b(?! your| his| her| to be)|demonstrate (?:that|how|why)|verify that"
    r"|show (?:[a-z]{1,20}ly )?(?:that|the following|why|how|by |using )|show:)"
    r"|求证|试证|(?:^|[,。；：:、\s)“])(?:请)?(?:试)?证明(?!书|了|过)"
)
EXPLAIN = re.compile(
    rf"(?i){OPENING}(?:explain|justify|describe|discuss|interpret|compare|comment|derive"
    r"|give (?:a )?(?:reasons?|proof)|why"
    r"|write an? (?:\w+ ){0,2}essay|establish the (?:identity|inequality|formula)"
    r"|show(?= \S{0,12}[$\\/^+*=<>(|])|(?:establish|deduce|argue|confirm)(?= that))\b"
    r"|说明(?:理由|原因|为什么)|试说明|解释|简述|谈谈"
)
EMBEDDED = re.compile(
    r"(?i)\[asy\]|!\[[^\]]{0,200}\]\s?\(|\\includegraphics|<im(?:g|age)(?![a-z])|\[image\b|\\begin\{tikzpicture\}|data:image/"
    r"|[\w/-]{1,80}\.(?:png|jpe?g|gif|svg|webp|bmp)\b"
)
PICTURE = r"(?:figure|diagram|graph|picture|image|chart|drawing|illustration|plot|histogram)s?"
REFERENCE = re.compile(
    rf"(?i)\b{PICTURE} (?:shown|below|above|(?:at|to|on) (?:the |your )?(?:right|left)|shows|given)\b"
    r"|\b(?:shown|pictured|illustrated|depicted|drawn)(?: (?:in|below|above|here|at)\b|\s?[.?])"
    r"|\b(?:in|from|on|to|see) (?:the|this) (?:\w+ )?(?:figure|diagram|graph|chart|image|picture)\b(?! of)"
    r"|\b(?:figure|fig\.) ?\d"
    r"|[如下右左上]图|图中|图 ?\d|图所示|示意图|(?:根据|观察|从|由).{0,6}图"
)
PLOTTED = re.compile(r"(?i)\b(?:graphs?|charts?|plots?|histograms?)\b|[统图]计图|图象如图|图像如图")
NUMBERED = re.compile(r"(?:∠|angles? |\\angle ?)\d\b(?! ?(?:°|\^|deg))")  # an angle that the figure alone can name
GIVEN = re.compile(
    r"(?i)(?<![a-z_])\d+(?:\.\d+)?|=|\\(?:parallel|perp|cong)|\b(?:two|three|four|five|six|eight|ten|half)\b"
)
TABLE = re.compile(r"\\begin\{(?:tabular|array)|\|.*\|")


def _parts(text: str, gold: str, found: list[Run]) -> Finding | None:
    for run in found:
        if _is_naming(run) or any(TRIVIAL.fullmatch(value) for value in run.values):
            continue
        asks = sum(bool(PART_ASKS.search(value)) for value in run.values)
        proofs = sum(bool(PROVE.search(value)) for value in run.values)
        listed = SHARED_ASK.search(run.stem) and not CONDITIONS.search(run.stem)
        shared = listed and _pieces(gold) == len(run)
        if (asks > 1 and proofs < len(run)) or shared:
            return "multi_part", f"parts {run.labels[0]} to {run.labels[-1]}"
    return None


def _pieces(gold: str) -> int:
    """How many answers a gold lists: labelled, else between semicolons or line breaks, else commas."""
    if labelled := max((len(run) for run in runs(gold)), default=0):
        return labelled
    for separator in (r"[;；\n]", r"[,，](?![^(\[{]*[)\]}])"):
        if (count := len([piece for piece in re.split(separator, gold[:2000]) if piece.strip()])) > 1:
            return count
    return 1


def _proof(text: str, gold: str, proves: bool, explains: bool) -> Finding | None:
    """A proof or an explanation; not where the problem asks for a value beside it and the gold is one."""
    if gold and PROOF_GOLD.fullmatch(gold):
        return "proof", f'gold "{gold}"'
    if not (proves or explains):
        return None
    value = bool(gold) and not is_prose(gold)
    if proves and (match := PROVE.search(text)):
        asked = any(ASKS.search(part) for part in re.split(r"[.。;；\n]", text) if not PROVE.search(part))
        return None if value and asked else ("proof", f'wording "{match[0].strip()}"')
    explain = EXPLAIN.search(text) if explains and not value else None
    if explain and explain[0].lower().endswith("describe") and gold[:1].islower() and not NOT_FOUND.fullmatch(gold):
        return None  # a phrase, "concave up for x > 3", where a description would be a sentence
    return ("proof", f'wording "{explain[0].strip()}"') if explain else None


def _embedded_figure(text: str) -> Finding | None:
    match = EMBEDDED.search(text)
    return ("figure", match[0][:60]) if match else None


def _missing_figure(text: str) -> Finding | None:
    """A reference to a figure where the text gives too little: no data of a plot, or below two quantities."""
    reference = REFERENCE.search(text)
    if not reference:
        return None
    given = len(GIVEN.findall(re.sub(r"(?i)(?:图|figure|fig\.)\s?\d+(?:\.\d+)?", "", text)))
    plotted = PLOTTED.search(text) and "=" not in text and not TABLE.search(text) and given < 3
    short = given < 2 or plotted or NUMBERED.search(text)
    return ("figure", f'"{reference[0].strip()}" with {given} quantities given') if short else None


# --- what to do with a format ---------------------------------------------------------------------


def decide(problems: pl.DataFrame, actions: Mapping[str, str]) -> pl.DataFrame:
    """One decision for each problem by its format.

    Args:
        problems: as for `classify`.
        actions: a format's action, `drop`, `keep` or, for multiple_choice, `reformulate`: keep those that
            `reformulate` can turn into open problems and drop the others, with why in the evidence. A format
            not named is kept.

    Returns:
        `id, keep, reason, evidence`; the reason is the format's name.

    Raises:
        ValueError: an unknown format or action.
    """
    for kind, act in actions.items():
        allowed = ACTIONS if kind == "multiple_choice" else ACTIONS[:2]
        if kind not in FORMATS or act not in allowed:
            raise ValueError(f"format action {kind} = {act}: formats are {FORMATS}, actions {allowed}")
    found = classify(problems)
    action = found["format"].replace_strict(dict(actions), default="keep", return_dtype=pl.String)
    faults: list[str | None] = [None] * problems.height
    for place in (action == "reformulate").arg_true():
        faults[place] = _opened(problems.row(place, named=True))[2]
    fault = pl.Series(faults, dtype=pl.String)
    frame = found.with_columns(keep=(action != "drop") & fault.is_null(), fault=fault)
    return frame.select(
        "id",
        "keep",
        reason=pl.when(~pl.col("keep")).then("format"),
        evidence=pl.when(pl.col("fault").is_null())
        .then("evidence")
        .otherwise(pl.concat_str("evidence", "fault", separator="; not reformulated: ")),
    )


CLOSED_STEM = re.compile(
    r"(?i)\b(?:which|following|statements?|options?|choices?|closest|nearest|approximately|true|false|correct|except)\b"
    r"|\bany of (?:these|the)\b|\b(?:could|may|might)(?: \w+)? be\b|\bnot\s*[:?]?$"
    r"|下列|以下|哪|正确|错误|不可能|可能|可以|选项|最接近"
)
NO_VALUE = re.compile(r"(?i)\b(?:none|all|both|neither|either) of\b|\b(?:none|above|cannot|not enough|only)\b|以上|都")
WHOLE_BLANK = re.compile(r"(?:^|则|那么|[,;.:，；。])\s{0,5}_{2,}[\s.。]{0,5}$")
EMPTY_BRACKET = re.compile(r"\$?\(\s{0,9}(?:\\q?quad)?\s{0,9}\)\$?")


def reformulate(problems: pl.DataFrame) -> pl.DataFrame:
    """Multiple choice as open problems: the stem as `problem`, the right option as `answer`.

    Rows of other formats pass unchanged. Multiple-choice rows are left out where the stem asks about its
    options ("which of the following"), needs a figure or asks nothing, or where the gold is not one option
    with a value to verify; `decide` with `reformulate` reports each with the reason. `id` and other columns stay.
    """
    choice = classify(problems)["format"] == "multiple_choice"
    rows = zip(choice, problems.iter_rows(named=True))
    opened = [_opened(row) if chosen else (row["problem"], row["answer"], None) for chosen, row in rows]
    texts = pl.DataFrame(opened, dict.fromkeys(("problem", "answer", "fault"), pl.String), orient="row")
    result = problems.with_columns(texts["problem"], texts["answer"])
    if "options" in result.columns:
        result = result.with_columns(pl.when(~choice).then("options").alias("options"))
    return result.filter(texts["fault"].is_null())


def _opened(row: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Stem, value and null, or why a multiple-choice row has no open form."""
    text, gold = plain((row["problem"] or "")[:MAX_CHARS]), normalise_gold((row["answer"] or "")[:MAX_GOLD])
    run = next((run for run in runs(text) if _is_choice(run, text, gold)), None)
    options = {place: value_of(value or "") for place, value in enumerate(row.get("options") or (), 1)}
    options = options or (dict(zip(map(number_of, run.labels), run.values)) if run else {})
    stem = _open_stem(run.stem if run else text)
    value = _chosen(options, gold)
    if value is None:
        return stem, "", f"gold {gold[:20]} is not one of {len(options)} options"
    if NO_VALUE.search(value) or is_prose(normalise_gold(value)):
        return stem, value, f"the option {value[:40]} is no value to verify"
    return stem, value, _stem_fault(stem)


def _chosen(options: Mapping[int, str], gold: str) -> str | None:
    """The one option, by the number of its label, that the gold names or is equal to."""
    labels = named_labels(gold)
    equal = [value for value in options.values() if loose(value) == loose(value_of(gold))]
    if len(equal) == 1:
        return equal[0]
    return options.get(number_of(labels[0])) if len(labels) == 1 and not labels[0].isdigit() else None


def _open_stem(stem: str) -> str:
    """The stem with an empty bracket as a blank and without a heading of the options."""
    stem = re.sub(r"(?is)\W{0,4}(?:answer )?(?:choices|options?)\s?:?\s*$", "", stem)
    if brackets := list(EMPTY_BRACKET.finditer(stem)):
        stem = f"{stem[: brackets[-1].start()]}____{stem[brackets[-1].end() :]}"
    if stem.count("$") % 2:  # the opening one of $\textbf{(A)} ..., or a formula that was never closed, or money
        before, _, after = stem.rpartition("$")
        if not re.search(r"\w", re.sub(r"\\[a-z]+", "", after)):
            stem = before
        elif "____" in after:
            stem = f"{stem.rstrip()}$"
    return re.sub(r"\n[ \t]*[>*•-]+$", "", stem.strip()).strip()


def _stem_fault(stem: str) -> str | None:
    if match := CLOSED_STEM.search(stem):
        return f'the stem speaks of its options: "{match[0]}"'
    if WHOLE_BLANK.search(stem):
        return "the blank stands for a whole statement"
    if _embedded_figure(stem) or REFERENCE.search(stem):
        return "the stem needs a figure"
    return None if ASKS.search(stem) else "the stem asks nothing by itself"
