"""Ten thousand rows, half of them broken in every way we know, through the whole ladder."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from small_ladder import NAMES, Tokenizer

from assay.pipelines.curation import refresh
from assay.pipelines.engines import Completion, Request
from assay.pipelines.recipe import RefreshRecipe, load
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier

ROWS = 10_000
RECIPE = """
name = "fuzz"
store = "{store}"
[[sources]]
name = "pool"
path = "{name}.jsonl"
problem = "q"
answer = "a"
options = "o"
domain = "{{d}}"
[[benchmarks]]
name = "bench"
path = "bench.jsonl"
problem = "q"
[model]
path = "coin"
[shortcut]
samples = 2
[difficulty]
samples = 2
[selection]
diversity = "words"
balance = "domain and bucket"
"""
LADDER = ("parse", "format", "answer", "duplicates", "contamination", "shortcut", "difficulty", "suspect_gold",
          "selection")  # fmt: skip
STRANGE = [
    None, True, 7, -1.5, 1e308, [], {}, [None], [[None, [None]]], {"q": {"q": None}}, "", " ", "\x00", "\x1b[31m", "7",
    "\ud800", "a\udfffb", "\u202e123", "\ufeff", "\u0000\u0001\u0002", "NaN", "null", "1" * 5_000, "𝟙𝟚" * 50, "é" * 300,
    "(A) (B) (C)", "$" * 999, "\\frac{" * 200, "{" * 2_000, "①②③", "如图", "\n" * 3_000, ["A", None],
    {"A": "1", "B": None},
]  # fmt: skip


class Coin:
    """Right in about every second sample that thinks, by the sample's seed: whatever else is asked for."""

    name, fingerprint, max_model_len, tokenizer = "coin", "coin-1", 100_000, Tokenizer()
    busy_seconds, sampled_tokens = 1.0, 1

    def stream(self, requests: Sequence[Request]) -> Iterator[Completion]:
        for request in requests:
            prompt = "".join(map(chr, request.prompt_ids))
            wrong = prompt.endswith("<direct>") or request.seed % 2
            gold = "0" if wrong else prompt.partition("number ")[2].partition(".")[0]
            yield Completion(request.key, [1], [0.0], f"\\boxed{{{gold}}}", "stop", 0.0)


def good(n: int) -> dict[str, Any]:
    text = f"{NAMES[n % 10]} walks {n + 11} steps east and {3 * n + 2} steps north and stops at house number {n + 500}."
    return {"q": f"{text} How far east is {NAMES[n % 7]} of the start?", "a": str(n + 500), "o": None, "d": f"d{n % 3}"}


def broken(rng: random.Random, n: int) -> bytes:
    row: dict[str, Any] = good(n + 100_000)
    kind = n % 8
    if kind == 0:
        del row[rng.choice(["q", "a"])]
    elif kind == 1:
        row[rng.choice(["q", "a", "o", "d"])] = rng.choice(STRANGE)
    elif kind == 2:
        row = {"q": rng.choice(STRANGE), "a": rng.choice(STRANGE), "o": rng.choice(STRANGE), "d": rng.choice(STRANGE)}
    elif kind == 3:
        return rng.choice([b"{", b"[]", b"null", b'{"q": "\xff"}', b'{"q": NaN,}', b"[" * 9_000, b'"text"', b"\x00"])
    elif kind == 4:
        row["q"] += "".join(chr(rng.randrange(1, 0xD800)) for _ in range(60))
    elif kind == 5:
        row["o"] = [rng.choice(STRANGE) for _ in range(rng.randrange(40))]
    elif kind == 6 and n % 800 == 6:
        row[rng.choice("qa")] = rng.choice(["(", "x ", "A. ", "\x07", "$", "1"]) * 1_000_000
    else:
        row["a"] = rng.choice(["\\boxed{", "1/0", "10**10**10", "nan", "١٢", "1e999", "{}" * 40, "x=" * 30, "B", "Yes"])
    return json.dumps(row).encode()


def lines(names: Sequence[str], rng: random.Random) -> list[bytes]:
    whole = [json.dumps(good(n)).encode() for n in range(ROWS // 2)]
    rows = whole + ([broken(rng, n) for n in range(ROWS // 2)] if "broken" in names else [])
    rng.shuffle(rows)
    return rows


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Store, list[dict[str, Any]]]]:
    """The store and the funnel of a refresh of the good rows alone, and of one with the broken ones among them."""
    place: Path = tmp_path_factory.mktemp("fuzz")
    (place / "bench.jsonl").write_text(json.dumps({"q": "Find the remainder of $17^{2024} + 5$ when divided by 13."}))
    found = {}
    with Verifier(workers=1, deadline_s=1.0) as verifier:
        for name in ("good", "broken"):
            (place / f"{name}.jsonl").write_bytes(b"\n".join(lines([name], random.Random(5))))
            (place / "recipe.toml").write_text(RECIPE.format(store=f"store-{name}", name=name))
            store = Store.open(place / f"store-{name}", create=True)
            recipe = load(place / "recipe.toml", RefreshRecipe)
            made = refresh(store, recipe, engine=Coin(), verifier=verifier)  # type: ignore[arg-type]
            found[name] = (store, made.funnel.to_dicts())
    return found


def test_every_row_is_in_the_ledger_with_its_reason(ledgers) -> None:
    store, funnel = ledgers["broken"]
    parsed = store.scan("decisions").filter(pl.col("filter") == "parse").collect()
    assert funnel[0]["rows_in"] == ROWS == len(parsed)
    assert parsed["problem_id"].n_unique() == ROWS
    decided = store.scan("decisions").collect()
    assert not decided.select("problem_id", "filter").is_duplicated().any()
    assert (decided["reason"].is_null() == decided["keep"]).all()
    rejected = decided.filter(~pl.col("keep"))
    assert dict(decided["filter"].value_counts().iter_rows()) == {
        step["filter"]: step["rows_in"] + (hard if step["filter"] == "suspect_gold" else 0)  # which looks at those, too
        for hard in [len(rejected.filter(pl.col("reason") == "too_hard"))]
        for step in funnel
    }
    assert rejected["evidence"].str.len_bytes().max() < 10_000
    fields = ("line", "problem", "answer", "options")
    assert {f"unparsable_{field}" for field in fields} <= set(rejected["reason"])
    assert {"empty", "true_false", "letter_without_options", "prose"} & set(rejected["reason"])
    assert tuple(step["filter"] for step in funnel) == LADDER
    assert ROWS // 2 < funnel[-4]["rows_in"] < ROWS  # broken ones, too, are sampled and graded
    assert funnel[-1]["rows_out"] > 0


def test_the_good_rows_fare_as_they_do_alone(ledgers) -> None:
    def words(name: str) -> pl.DataFrame:
        rows = ledgers[name][0].scan("decisions").filter(pl.col("filter") != "selection")  # which is of the whole pool
        return rows.select("problem_id", "filter", "keep", "reason", "evidence").sort("problem_id", "filter").collect()

    alone, among = words("good"), words("broken")
    assert set(alone["filter"]) == set(LADDER) - {"selection"}
    assert alone.filter(~pl.col("filter").is_in(["difficulty", "suspect_gold"]))["keep"].all()
    assert alone["problem_id"].n_unique() == ROWS // 2
    assert among.filter(pl.col("problem_id").is_in(alone["problem_id"].implode())).equals(alone)
