"""Correctness that somebody else recorded, read into the statistics of this package: no model, no grading.

One row an item (a list of verdicts, the counts n and c, or the share of n that is correct) or one row a sample (a
single verdict), in JSONL, JSON or Parquet; JSON may also map items to verdicts, to counts or to records, or models to
shares by item, alone or inside a larger object.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from assay.eval.curves import ITEMS
from assay.pipelines.errors import SourceError
from assay.pipelines.hints import nearby_files

__all__ = ["ROLES", "read"]

ROLES: dict[str, tuple[str, ...]] = {
    "item": ("item", "item_id", "problem_id", "question_id", "task_id", "id", "idx", "problem_idx", "index",
             "doc_id"),
    "n": ("n", "num_samples", "num_samples_total", "total"),
    "c": ("c", "num_correct", "num_samples_correct", "n_correct", "correct", "solved"),
    "rate": ("pass@1", "pass_rate", "rate", "accuracy", "acc"),
    "correct": ("correct", "is_correct", "correctness", "passed", "pass", "flags", "status", "verdict",
                "score", "scores"),
    "scores": ("pred_score", "pred_scores", "rm_score", "rm_scores", "reward", "rewards", "score", "scores"),
    "answers": ("extracted", "pred", "preds", "prediction", "predictions", "answers"),
    "model": ("model", "model_name", "run"),
    "benchmark": ("benchmark", "benchmark_name", "dataset", "dataset_name", "data_source"),
}
WORDS = {"correct": True, "passed": True, "pass": True, "true": True, "wrong": False, "incorrect": False,
         "failed": False, "fail": False, "false": False, "unverifiable": None, "timeout": None,
         "truncated": None}
Row = dict[str, Any]


def read(path: str | Path, columns: Mapping[str, str] | None = None,
         samples: int | None = None) -> pl.DataFrame:
    """The recorded verdicts, one row an item.

    Args:
        path: `.jsonl`, `.json` or `.parquet`.
        columns: which column plays which of `ROLES`; the others are found by their names and contents.
        samples: n of every item, where only c was recorded, or a share of them (per cent where one exceeds 1).

    Returns:
        A frame of items as `curves` describes it. Where no column tells benchmarks or models apart, the file's name is
        theirs.

    Raises:
        SourceError: no file, no readable rows, no verdicts in any column, or contradictory ones.
    """
    path, named = Path(path), dict(columns or {})
    if unknown := sorted(set(named) - set(ROLES)):
        raise SourceError(f"{path}: no role is called {', '.join(unknown)}; roles: {', '.join(ROLES)}.")
    best: list[Row] = []
    faults = []
    for rows in _tables(path):
        try:
            found = _items(rows, _roles(rows, named, samples), samples, path.stem)
            for role in {"answers", "scores"} & set(named):
                if all(row[role] is None for row in found):
                    raise ValueError(f"{role}={named[role]} cannot be used: no item has one entry a sample in it.")
        except ValueError as error:
            faults.append(str(error))
            continue
        best = max(best, found, key=len)
    if not best:
        raise SourceError(f"{path}: {faults[0] if faults else 'it holds no rows'}")
    return pl.DataFrame(best, schema=ITEMS)


def _tables(path: Path) -> Iterator[list[Row]]:
    """Every table that the file may mean."""
    if not path.is_file():
        raise SourceError(f"{path}: no such file; {nearby_files(path)}")
    try:
        if path.suffix == ".parquet":
            data: object = pl.read_parquet(path).to_dicts()
        elif path.suffix == ".jsonl":
            lines = path.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: texts may hold U+2028
            data = [_json(line, i) for i, line in enumerate(lines, 1) if line.strip()]
        else:
            data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, pl.exceptions.PolarsError) as error:
        raise SourceError(f"{path}: not readable as {path.suffix or 'JSON'}: {error}") from error
    for part in [data, *(data.values() if isinstance(data, dict) else ())]:
        yield from _inside(part)


def _json(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number}: {error.msg} (column {error.colno}) in {line.strip()[:60]!r}") from error


def _inside(data: object) -> Iterator[list[Row]]:
    """Rows of a list of records, or of a mapping from items to verdicts, counts or records."""
    if isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
        yield data
    if not isinstance(data, dict) or not data:
        return
    if all(isinstance(value, dict) and value and all(map(_is_number, value.values())) for value in data.values()):
        yield [{"model": model, "item": item, "rate": rate} for model, by in data.items() for item, rate in by.items()]
    if all(isinstance(value, dict) for value in data.values()):
        yield [{"item": item, **value} for item, value in data.items()]
    elif all(isinstance(value, list) for value in data.values()):
        yield [{"item": item, "correct": value} for item, value in data.items()]
    elif all(isinstance(value, int) for value in data.values()):
        yield [{"item": item, "c": value} for item, value in data.items()]


def _roles(rows: list[Row], named: dict[str, str], samples: int | None) -> dict[str, str]:
    """Role -> column: the named ones, then the first column of a role's names whose values fit it."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    have = {_fold(column): column for column in reversed(columns)}
    if lacking := [column for column in named.values() if column not in columns]:
        raise ValueError(f"no column {', '.join(lacking)}; it has {', '.join(columns)}.")
    if unfit := next((role for role, column in named.items() if not _fits(role, rows, column)), None):
        value = next(row[named[unfit]] for row in rows if row.get(named[unfit]) is not None)
        raise ValueError(f"{unfit}={named[unfit]} cannot be used: it holds values such as {value!r}.")
    found = dict(named)
    for role, names in ROLES.items():
        fits = [have[_fold(name)] for name in names if _fold(name) in have]
        fits = [column for column in fits if column not in found.values() and _fits(role, rows, column)]
        needs_n = role == "c" or (role == "rate" and "c" not in found)
        if role not in found and fits and not (needs_n and "n" not in found and not samples):
            found[role] = fits[0]
    if "c" in found and "rate" in found:
        del found["c" if "rate" in named and "c" not in named else "rate"]
    counted = ("c" in found or "rate" in found) and ("n" in found or samples)
    lists = "correct" in found and any(isinstance(row.get(found["correct"]), list) for row in rows)
    if counted and "correct" not in named and (not lists or {"n", "c", "rate"} & set(named)):
        found.pop("correct", None)  # counts say more than a single verdict beside them
    if "correct" not in found and not counted:
        raise ValueError(f"no verdicts in the columns {', '.join(columns)}; name the column that holds them "
                         "(correct=...), or two with counts (n=..., c=...), or c or rate, with --samples.")
    return _used(found, named)


