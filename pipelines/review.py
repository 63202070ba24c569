"""Suspect golds as a file that a person edits and the next refresh obeys.

    assay review --store STORE     writes STORE/review.toml, or adds to it what became suspect since
    (edit it)                      verdict = "repair" with the right gold, "confirm", or "drop"
    assay refresh RECIPE           reads it: the step `review` stands in the ledger like any filter

A repaired problem keeps its id and its samples; they are graded anew against the new gold, and nothing is sampled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import model_validator

from assay.pipelines.errors import RecipeError
from assay.pipelines.settings import Section, load
from assay.pipelines.store import Store

__all__ = ["Item", "Review", "apply", "file_of", "queue", "read", "resolve", "write"]


class Item(Section):
    """One suspect problem."""

    id: str
    """Of the problem, or a beginning that no other has."""
    verdict: Literal["", "repair", "confirm", "drop"] = ""
    """`repair`: `gold` is the right one; `confirm`: the gold is right and no longer suspect; `drop`: the problem goes.
    Empty: not decided, the filter's word stands."""
    gold: str = ""
    """The right gold of a repair; as written, the gold that is suspected."""
    source: str = ""
    """For the reader: where it comes from."""
    problem: str = ""
    """For the reader: its text."""
    evidence: str = ""
    """For the reader: what speaks against the gold."""
    answers: str = ""
    """For the reader: what the samples answered."""

    @model_validator(mode="after")
    def _whole(self) -> Item:
        if self.verdict == "repair" and not self.gold.strip():
            raise ValueError(f"problem {self.id} is to be repaired and has no gold: write it, or choose drop")
        return self


class Review(Section):
    """The file: every item that was ever suspect, decided or not."""

    items: tuple[Item, ...] = ()
    """One for each problem."""


def file_of(store: Store) -> Path:
    """Where the store's review lies, whether there is one or not."""
    return store.path / "review.toml"


def read(path: Path) -> dict[str, Item]:
    """The decided items by problem id; none where there is no file.

    Raises:
        RecipeError: no valid TOML, an unknown verdict, a repair without a gold, or a problem twice.
    """
    items = [item for item in _all(path) if item.verdict]
    decided = {item.id: item for item in items}
    if len(decided) < len(items):
        twice = next(i.id for i in items if sum(i.id == other.id for other in items) > 1)
        raise RecipeError(f"{path}: problem {twice} is decided twice; leave one of them.")
    return decided


def resolve(decided: dict[str, Item], ids: pl.Series) -> tuple[dict[str, Item], list[str]]:
    """The decided items by whole problem ids, and of those that are no problem's, or several's, what is wrong.

    Raises:
        RecipeError: two of them are one problem.
    """
    found: dict[str, Item] = {}
    odd, known = [], set(ids)
    for name, item in decided.items():
        whole = [name] if name in known else ids.filter(ids.str.starts_with(name)).to_list()
        if len(whole) != 1:
            odd.append(f"{f'{len(whole)} problems begin' if whole else 'no problem begins'} with '{name}'; not used")
        elif found.setdefault(whole[0], item) is not item:
            raise RecipeError(f"review: problem {whole[0]} is decided twice, once as '{name}'; leave one of them.")
    return found, odd


def _all(path: Path) -> tuple[Item, ...]:
    return load(path, Review).items if path.exists() else ()


def queue(store: Store) -> list[Item]:
    """What the last word of the suspect-gold filter is against, with its evidence, undecided."""
    words = store.scan("decisions").filter(pl.col("filter") == "suspect_gold")
    last = words.unique("problem_id", keep="last", maintain_order=True).filter(~pl.col("keep"))
    problems = store.scan("problems").unique("id", keep="last")
    rows = last.join(problems, left_on="problem_id", right_on="id", maintain_order="left").collect()
    answers = _answers(store, rows["problem_id"])
    return [_item(row, answers.get(row["problem_id"], "")) for row in rows.iter_rows(named=True)]


def _item(row: dict[str, Any], answers: str) -> Item:
    place = f"{row['source']}, row {row['source_key']}"
    evidence, gold = row["evidence"] or "", row["answer"] or ""
    return Item(
        id=row["problem_id"], gold=gold, source=place, problem=row["problem"], evidence=evidence, answers=answers
    )


def _answers(store: Store, ids: pl.Series) -> dict[str, str]:
    """What the samples of each problem answered, the most frequent first: "14 x6, 12 x2"."""
    keys = store.scan("generations").filter(pl.col("problem_id").is_in(ids.implode())).select("key", "problem_id")
    verdicts = store.scan("verdicts").unique("key", keep="last", maintain_order=True).drop_nulls("extracted")
    counts = keys.join(verdicts, on="key").group_by("problem_id", "extracted").agg(votes=pl.len())
    words = pl.format("{} x{}", pl.col("extracted").str.slice(0, 60), "votes")
    top = counts.sort("votes", "extracted", descending=[True, False]).group_by("problem_id", maintain_order=True)
    return dict(top.agg(words.head(4).str.join(", ")).collect().rows())


def write(store: Store, path: Path | None = None) -> tuple[Path, int, int]:
    """Adds what became suspect to the review file; nothing that a person wrote is changed.

    Returns:
        The file, how many items are new, and how many are undecided.
    """
    path = path or file_of(store)
    before = _all(path)
    known = {item.id for item in before}
    new = [item for item in queue(store) if item.id not in known]
    text = path.read_text(encoding="utf-8") if path.exists() else f"# {HELP}\n"
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text + "".join(map(_toml, new)), encoding="utf-8")
    temporary.replace(path)
    return path, len(new), len(new) + sum(not item.verdict for item in before)


HELP = 'verdict = "repair" and the right gold, "confirm" or "drop"; empty: not decided. The next refresh reads it.'


def _toml(item: Item) -> str:
    lines = (f"{name} = {_quoted(value)}" for name, value in item.model_dump().items())
    return "\n[[items]]\n" + "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's, which leaves one control character as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def apply(problems: pl.DataFrame, decided: dict[str, Item]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The problems with their repaired golds, and the step's decisions; the reason of a drop is dropped_in_review."""
    golds = {name: item.gold for name, item in decided.items() if item.verdict == "repair"}
    verdicts = {name: item.verdict for name, item in decided.items()}
    verdict = pl.col("id").replace_strict(verdicts, default=None, return_dtype=pl.String)
    repaired = pl.col("id").replace_strict(golds, default=None, return_dtype=pl.String)
    old = pl.col("answer").fill_null("")
    decisions = problems.select(
        "id",
        keep=verdict.ne_missing(pl.lit("drop")),
        reason=pl.when(verdict == "drop").then(pl.lit("dropped_in_review")),
        evidence=pl.when(verdict == "repair").then(pl.format('gold "{}" repaired to "{}"', old, repaired.fill_null("")))
        .when(verdict == "confirm").then(pl.lit("gold confirmed by a person")),
    )  # fmt: skip
    return problems.with_columns(answer=pl.coalesce(repaired, "answer")), decisions
