"""Benchmarks as declarations: a section of a recipe, or one of `benchmarks.toml` by its name.

What is on the Hub and a copy in a file go through the same reader, `pipelines.sources.read`.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
import pickle
import random
import re
import tomllib
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import Field, model_validator

from assay.pipelines import sources
from assay.pipelines.errors import SourceError
from assay.pipelines.hints import did_you_mean
from assay.pipelines.recipe import Source

__all__ = ["Exam", "Items", "contamination", "declarations", "declared", "load"]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COMMIT = re.compile(r"[0-9a-f]{40}")
Count = Annotated[int, Field(ge=1)]


class Exam(Source):
    """A benchmark to be evaluated on; `use = "math500"` fills in what is declared under that name."""

    split: str = "test"
    """Split of the data set on the Hub or in the folder."""
    choices: tuple[str, ...] = ()
    """Fields of the wrong options beside the right one in `answer`: shuffled by the item, asked for by letter."""
    template: str = "{problem}"
    """The user's turn; `{problem}` is the problem with its options."""
    instruction: str | None = None
    """Appended after a blank line; the recipe's when not given."""
    evalplus: Literal["humaneval", "mbpp"] | None = None
    """Tasks as evalplus has them: its data set on the Hub, or in `path` a copy of that or of its release."""
    program: str | None = None
    """Tests of a program, a text with `{field}` in it that runs after the program."""
    cases: tuple[str, ...] = ()
    """Fields with lists of tests `input`, `output`, as LiveCodeBench has them, packed or not."""
    date: str | None = None
    """Field of the date an item was published."""
    since: datetime.date | None = None
    """Only items published on this day or later."""
    until: datetime.date | None = None
    """Only items published before this day."""
    samples: Count | None = None
    """Of every item; the recipe's when not given."""
    budgets: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Thinking budgets, tokens; the recipe's when not given."""

    @model_validator(mode="after")
    def _window(self) -> Exam:
        if (self.since or self.until) and self.date is None:
            raise ValueError("since and until need date, the field that holds an item's date")
        if self.kind == "code" and not (self.tests or self.program or self.cases or self.evalplus):
            raise ValueError("a benchmark of programs needs tests, program, cases or evalplus")
        return self

    def pinned(self) -> bool:
        """Whether the same is read every time: a file, or a commit on the Hub."""
        return self.hub is None or COMMIT.fullmatch(self.revision or "") is not None


@dataclass(frozen=True)
class Items:
    """The items of one benchmark: `frame` has `id, problem, answer, source, tests`; `hash` is of what was read.

    The answer of a program's item is its tests, as `code_verifier.CodeVerifier` takes them. `revision` is the commit
    of the Hub that was read, for a file what the recipe calls its version; None where it is not known.
    """

    exam: Exam
    frame: pl.DataFrame
    hash: str
    revision: str | None = None

    def version(self) -> str:
        """What was read, in words."""
        place = f"{self.exam.hub} at {self.revision or 'an unknown commit'}" if self.exam.hub else self.exam.path
        return f"{self.exam.name}: {self.frame.height:,} items of {place}, hash {self.hash[:12]}"


@cache
def declarations() -> Mapping[str, dict[str, Any]]:
    """What `benchmarks.toml` declares, by name."""
    return tomllib.loads((files("assay.eval") / "assets" / "benchmarks.toml").read_text(encoding="utf-8"))


def declared(entry: Any, given: Collection[str] = ()) -> Any:
    """An entry of a recipe with what its `use` (or the entry itself, a name) declares filled in.

    Args:
        given: keys that the recipe sets for all benchmarks, and that a declaration must not set.

    Raises:
        ValueError: no such declaration.
    """
    own = {"use": entry} if isinstance(entry, str) else entry
    if not isinstance(own, dict) or "use" not in own:
        return entry
    name = str(own["use"])
    if name not in declarations():
        known = declarations()
        raise ValueError(f"no benchmark '{name}'{did_you_mean(name, known)} Declared: {', '.join(known)}")
    elsewhere = ("hub", "revision") if "path" in own else ("revision",) if "hub" in own else ()
    found = {k: v for k, v in declarations()[name].items() if k not in (*given, *elsewhere)}
    return {"name": name, **found, **{k: v for k, v in own.items() if k != "use"}}


def load(exam: Exam, first: int | None = None) -> Items:
    """The items, from the Hub or from the file, in their order; at most the `first` so many.

    Raises:
        SourceError: as `sources.read`; no item in the window of dates.
    """
    read = _resolved(exam)
    problems = _in_window(exam, sources.read(read)[0]) if exam.evalplus is None else _evalplus(read)
    if problems.is_empty():
        raise SourceError(f"'{exam.name}': no item published from {exam.since} to {exam.until}; widen the window.")
    rows = [_asked(exam, row) for row in problems.head(first or problems.height).iter_rows(named=True)]
    schema = dict.fromkeys(("id", "problem", "answer", "source", "tests"), pl.String)
    return Items(exam, pl.DataFrame(rows, schema=schema), sources.content_hash(problems), read.revision)