def _used(found: dict[str, str], named: dict[str, str]) -> dict[str, str]:
    """The roles that are read beside verdicts, or beside counts.

    Raises:
        ValueError: one that was named is not.
    """
    of, unused = ("verdicts", ("n", "c", "rate")) if "correct" in found else ("counts", ("scores", "answers"))
    if idle := [role for role in named if role in unused or role not in found]:
        told = ", ".join(f"{role}={named[role]}" for role in idle)
        raise ValueError(f"{told} cannot be used: {of} are read, from {found.get('correct') or found.get('c')}.")
    return {role: column for role, column in found.items() if role not in unused}


def _fits(role: str, rows: list[Row], column: str) -> bool:
    """Whether the values can play the role; the first hundred that are not null decide."""
    values: list[Any] = [value for row in rows if (value := row.get(column)) is not None][:100]
    if role in ("item", "model", "benchmark"):
        return not any(isinstance(value, (list, dict)) for value in values)
    if role == "rate":
        return bool(values) and all(_is_number(value) and 0 <= value <= 100 for value in values)
    if role in ("n", "c"):
        return bool(values) and all(_is_number(value) and value % 1 == 0 for value in values)
    try:
        _ = [READ[role](entry) for value in values for entry in _listed(value)]
    except ValueError:
        return False
    return True


