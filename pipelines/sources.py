"""Sources and benchmarks in their own schemas, as a recipe declares them, made into the store's `problems`.

A row that does not hold what its declaration says becomes one row of `unparsable` with its file, line and
reason; the others are unaffected.
"""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import polars as pl

from assay.pipelines.errors import SourceError
from assay.pipelines.hints import did_you_mean
from assay.pipelines.recipe import Source, Table
from assay.pipelines.rows import BEGINNING, Row, place_of, read_rows
from assay.pipelines.store import SCHEMAS

__all__ = ["MAX_CHARS", "UNPARSABLE", "content_hash", "read"]

MAX_CHARS = 100_000
"""Longest problem, gold or option; what is longer is a file that went astray, not a problem."""

UNPARSABLE = pl.Schema(
    {
        "id": pl.String,
        "source": pl.String,
        "file": pl.String,
        "line": pl.Int64,
        "reason": pl.String,
        "text": pl.String,
    }
)
"""Rows that are no problem: `reason` begins with the field, or with "line"; `text` is the row's beginning."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
LABEL = re.compile(r"\s*\(?([A-Z])\s*[).:．:、]\s*")
SURROGATE = re.compile("[\ud800-\udfff]")
ABSENT = object()


class RowFault(ValueError):
    """Why a row is no problem; the message begins with the field."""


def read(table: Table) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The problems of a `Source` or `Benchmark` and its unparsable rows.

    A problem's `id` is a hash of the source's name, the row's key and its text, options and gold: reordering
    the file changes none, and a corrected gold is a new problem. Rows that agree in all these are numbered.

    Returns:
        problems: `SCHEMAS["problems"]`. A null answer is left to the answer filter. An index gold becomes its
            letter; `options` have no labels of their own; `extra` is JSON of the fields not taken.
        unparsable: `UNPARSABLE`.

    Raises:
        SourceError: no such file, a damaged one, a declared field that no row has, or not one problem.
    """
    problems: list[dict[str, Any]] = []
    faults: list[tuple[Row, str]] = []
    names: set[str] = set()
    copies: Counter[str] = Counter()
    now = datetime.now(UTC).replace(tzinfo=None)
    for row in read_rows(table):
        names.update(row.fields or ())
        try:
            if (problem := _problem(table, row)) is not None:
                problems.append(_identified(problem, copies) | {"first_seen": now})
        except RowFault as fault:
            faults.append((row, str(fault)))
    _check_fields(table, names)
    if not problems:
        raise SourceError(f"{place_of(table)}: not one problem for '{table.name}': {_summary(faults)}.")
    unparsable = [_unparsable(table, row, reason) for row, reason in faults]
    return (
        pl.DataFrame(problems, schema=SCHEMAS["problems"]),
        pl.DataFrame(unparsable, schema=UNPARSABLE, orient="row"),
    )


def content_hash(problems: pl.DataFrame) -> str:
    """SHA-256 over the problems and golds in their order: which version of a benchmark was compared with."""
    digest = hashlib.sha256()
    for row in problems.select("problem", "answer").iter_rows():
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()


def _problem(table: Table, row: Row) -> dict[str, Any] | None:
    """One row of `problems` but for its id; None where the recipe leaves the row out."""
    if row.fields is None:
        raise RowFault(row.fault)
    fields = row.fields
    if any(_look(fields, name) != value for name, value in table.where.items()):
        return None
    labels, options = _options(table, fields)
    found = {
        "problem": _problem_text(table, fields),
        "answer": _answer(table, fields, labels),
        "options": options,
        "source": table.name,
        "source_key": _key(table, fields),
        "kind": "math",
        "extra": _extra(table, fields),
    }
    return found | (_described(table, fields) if isinstance(table, Source) else {})


def _described(source: Source, fields: dict[str, Any]) -> dict[str, Any]:
    described = {name: _fill(getattr(source, name), name, fields) for name in ("license", "domain", "language")}
    tests = None if source.tests is None else _look(fields, source.tests)
    if tests is not None and not isinstance(tests, str):
        tests = None if tests is ABSENT else _json_text(tests)
    return described | {"kind": source.kind, "tests": _text(tests, "tests", longest=2**30)}


def _identified(problem: dict[str, Any], copies: Counter[str]) -> dict[str, Any]:
    folded = " ".join(unicodedata.normalize("NFKC", problem["problem"]).casefold().split())
    text_hash = hashlib.sha256(folded.encode()).hexdigest()
    key = problem["source_key"] or text_hash[:12]
    identity = json.dumps([problem[name] for name in ("source", "problem", "answer", "options")] + [key])
    copies[identity] += 1
    if copies[identity] > 1:
        key = f"{key}#{copies[identity]}"
    name = hashlib.sha256(f"{identity}#{copies[identity]}".encode()).hexdigest()[:16]
    return problem | {"id": name, "text_hash": text_hash, "source_key": key}