def contamination(items: Collection[Items], trained: pl.Series, stages: Collection[str] | None = None) -> pl.DataFrame:
    """Which benchmark items stand in a training set, by the stages of `filters.contamination` (no embeddings).

    Args:
        trained: texts of the problems that were trained on.
        stages: those that count; all when None.

    Returns:
        `benchmark, items, contaminated, share, example`; `example` is one training problem, null where none.
    """
    from assay.filters.contamination import BenchmarkIndex

    index = BenchmarkIndex.build({i.exam.name: i.frame["problem"].to_list() for i in items})
    hits = index.hits(trained)
    hits = hits if stages is None else hits.filter(pl.col("stage").is_in(list(stages)))
    rows = []
    for i in items:
        own = hits.filter(pl.col("benchmark") == i.exam.name)
        count = own["benchmark_index"].n_unique()
        example = trained[int(own["row"][0])] if len(own) else None
        rows.append({"benchmark": i.exam.name, "items": i.frame.height, "contaminated": count,
                     "share": count / i.frame.height, "example": example})  # fmt: skip
    return pl.DataFrame(rows, schema_overrides={"example": pl.String}, infer_schema_length=None)


def _evalplus(exam: Exam) -> pl.DataFrame:
    """evalplus's tasks with the columns of a source; an id begins with the benchmark's name."""
    from assay.eval.code import evalplus_problems

    tasks = evalplus_problems(str(exam.evalplus), exam)
    empty = dict.fromkeys(("extra", "options"), pl.lit(None, pl.String))
    return tasks.select(pl.format("{} {}", pl.lit(exam.name), "id").alias("id"), "problem", "tests", answer="tests",
                        **empty)  # fmt: skip


def _resolved(exam: Exam) -> Exam:
    """With the commit that the Hub has under the revision now: what is read is what is recorded.

    A file stays as it is, and so does a data set of whose commit the Hub says nothing: the loader may have a copy.
    """
    if exam.hub is None or exam.pinned():
        return exam
    from huggingface_hub import HfApi

    with suppress(Exception):  # the loader says better what is wrong
        found = HfApi().dataset_info(exam.hub, revision=exam.revision, timeout=10)
        return exam.model_copy(update={"revision": found.sha})
    return exam


def _in_window(exam: Exam, problems: pl.DataFrame) -> pl.DataFrame:
    if exam.date is None:
        return problems
    day = datetime.date
    days = [day.fromisoformat(str(json.loads(extra).get(exam.date))[:10]) for extra in problems["extra"]]
    inside = [(exam.since or day.min) <= found < (exam.until or day.max) for found in days]
    return problems.filter(pl.Series(inside, dtype=pl.Boolean))


def _asked(exam: Exam, row: dict[str, Any]) -> dict[str, Any]:
    """An item as it is asked: options lettered, template filled, tests made."""
    extra = json.loads(row["extra"] or "{}")
    options, answer = row["options"], row["answer"]
    if exam.choices:
        options = [answer, *(str(extra[name]) for name in exam.choices)]
        random.Random(row["id"]).shuffle(options)
        answer = LETTERS[options.index(row["answer"])]
    problem = row["problem"]
    if options:
        problem += "\n\n" + "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options))
    asked = exam.template.replace("{problem}", problem)
    tests = _tests(exam, row, extra) if exam.kind == "code" else None
    return {"id": row["id"], "problem": asked, "answer": tests or answer, "source": exam.name, "tests": tests}


def _tests(exam: Exam, row: dict[str, Any], extra: dict[str, Any]) -> str | None:
    if exam.program is not None:
        fields = {**extra, "problem": row["problem"]}
        return sources.PLACEHOLDER.sub(lambda found: str(fields[found[1]]), exam.program)
    if exam.cases:
        return _examples([case for name in exam.cases for case in _cases(extra[name])], extra)
    return row["tests"]


def _examples(cases: list[dict[str, Any]], extra: dict[str, Any]) -> str:
    """Examples for standard input, or calls of the function that LiveCodeBench's metadata names."""
    if not any(case.get("testtype") == "functional" for case in cases):
        return json.dumps([{"input": case["input"], "output": case["output"]} for case in cases])
    calls = [[json.loads(line) for line in case["input"].splitlines()] for case in cases]
    name = json.loads(extra.get("metadata") or "{}").get("func_name")
    return json.dumps({"fn_name": name, "inputs": calls, "outputs": [json.loads(case["output"]) for case in cases]})


def _cases(value: Any) -> list[dict[str, Any]]:
    """A list of tests: as it is, as JSON, or packed as base64 of zlib of a pickled JSON text."""
    if not isinstance(value, str):
        return list(value)
    try:
        return list(json.loads(value))
    except json.JSONDecodeError:
        packed = zlib.decompress(base64.b64decode(value))
        return list(json.loads(_TextOnly(io.BytesIO(packed)).load()))


class _TextOnly(pickle.Unpickler):
    """Reads a pickled text; whatever would run code is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in packed tests; a text was expected")
