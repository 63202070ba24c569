"""A small ladder: six problems, an engine whose skill is known, and what a refresh of them left."""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from assay.pipelines import snapshot as snapshots
from assay.pipelines.engines import Completion, Request
from assay.pipelines.recipe import RefreshRecipe, load
from assay.pipelines.store import Store

RECIPE = """
name = "tiny"
store = "store"
ladder = {ladder}
[[sources]]
name = "sums"
path = "sums.jsonl"
problem = "q"
answer = "a"
license = "MIT"
[[benchmarks]]
name = "bench"
path = "bench.jsonl"
problem = "q"
[model]
path = "m"
engine = "replay"
"""
NAMES = ("Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal", "Ida", "Jo")
THINGS = ("apples", "marbles", "tickets", "coins")


def text(n: int) -> str:
    """Problem n: no two alike beyond their frame; its gold is 100 + n."""
    who, what = NAMES[n % 10], THINGS[n % 4]
    return f"On day {n * 7 + 3} {who} had {60 + n} {what} and a neighbour brought 40 {what} more. How many has {who}?"


def row(n: int) -> dict[str, Any]:
    return {"q": text(n), "a": str(100 + n)}


class Tokenizer:
    """Characters as tokens, and a template with a mark for direct mode."""

    chat_template = "{{ messages }}{{ enable_thinking }}"
    name_or_path = "characters"

    def apply_chat_template(self, messages: list[dict[str, str]], enable_thinking: bool, **_: object) -> str:
        return messages[0]["content"] + ("" if enable_thinking else "<direct>")

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


class Oracle:
    """An engine whose model is right in sample i of problem n with think mode iff i % 8 < skill[n]."""

    name, fingerprint, max_model_len = "oracle", "oracle-1", 10_000
    tokenizer: Any = Tokenizer()

    def __init__(self, skill: dict[int, int], direct: Sequence[int] = (), silent: Sequence[int] = ()) -> None:
        self.skill, self.direct, self.silent = skill, direct, silent
        self.calls: list[str] = []
        self.seen: dict[tuple[str, bool], int] = {}
        self.wrong: Iterator[int] = itertools.repeat(7)

    def stream(self, requests: Sequence[Request]) -> Iterator[Completion]:
        yield from (self._answer(request) for request in requests)

    def _answer(self, request: Request) -> Completion:
        prompt = "".join(map(chr, request.prompt_ids))
        match = re.search(r"had (\d+)", prompt)
        assert match
        n, direct = int(match[1]) - 60, prompt.endswith("<direct>")
        self.calls.append(f"{n}{'d' if direct else ''}")
        i = self.seen[n, direct] = self.seen.get((n, direct), -1) + 1  # type: ignore[index]
        right = n in self.direct if direct else i % 8 < self.skill.get(n, 4)
        if n in self.silent and not direct:
            return Completion(request.key, [1], [0.0], "so far", "length", 0.1)
        return Completion(request.key, [1], [0.0], f"\\boxed{{{100 + n if right else next(self.wrong)}}}", "stop", 0.1)


def write(path: Path, rows: list[Any]) -> None:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")


def recipe(place: Path, *ladder: str, sets: Sequence[str] = ()) -> RefreshRecipe:
    (place / "recipe.toml").write_text(RECIPE.format(ladder=json.dumps(ladder)))
    return load(place / "recipe.toml", RefreshRecipe, sets)


def store_of(place: Path) -> Store:
    return Store.open(place / "store", create=True)


def kept(store: Store, name: str = "latest") -> pl.DataFrame:
    return pl.read_parquet(snapshots.folder_of(store, snapshots.find(store, name)) / "data/train.parquet")


def rejected(store: Store) -> dict[str, tuple[str, str]]:
    rows = pl.read_parquet(snapshots.folder_of(store, snapshots.find(store)) / "rejected/train.parquet")
    return {row["problem"]: (row["filter"], row["reason"]) for row in rows.to_dicts()}


def numbers(frame: pl.DataFrame) -> set[int]:
    return {int(answer) - 100 for answer in frame["answer"]}