def _problem_text(table: Table, fields: dict[str, Any]) -> str:
    if isinstance(table.problem, str) and "{" in table.problem and table.problem not in fields:
        text = PLACEHOLDER.sub(lambda match: _written(fields, match[1]) or "", table.problem)
    else:
        names = [table.problem] if isinstance(table.problem, str) else table.problem
        text = " ".join(part for part in (_written(fields, name) for name in names) if part)
    if not any(char.isprintable() and not char.isspace() for char in text[:MAX_CHARS]):
        raise RowFault("problem: empty")
    return _text(text, "problem") or ""


def _written(fields: dict[str, Any], name: str) -> str | None:
    """A part of the problem: text, null, or a fault; a number is no problem."""
    value = _look(fields, name)
    if value is ABSENT:
        raise RowFault(f"problem: the row has no field '{name}'")
    if value is not None and not isinstance(value, str):
        raise RowFault(f"problem: field '{name}' holds {_kind(value)}, not text")
    return _text(value, "problem")


def _answer(table: Table, fields: dict[str, Any], labels: list[str] | None) -> str | None:
    names = [table.answer] if isinstance(table.answer, str) else table.answer or []
    values = (_look(fields, name) for name in names)
    value = next((v for v in values if v is not ABSENT and v is not None and v not in ("", [])), None)
    if value is None:
        return None
    if table.answer_is == "index":
        return _letter(value, len(labels or []))
    if table.answer_is == "list" and isinstance(value, list):
        text: str | None = ", ".join(_text(item, f"answer item {n}", needed=True) or "" for n, item in enumerate(value))
    else:
        text = _text(value, "answer")
    if table.answer_pattern is not None and text:
        text = _last_match(table.answer_pattern, text)
    return _by_place((text or "").strip(), labels or []) or None


def _by_place(gold: str, labels: list[str]) -> str:
    """A gold that names options by the source's labels, by their places: C of the labels A and C is B.

    Raises:
        RowFault: it names an option that is null, whose letter would become that of another.
    """
    if gold in labels:
        return LETTERS[labels.index(gold)]
    named = re.sub(r"[\s,;、，]", "", gold)
    if not named.isalpha() or labels == list(LETTERS[: len(labels)]):
        return gold
    if set(named) <= set(labels):
        return "".join(LETTERS[labels.index(label)] for label in named)
    if set(named) <= set(LETTERS[: len(labels)]) and set(labels) <= set(LETTERS):
        raise RowFault(f"answer: {gold!r} is none of the options {', '.join(labels)}")
    return gold


def _last_match(pattern: str, text: str) -> str:
    match = next(reversed(list(re.finditer(pattern, text))), None)
    if match is None:
        raise RowFault(f"answer: nothing in it matches {pattern!r}")
    return (match[1] if match.re.groups else match[0]) or ""


def _letter(value: Any, options: int) -> str:
    text = _text(value, "answer") or ""
    if isinstance(value, bool) or not text.isdecimal() or len(text) > 2 or int(text) >= options:
        raise RowFault(f"answer: {text[:40]!r} is no place among {options} options, counted from 0")
    return LETTERS[int(text)]


def _options(table: Table, fields: dict[str, Any]) -> tuple[list[str] | None, list[str] | None]:
    """The options' labels in the source (else A, B, ...) and the options without their labels."""
    value = None if table.options is None else _look(fields, table.options)
    if value is None or value is ABSENT or value in ([], {}):
        return None, None
    if isinstance(value, dict) and all(isinstance(value.get(name), list) for name in ("text", "label")):
        value = dict(zip(map(str, value["label"]), value["text"]))
    if isinstance(value, dict):  # Arrow pads maps with nulls
        ordered = sorted(value.items(), key=lambda item: (len(item[0]), item[0]))
        value = {label: option for label, option in ordered if option is not None}
    elif isinstance(value, list):
        value = dict(zip(LETTERS, value)) if len(value) <= len(LETTERS) else value
    if not isinstance(value, dict) or len(value) > len(LETTERS):
        raise RowFault(f"options: {_kind(value)}, not a list or map of at most {len(LETTERS)}")
    texts = [_text(option, f"options {label}", needed=True) or "" for label, option in value.items()]
    matches = [LABEL.match(text) for text in texts]
    if all(match and match[1] == letter for match, letter in zip(matches, LETTERS)):
        texts = [text[match.end() :] for text, match in zip(texts, matches) if match]
    return (list(value), texts) if texts else (None, None)


def _key(table: Table, fields: dict[str, Any]) -> str | None:
    if table.key is None:
        return None
    template = table.key if "{" in table.key else f"{{{table.key}}}"
    return _text(_fill(template, "key", fields), "key", needed=True)