def _items(rows: list[Row], roles: dict[str, str], samples: int | None, file: str) -> list[Row]:
    """One row an item: rows with lists or counts as they are, single verdicts gathered."""
    merged: dict[tuple[str, str, str], Row] = {}
    rates = [row.get(roles.get("rate", "")) for row in rows]
    whole = 100 if any(isinstance(rate, (int, float)) and rate > 1 for rate in rates) else 1
    for i, row in enumerate(rows):
        get: Row = {role: row.get(column) for role, column in roles.items()}
        if "item" in roles and get["item"] is None:
            raise ValueError(f"row {i + 1} has no {roles['item']}; every row must name its item, or none.")
        benchmark, model = (str(file if get.get(role) is None else get[role]) for role in ("benchmark", "model"))
        item = str(get.get("item", i))
        new = _lists(get) if "correct" in get else _counts(get, samples, whole)
        old = merged.setdefault((benchmark, model, item), new)
        if old is new or ("correct" not in roles and old == new):
            continue
        if "correct" not in roles or isinstance(get["correct"], list):
            raise ValueError(f"item {item} is recorded twice, differently; name the column that tells the "
                             "recordings apart (model=... or benchmark=...).")  # fmt: skip
        for part in READ:
            if old[part] is None or new[part] is None:
                old[part] = None
            else:
                old[part].extend(new[part])
    return [{"benchmark": benchmark, "model": model, "item": item, **_counted(row)}
            for (benchmark, model, item), row in merged.items()]  # fmt: skip


def _counts(get: Row, samples: int | None, whole: int) -> Row:
    n, c = samples if samples is not None else get["n"], get["rate"] if "rate" in get else get["c"]
    if n is None or c is None:
        return {"taken": int(n or 0), "n": 0, "c": 0} | dict.fromkeys(READ)  # nobody knows: without a verdict
    if not (_is_number(n) and _is_number(c)):
        raise ValueError(f"{c!r} of {n!r}: no counts; name columns of numbers.")
    n, c = int(n), c / whole * n if "rate" in get else c
    if abs(c - round(c)) > 0.01:
        raise ValueError(f"a share of {c / n:g} of {n} samples is no whole number; give the right number of samples.")
    if not 0 <= c <= n:
        raise ValueError(f"c = {c} of n = {n}; correct samples cannot exceed the samples.")
    return {"taken": n, "n": n, "c": round(c)} | dict.fromkeys(READ)


def _lists(get: Row) -> Row:
    """The lists of an item, null where they do not have one entry a sample."""
    lists = {role: [read(value) for value in _listed(get[role])] if role in get else [] for role, read in READ.items()}
    return {role: values if len(values) == len(lists["correct"]) else None for role, values in lists.items()}


def _counted(row: Row) -> Row:
    scored = [flag for flag in row["correct"] or () if flag is not None]
    return {"taken": len(row["correct"] or ()), "n": len(scored), "c": sum(scored)} | row


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _flag(value: object) -> bool | None:
    """A verdict; None, nan and this project's statuses without one are unscored."""
    if value is None or value != value:
        return None
    if isinstance(value, str) and value.strip().lower() in WORDS:
        return WORDS[value.strip().lower()]
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    raise ValueError(f"{value!r} is no verdict")


def _number(value: object) -> float | None:
    """A score; recorders of process rewards wrap a single one in a list."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return None if value is None or value != value else float(value)
    raise ValueError(f"{value!r} is no score")


def _text(value: object) -> str | None:
    if value is None or isinstance(value, (str, int, float)):
        return None if value is None else str(value)
    raise ValueError(f"{value!r} is no answer")


READ: dict[str, Callable[[Any], Any]] = {"correct": _flag, "answers": _text, "scores": _number}
