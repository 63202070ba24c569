"""Correctness that somebody else recorded, read into the statistics of this package: no model, no grading.

One row an item (a list of verdicts, the counts n and c, or the share of n that is correct) or one row a sample (a
single verdict), in JSONL, JSON or Parquet; JSON may also map items to verdicts, to counts or to records, or models to
shares by item, alone or inside a larger object.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from assay.eval.intervals import caution, share_mean
from assay.eval.pass_at_k import pass_at_k
from assay.eval.voting import best_of_k, majority_at_k, merge_correct
from assay.pipelines.errors import SourceError
from assay.pipelines.hints import nearby_files

__all__ = ["ROLES", "pair", "read", "replay"]

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
    "group": ("model", "model_name", "run"),
}
SCHEMA: dict[str, Any] = {
    "group": pl.String, "item": pl.String, "taken": pl.Int64, "n": pl.Int64, "c": pl.Int64,
    "correct": pl.List(pl.Boolean), "answers": pl.List(pl.String), "scores": pl.List(pl.Float64)}
REPLAYED: dict[str, Any] = {
    "group": pl.String, "metric": pl.String, "k": pl.Int64, "estimate": pl.Float64, "low": pl.Float64,
    "high": pl.Float64, "items": pl.Int64, "note": pl.String}
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
        `group, item, taken, n, c, correct, answers, scores`: `n` of the `taken` samples are scored. The lists
        have one entry a sample, null where unscored; each is null where not recorded, `group` is "" without
        groups.

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
            found = _items(rows, _roles(rows, named, samples), samples)
        except ValueError as error:
            faults.append(str(error))
            continue
        best = max(best, found, key=len)
    if not best:
        raise SourceError(f"{path}: {faults[0] if faults else 'it holds no rows'}")
    return pl.DataFrame(best, schema=SCHEMA)


def replay(recorded: pl.DataFrame, ks: Iterable[int], confidence: float = 0.95) -> pl.DataFrame:
    """pass@k, and majority vote and best-of-k where answers and scores were recorded.

    Args:
        recorded: from `read`.
        ks: each at most the scored samples of some item.

    Returns:
        `group, metric (pass@k, maj@k, best-of-k), k, estimate, low, high, items, note`. pass@k is over items
        with k scored samples; the other two over items whose answered samples are all scored. Correct answers
        vote together; merging other equivalent answers is the recorder's. The interval is over items; `note`
        says how many items were left out and where few are left.

    Raises:
        SourceError: a k that no item of a group allows.
    """
    rows, ks = [], [int(k) for k in ks]
    for (group,), part in recorded.group_by(["group"], maintain_order=True):
        for metric, values in (("pass@k", _passes), ("maj@k", _votes), ("best-of-k", _bests)):
            for k, found in ((k, values(part, k)) for k in ks):
                if found:
                    mean = share_mean(found, confidence)
                    rows.append((group, metric, k, mean.estimate, mean.low, mean.high, mean.items,
                                 _note(mean.items, part.height)))
    replayed = pl.DataFrame(rows, schema=REPLAYED, orient="row")
    return replayed.with_columns(pl.col("low", "high").fill_nan(None))


def pair(a: pl.DataFrame, b: pl.DataFrame) -> tuple[Any, Any]:
    """Two recordings of one group each on their common items, as `comparison.compare_pass_at_k` takes them.

    Raises:
        SourceError: no common items.
    """
    joined = a.join(b, on="item", how="inner", suffix="_b", maintain_order="left")
    if joined.is_empty():
        raise SourceError(f"{a.height} and {b.height} items, none in common; compare one benchmark's.")
    if joined["correct"].null_count() or joined["correct_b"].null_count():
        return (joined["n"], joined["c"]), (joined["n_b"], joined["c_b"])
    return joined["correct"].to_list(), joined["correct_b"].to_list()


def _tables(path: Path) -> Iterator[list[Row]]:
    """Every table that the file may mean."""
    if not path.is_file():
        raise SourceError(f"{path}: no such file; {nearby_files(path)}")
    try:
        if path.suffix == ".parquet":
            data: object = pl.read_parquet(path).to_dicts()
        elif path.suffix == ".jsonl":
            data = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        else:
            data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, pl.exceptions.PolarsError) as error:
        raise SourceError(f"{path}: not readable as {path.suffix or 'JSON'}: {error}") from error
    yield from _inside(data)
    if isinstance(data, dict):
        for value in data.values():
            yield from _inside(value)


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
    if not rows:
        raise ValueError("it holds no rows")
    have = {_fold(column): column for column in rows[0]}
    if lacking := [column for column in named.values() if column not in rows[0]]:
        raise ValueError(f"no column {', '.join(lacking)}; it has {', '.join(rows[0])}.")
    found = dict(named)
    for role, names in ROLES.items():
        fits = [have[_fold(name)] for name in names if _fold(name) in have]
        fits = [column for column in fits if column not in found.values() and _fits(role, rows, column)]
        needs_n = role == "c" or (role == "rate" and "c" not in found)
        if role not in found and fits and not (needs_n and "n" not in found and not samples):
            found[role] = fits[0]
    if "c" in found:
        found.pop("rate", None)
    counted = ("c" in found or "rate" in found) and ("n" in found or samples)
    if counted and "correct" in found and not isinstance(rows[0][found["correct"]], list):
        del found["correct"]  # counts say more than a single verdict beside them
    if "correct" not in found and not counted:
        raise ValueError(f"no verdicts in the columns {', '.join(rows[0])}; name the column that holds them "
                         "(correct=...), or two with counts (n=..., c=...), or c or rate and the number of samples.")
    return found


def _fits(role: str, rows: list[Row], column: str) -> bool:
    """Whether the values can play the role; the first hundred rows decide."""
    values: list[Any] = [row.get(column) for row in rows[:100]]
    if role in ("item", "group"):
        return not any(isinstance(value, (list, dict)) for value in values)
    if role == "rate":
        return all(_is_number(value) and 0 <= value <= 100 for value in values)
    if role in ("n", "c"):
        return all(isinstance(v, (int, float)) and not isinstance(v, bool) and v % 1 == 0 for v in values)
    flat = [entry for value in values for entry in (value if isinstance(value, list) else [value])]
    try:
        _ = [_flag(v) if role == "correct" else _number(v) if role == "scores" else _text(v) for v in flat]
    except ValueError:
        return False
    return True


def _items(rows: list[Row], roles: dict[str, str], samples: int | None) -> list[Row]:
    """One row an item: rows with lists or counts as they are, single verdicts gathered."""
    merged: dict[tuple[str, str], Row] = {}
    percent = "rate" in roles and max(row[roles["rate"]] for row in rows) > 1
    for i, row in enumerate(rows):
        get: Row = {role: row.get(column) for role, column in roles.items()}
        if "rate" in get:
            get["c"] = _counted_of(get["rate"] / (100 if percent else 1), int(get.get("n") or samples or 0))
        key = (str(get.get("group", "")), str(get.get("item", i)))
        new = _item(get, samples)
        old = merged.setdefault(key, new)
        if old is new or ("correct" not in roles and old == new):
            continue
        if "correct" not in roles or isinstance(get["correct"], list):
            raise ValueError(f"item {key[1]} is recorded twice, differently; name the column that tells the "
                             "recordings apart (group=...).")
        for part in ("correct", "answers", "scores"):
            if old[part] is None or new[part] is None:
                old[part] = None
            else:
                old[part].extend(new[part])
    return [{"group": group, "item": item, **_counted(row)} for (group, item), row in merged.items()]


def _counted_of(share: float, n: int) -> int:
    if abs(share * n - round(share * n)) > 0.01:
        raise ValueError(f"a share of {share:g} of {n} samples is no whole number; give the right number of samples.")
    return round(share * n)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _item(get: Row, samples: int | None) -> Row:
    if "correct" not in get:
        n = samples if samples is not None else int(get["n"])
        if not 0 <= int(get["c"]) <= n:
            raise ValueError(f"c = {get['c']} of n = {n}; correct samples cannot exceed the samples.")
        return {"taken": n, "n": n, "c": int(get["c"]), "correct": None, "answers": None, "scores": None}
    lists = {role: _listed(get[role]) if role in get else None for role in ("correct", "answers", "scores")}
    size = len(lists["correct"] or ())
    return {"correct": [_flag(v) for v in lists["correct"] or ()],
            "answers": _of(lists["answers"], size, _text), "scores": _of(lists["scores"], size, _number)}


def _of(values: list[Any] | None, size: int, read_one: Any) -> list[Any] | None:
    """The values read, or None where they are not one a sample."""
    return [read_one(v) for v in values] if values is not None and len(values) == size else None


def _counted(row: Row) -> Row:
    if "n" in row:
        return row
    scored = [flag for flag in row["correct"] if flag is not None]
    return {**row, "taken": len(row["correct"]), "n": len(scored), "c": sum(scored)}


def _note(used: int, recorded: int) -> str | None:
    left_out = f"{recorded - used} of {recorded} items left out" if used < recorded else None
    return "; ".join(filter(None, (left_out, caution(used)))) or None


def _passes(part: pl.DataFrame, k: int) -> list[float]:
    scored = part.filter(pl.col("n") >= k)
    if scored.is_empty() or k < 1:
        most = int(part["n"].to_numpy().max())
        raise SourceError(f"k = {k}: no item{_of_group(part)} has so many scored samples; the most is {most}.")
    return np.atleast_1d(np.asarray(pass_at_k(scored["n"], scored["c"], k))).tolist()


def _votes(part: pl.DataFrame, k: int) -> list[float]:
    """maj@k of the items that have an answer list with one verdict for each answer."""
    found: list[float] = []
    for answers, correct in part.select("answers", "correct").iter_rows():
        if answers is None or len(answers) < k:
            continue
        labels = merge_correct([a or None for a in answers], correct)
        verdicts = {(label, flag) for label, flag in zip(labels, correct) if label is not None}
        if len(verdicts) == len({label for label, _ in verdicts}) and all(f is not None for _, f in verdicts):
            found.append(majority_at_k(labels, correct, k))
    return found


def _bests(part: pl.DataFrame, k: int) -> list[float]:
    complete = (pl.col("n") == pl.col("taken")) & (pl.col("n") >= k)
    whole = part.filter(pl.col("scores").is_not_null() & complete)
    return [best_of_k(s, f, k) for s, f in whole.select("scores", "correct").iter_rows() if None not in s]


def _of_group(part: pl.DataFrame) -> str:
    return f" of {part['group'][0]}" if part["group"][0] else ""


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