def _fill(template: str | None, name: str, fields: dict[str, Any]) -> str | None:
    """A constant, or a text with `{field}` in it; null when a field is."""
    if template is None:
        return None
    values = [_look(fields, part) for part in PLACEHOLDER.findall(template)]
    if any(v is None or v is ABSENT for v in values):
        return None
    texts = iter([_text(value, name) or "" for value in values])
    return PLACEHOLDER.sub(lambda _: next(texts), template) or None


def _text(value: Any, field: str, needed: bool = False, longest: int = MAX_CHARS) -> str | None:
    """A scalar as text: 7.0 is "7", true is "True".

    Raises:
        RowFault: a list, map or bytes; no finite number; a lone surrogate; too long; null though needed.
    """
    if value is None and not needed:
        return None
    if isinstance(value, (float, Decimal)):
        value = _number(value, field)
    elif isinstance(value, (bool, int)):
        value = str(value)
    if not isinstance(value, str):
        raise RowFault(f"{field}: holds {_kind(value)}, not text")
    if len(value) > longest:
        raise RowFault(f"{field}: {len(value)} characters, at most {longest}")
    if SURROGATE.search(value):
        raise RowFault(f"{field}: holds a lone surrogate or bytes that are not UTF-8")
    return value


def _number(value: float | Decimal, field: str) -> str:
    exact = Decimal(repr(value)) if isinstance(value, float) else value
    if not exact.is_finite():
        raise RowFault(f"{field}: {value} is no finite number")
    if not 1e-7 < abs(exact) < 1e17:
        return "0" if exact == 0 else str(value)
    text = format(exact, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _look(fields: dict[str, Any], name: str) -> Any:
    """The value of a field, also inside others (`prompt.0.content`); ABSENT where there is none."""
    if name in fields or "." not in name:
        return fields.get(name, ABSENT)
    value: Any = fields
    for step in name.split("."):
        if isinstance(value, dict):
            value = value.get(step, ABSENT)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return ABSENT
    return value


def _extra(table: Table, fields: dict[str, Any]) -> str:
    """The fields that the problem does not hold as they were; a worked solution around a gold stays."""
    taken = {
        table.key,
        table.options,
        *([table.problem] if isinstance(table.problem, str) else table.problem),
    }
    if table.answer_pattern is None and isinstance(table.answer, str) and table.answer_is == "text":
        taken.add(table.answer)
    return _json_text({name: value for name, value in fields.items() if name not in taken})


def _json_text(value: Any) -> str:
    """Strict JSON: no NaN; characters as they are unless one cannot be written in UTF-8."""
    try:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
        except ValueError:
            plain = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
            text = json.dumps(plain, ensure_ascii=False)
    except (RecursionError, ValueError, TypeError) as error:
        raise RowFault(f"extra: cannot be kept as JSON: {error}") from None
    return json.dumps(json.loads(text)) if SURROGATE.search(text) else text


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {
        dict: "a map",
        list: "a list",
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
    }
    return names.get(type(value), f"a {type(value).__name__}")


def _unparsable(table: Table, row: Row, reason: str) -> tuple[str, str, str, int, str, str]:
    try:
        text = _writable(row.text or repr(row.fields)[:BEGINNING])
    except RecursionError:
        text = "(nested too deeply to show)"
    name = hashlib.sha256(json.dumps([table.name, row.line, reason, text]).encode()).hexdigest()[:16]
    return name, table.name, place_of(table), row.line, _writable(reason), text


def _writable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _declared(table: Table) -> Iterator[str]:
    """Every field name in the declaration."""
    problem = [table.problem] if isinstance(table.problem, str) else table.problem
    for name in problem:
        yield from PLACEHOLDER.findall(name) or [name]
    yield from [table.answer] if isinstance(table.answer, str) else table.answer or []
    yield from (name for name in (table.options, getattr(table, "tests", None), *table.where) if name)
    if table.key:
        yield from PLACEHOLDER.findall(table.key) or [table.key]
    for name in ("license", "domain", "language"):
        yield from PLACEHOLDER.findall(getattr(table, name, None) or "")


def _check_fields(table: Table, names: set[str]) -> None:
    for name in _declared(table):
        if names and name not in names and name.split(".")[0] not in names:
            shown = _writable(f"{did_you_mean(name, names)} Fields: {', '.join(sorted(names)[:30])}")
            raise SourceError(f"{place_of(table)}: no row has the field '{name}' of '{table.name}'{shown}.")


def _summary(faults: list[tuple[Row, str]]) -> str:
    if not faults:
        return "it has no rows, or none that `where` lets through"
    common = Counter(reason for _, reason in faults).most_common(3)
    first = faults[0][0].line
    return f"{len(faults)} unparsable rows, the first at line {first}: " + "; ".join(f"{n} x {r}" for r, n in common)
