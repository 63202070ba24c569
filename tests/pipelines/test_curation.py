"""The ladder over real stores and files: what goes in, what stays, what is recorded, and what is never paid twice."""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assay.flows import bench
from assay.pipelines import curation, ledger, review, sources
from assay.pipelines import snapshot as snapshots
from assay.pipelines.curation import Refresh, back_scan, refresh
from assay.pipelines.engines import Completion, Request
from assay.pipelines.errors import EngineError, RecipeError, SourceError, StoreError
from assay.pipelines.judge import verdict_of
from assay.pipelines.recipe import RefreshRecipe, load
from assay.pipelines.store import SCHEMAS, Store
from assay.pipelines.verify import Verifier

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


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write(tmp_path / "sums.jsonl", [row(n) for n in range(6)])
    write(tmp_path / "bench.jsonl", [{"q": "Find the remainder when $17^{2024} + 5$ is divided by thirteen."}])
    return tmp_path


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=1) as verifier:
        yield verifier


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


def test_the_whole_ladder(place, verifier):
    bench = json.loads((place / "bench.jsonl").read_text())["q"]
    others = [{"q": bench, "a": "3"}, {"q": "Prove that 2 is even.", "a": "proof"}, {"q": text(6), "a": ""}, "{broken"]
    write(place / "sums.jsonl", [row(n) for n in range(6)] + others)
    engine = Oracle({0: 0, 1: 8}, direct=[2], silent=[3])
    ladder = ("format", "answer", "duplicates", "contamination", "shortcut", "difficulty", "suspect_gold", "selection")
    made = refresh(store_of(place), recipe(place, *ladder), engine=engine, verifier=verifier)
    store = store_of(place)
    assert numbers(kept(store)) == {4, 5}
    assert rejected(store) == {
        bench: ("contamination", "exact"),
        "Prove that 2 is even.": ("format", "proof"),
        text(6): ("answer", "empty"),
        None: ("parse", "unparsable_line"),
        text(0): ("difficulty", "too_hard"),
        text(1): ("difficulty", "too_easy"),
        text(2): ("shortcut", "solvable_without_cot"),
        text(3): ("difficulty", "unknown_pass_rate"),
    }
    assert [(r["filter"], r["rows_in"], r["rows_out"]) for r in made.funnel.to_dicts()] == [
        ("parse", 10, 9), ("format", 9, 8), ("answer", 8, 7), ("duplicates", 7, 7), ("contamination", 7, 6),
        ("shortcut", 6, 5), ("difficulty", 5, 2), ("suspect_gold", 2, 2), ("selection", 2, 2),
    ]  # fmt: skip
    for step in made.funnel.to_dicts():
        assert step["rows_in"] - sum(json.loads(step["reasons"]).values()) == step["rows_out"]
    columns = kept(store).select("pass_rate", "samples", "bucket", "pass_rate_model").unique().rows()
    assert columns == [(0.5, 8, "medium", "oracle-1")]
    assert made.benchmarks[0] | {"hash": ""} == {"name": "bench", "revision": None, "hash": "", "rows": 1}


def test_decisions_hold_every_filters_word_on_every_row(place, verifier):
    store = store_of(place)
    made = refresh(store, recipe(place, "format", "difficulty"), engine=Oracle({0: 0}), verifier=verifier)
    rows = store.scan("decisions").collect()
    assert set(rows["snapshot"]) == {made.id}
    assert rows.group_by("filter").len().sort("filter").rows() == [("difficulty", 6), ("format", 6), ("parse", 6)]
    hard = rows.filter(~pl.col("keep")).to_dicts()
    assert [(r["filter"], r["reason"], r["evidence"]) for r in hard] == [
        ("difficulty", "too_hard", "0/8 correct, 95% 0.00-0.26")
    ]
    text = ledger.why(store, hard[0]["problem_id"])
    assert "rejected as too_hard: 0/8 correct" in text
    assert "samples of oracle-1, think: 8: 8 wrong; answers 7 x8" in text


def test_a_new_band_calls_no_model(place, verifier):
    store, engine = store_of(place), Oracle({0: 1, 1: 7})
    refresh(store, recipe(place, "difficulty"), engine=engine, verifier=verifier)
    assert len(engine.calls) == 48
    wide = recipe(place, "difficulty", sets=["difficulty.band=[0.1, 0.9]"])
    made = refresh(store, wide, engine=engine, verifier=verifier)
    assert len(engine.calls) == 48
    assert numbers(kept(store)) == {0, 1, 2, 3, 4, 5}
    again = refresh(store, recipe(place, "difficulty"))  # neither engine nor verifier
    assert numbers(kept(store)) == {2, 3, 4, 5}
    assert (again.parent, made.recipe_hash != again.recipe_hash) == (made.id, True)
    found = ledger.diff(store, made.id, again.id)
    assert found.select("change", "before", "after").sort("after").rows() == [
        ("out", "kept, 7/8 correct, 95% 0.55-0.99", "difficulty: too_easy, 7/8 correct, 95% 0.55-0.99"),
        ("out", "kept, 1/8 correct, 95% 0.01-0.45", "difficulty: too_hard, 1/8 correct, 95% 0.01-0.45"),
    ]


def test_only_new_problems_are_added_and_sampled(place, verifier):
    store, engine = store_of(place), Oracle({})
    refresh(store, recipe(place, "difficulty"), engine=engine, verifier=verifier)
    first_seen = kept(store).sort("answer")["first_seen"].to_list()
    engine.calls.clear()
    write(place / "sums.jsonl", [row(9), *(row(n) for n in reversed(range(6)))])
    refresh(store, recipe(place, "difficulty"), engine=engine, verifier=verifier)
    assert set(engine.calls) == {"9"}
    assert store.scan("problems").collect()["id"].n_unique() == store.scan("problems").collect().height == 7
    assert kept(store).sort("answer")["first_seen"].to_list()[:6] == first_seen


def test_a_corrected_gold_is_a_new_problem(place, verifier):
    store, engine = store_of(place), Oracle({})
    write(place / "sums.jsonl", [row(n) | ({"a": "999"} if n == 0 else {}) for n in range(6)])
    refresh(store, recipe(place, "difficulty"), engine=engine, verifier=verifier)
    assert rejected(store) == {text(0): ("difficulty", "too_hard")}
    write(place / "sums.jsonl", [row(n) for n in range(6)])
    refresh(store, recipe(place, "difficulty"), engine=Oracle({}), verifier=verifier)
    assert numbers(kept(store)) == {0, 1, 2, 3, 4, 5}


def test_suspects_among_what_was_too_hard_are_queued(place, verifier):
    store = store_of(place)
    made = refresh(store, recipe(place, "difficulty", "suspect_gold"), engine=Oracle({0: 0}), verifier=verifier)
    queue = store.sql("select * from decisions where filter = 'suspect_gold' and not keep").to_dicts()
    assert [q["evidence"] for q in queue] == ['never the gold in 8 samples; "7" in 8 of them (100%)']
    assert made.funnel.row(-1) == ("suspect_gold", 5, 5, "{}")
    early = refresh(store, recipe(place, "suspect_gold", "difficulty"), engine=Oracle({0: 0}), verifier=verifier)
    assert early.funnel.rows()[1:] == [("suspect_gold", 6, 5, '{"suspect_gold": 1}'), ("difficulty", 5, 5, "{}")]


def test_adaptive_sampling_goes_on_for_the_doubtful_only(place, verifier):
    engine = Oracle({0: 2, 1: 0})
    sets = ["difficulty.adaptive=true", "difficulty.max_samples=32"]
    refresh(store_of(place), recipe(place, "difficulty", sets=sets), engine=engine, verifier=verifier)
    samples = {n: engine.calls.count(str(n)) for n in range(6)}
    assert samples == {0: 32, 1: 16, 2: 16, 3: 16, 4: 16, 5: 16}  # 4/8 is 0.20-0.80, 8/16 is 0.27-0.73
    rates = dict(kept(store_of(place)).select("answer", "samples").rows())
    assert rates == {"100": 32, "102": 16, "103": 16, "104": 16, "105": 16}


def test_the_engine_is_made_only_when_samples_are_needed(place, verifier):
    def never() -> Any:
        raise AssertionError("no filter needs samples")

    refresh(store_of(place), recipe(place, "format", "answer"), engine=never, verifier=verifier)
    made: list[Oracle] = []

    def once() -> Any:
        made.append(Oracle({}))
        return made[-1]

    refresh(store_of(place), recipe(place, "shortcut", "difficulty"), engine=once, verifier=verifier)
    assert len(made) == 1


def test_an_empty_pool_names_filter_reasons_and_remedy_and_keeps_the_ledger(place, verifier):
    store = store_of(place)
    engine = Oracle(dict.fromkeys(range(5), 0) | {5: 8})
    with pytest.raises(SourceError) as caught:
        refresh(store, recipe(place, "format", "difficulty"), engine=engine, verifier=verifier)
    message = str(caught.value)
    assert "filter 'difficulty' left nothing of 6 problems: too_hard 5, too_easy 1" in message
    assert "Widen band in [difficulty]" in message
    name = store.scan("snapshots").collect()["id"].item()
    assert name in message
    assert ledger.funnel(store, name).rows()[-1] == ("difficulty", 6, 0, '{"too_hard": 5, "too_easy": 1}')
    assert ledger.standing(store, name)["kept"].sum() == 0
    with pytest.raises(StoreError, match="no snapshot yet"):
        snapshots.find(store)
    made = refresh(store, recipe(place, "difficulty", sets=["difficulty.band=[0, 1]"]))
    assert made.funnel["rows_out"][-1] == 6


def test_without_evidence_a_rate_is_unknown(place):
    with pytest.raises(SourceError, match="unknown_pass_rate 6"):
        refresh(store_of(place), recipe(place, "difficulty"))
    kept_anyway = recipe(place, "difficulty", sets=["difficulty.unknown=keep"])
    refresh(store_of(place), kept_anyway)
    assert kept(store_of(place))["pass_rate"].to_list() == [None] * 6


def test_recorded_samples_of_two_models_are_not_pooled(place):
    store = store_of(place)
    refresh(store, recipe(place, "format"))
    name = store.scan("problems").collect()["id"][0]
    rows = [{"key": m, "problem_id": name, "model": m, "mode": "think", "sample": 0} for m in ("a", "b")]
    store.append("generations", pl.DataFrame(rows, schema=SCHEMAS["generations"]))
    with pytest.raises(EngineError, match="2 models"):
        refresh(store, recipe(place, "difficulty"))


def test_reformulated_problems_travel_on_as_open_ones(place):
    question = "What is the sum of the first twelve odd numbers?"
    write(place / "sums.jsonl", [row(0), {"q": f"{question}\n(A) 121\n(B) 144\n(C) 169\n(D) 100", "a": "B"}])
    refresh(store_of(place), recipe(place, "format", sets=["format.multiple_choice=reformulate"]))
    rows = {r["answer"]: r["problem"] for r in kept(store_of(place)).to_dicts()}
    assert rows["144"].strip() == question


def test_a_repeated_file_is_sampled_once_and_both_counts_are_reported(place, verifier):
    write(place / "sums.jsonl", [row(n) for n in range(6)] * 100)
    write(place / "more.jsonl", [row(0) | {"q": text(0).upper()}, row(7)])
    with (place / "recipe.toml").open("w") as file:
        file.write(RECIPE.format(ladder='["duplicates", "difficulty"]'))
        file.write('[[sources]]\nname = "more"\npath = "more.jsonl"\nproblem = "q"\nanswer = "a"\n')
    store, engine = store_of(place), Oracle({})
    made = refresh(store, load(place / "recipe.toml", RefreshRecipe), engine=engine, verifier=verifier)
    assert made.funnel.rows()[1] == ("duplicates", 602, 7, '{"exact_duplicate": 595}')
    assert len(engine.calls) == 7 * 8
    rows = {r["answer"]: (r["source"], r["sources"], r["copies"]) for r in kept(store).to_dicts()}
    assert rows["100"] == ("sums", ["sums", "more"], 100)
    assert rows["101"] == ("sums", ["sums"], 99)
    assert rows["107"] == ("more", ["more"], 0)
    assert pl.read_parquet(snapshots.folder_of(store, made.id) / "rejected/train.parquet").height == 595


def test_selection_by_bucket_and_without_a_size(place, verifier):
    sets = ["selection.balance=bucket", "selection.size=2"]
    store, engine = store_of(place), Oracle({0: 2})
    refresh(store, recipe(place, "difficulty", "selection", sets=sets), engine=engine, verifier=verifier)
    assert kept(store)["bucket"].sort().to_list() == ["hard", "medium"]
    refresh(store, recipe(place, "difficulty", "selection"))
    assert kept(store).height == 6


def test_a_benchmark_added_later_is_looked_for_in_old_snapshots(place):
    store = store_of(place)
    old = refresh(store, recipe(place, "contamination"))
    assert kept(store).height == 6
    write(place / "bench.jsonl", [{"q": text(3)}])
    new = refresh(store, recipe(place, "contamination"))
    assert numbers(kept(store)) == {0, 1, 2, 4, 5}
    card = (snapshots.folder_of(store, new.id) / "README.md").read_text()
    assert f"| {old.id} | exact | 1 |" in card
    contaminated = kept(store, old.id).filter(pl.col("answer") == "103")["id"].item()
    assert "back_scan     rejected as exact" in ledger.why(store, contaminated)
    index, benchmarks = curation.benchmark_index(recipe(place, "contamination"))
    before = store.scan("decisions").collect().height
    assert back_scan(store, index, benchmarks)["problem_id"].to_list() == [contaminated]
    assert store.scan("decisions").collect().height == before  # recorded once


def test_the_steps_can_be_run_one_by_one(place):
    store = store_of(place)
    run = Refresh(store, recipe(place, "format", "answer"))
    assert run.steps == ("parse", "format", "answer")
    assert [run.run(step)["rows_out"] for step in run.steps] == [6, 6, 6]
    assert run.finish().id == snapshots.find(store) == run.id


def test_two_refreshes_of_one_store_do_not_mix(place):
    store = store_of(place)
    with store.lock("refresh"), pytest.raises(StoreError, match="held by"):
        refresh(store, recipe(place, "format"))


def test_a_review_repairs_confirms_and_drops_without_a_new_sample(place, verifier):
    store, ladder = store_of(place), ("suspect_gold", "difficulty")
    write(place / "sums.jsonl", [row(n) | ({"a": "999"} if n < 3 else {}) for n in range(6)])
    engine = Oracle(dict.fromkeys(range(3), 8))
    refresh(store, recipe(place, *ladder), engine=engine, verifier=verifier)
    assert review.write(store) == (store.path / "review.toml", 3, 3)
    items = {int(item.answers.split()[0]) - 100: item for item in review.queue(store)}
    assert (items[0].gold, items[0].answers) == ("999", "100 x8")
    assert '"100" in 8 of them' in items[0].evidence
    file = review.file_of(store).read_text()
    for n, verdict in enumerate(['"repair"\ngold = "100"', '"confirm"', '"drop"']):
        head = f'id = "{items[n].id}"\n'
        before, _, after = file.partition(head)
        old = 'verdict = ""\ngold = "999"' if n == 0 else 'verdict = ""'
        file = before + head + after.replace(old, f"verdict = {verdict}", 1)
    review.file_of(store).write_text(file)
    engine.calls.clear()
    made = refresh(store, recipe(place, *ladder, sets=["difficulty.band=[0.2, 1.0]"]), engine=engine, verifier=verifier)
    assert engine.calls == []
    assert made.funnel.rows()[1] == ("review", 6, 5, '{"dropped_in_review": 1}')
    golds = dict(kept(store).select("id", "answer").iter_rows())
    assert (golds[items[0].id], set(golds.values())) == ("100", {"100", "103", "104", "105"})
    assert rejected(store)[text(1)] == ("difficulty", "too_hard")  # confirmed: hard, no longer suspect
    assert 'review        kept: gold "999" repaired to "100"' in ledger.why(store, items[0].id)
    assert review.write(store)[1:] == (0, 0)
    assert review.file_of(store).read_text() == file


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('verdict = "maybe"', "One of: , repair, confirm, drop"),
        ('verdict = "repair"', "has no gold"),
        ('verdict = "drop"\n[[items]]\nid = "x"\nverdict = "confirm"', "x is decided twice"),
    ],
)
def test_a_review_that_cannot_be_obeyed_is_refused(place, lines, said):
    store = store_of(place)
    review.file_of(store).write_text(f'[[items]]\nid = "x"\n{lines}\n')
    with pytest.raises(RecipeError, match=said):
        refresh(store, recipe(place, "format"))


def test_what_a_weaker_model_solves_and_the_own_never_does_is_suspect_and_rates_stand_side_by_side(place, verifier):
    store, ladder = store_of(place), ("difficulty", "suspect_gold")
    weak = Oracle({0: 8})
    weak.fingerprint = "weak-1"
    refresh(store, recipe(place, *ladder), engine=weak, verifier=verifier)
    strong = Oracle({0: 0, 1: 6})
    strong.wrong = iter(range(7_000, 8_000))  # never twice the same, so no agreement with itself
    made = refresh(store, recipe(place, *ladder), engine=strong, verifier=verifier)
    queued = store.scan("decisions").filter(pl.col("filter") == "suspect_gold", ~pl.col("keep")).collect()
    assert queued["evidence"].to_list() == ["strong model 0/8 correct, weak model 8/8"]
    assert queued["snapshot"].to_list() == [made.id]
    rates = {r["answer"]: (r["pass_rate"], r["other_rates"]) for r in kept(store).to_dicts()}
    assert rates["101"] == (0.75, [{"model": "weak-1", "correct": 4, "wrong": 4, "pass_rate": 0.5}])


class Judge(Oracle):
    """Says what `words` holds for the problem that it is asked about."""

    def __init__(self, words: dict[int, str]) -> None:
        super().__init__({})
        self.words = words

    def _answer(self, request: Request) -> Completion:
        prompt = "".join(map(chr, request.prompt_ids))
        n = int(re.search(r"Problem 1:\n.*had (\d+)", prompt)[1]) - 60  # type: ignore[index]
        self.calls.append(str(n))
        return Completion(request.key, [1], [0.0], self.words[n], "stop", 0.1)


STORIES = (
    "Farmer Lindqvist had 60 ripe pears in {}, gave three of every ten to {} kitchen and cooked the others for {}.",
    "The ferry to Oland had 61 seats on its {} deck, and on {} two thirds of the lower deck were taken by {}.",
    "A locksmith had 62 brass keys on {} and filed a {} into each seventh one before {}. How many are as before?",
)


def test_a_judge_clears_what_only_resembles_and_nothing_by_silence(place):
    told = [("a basket", "the school", "jam"), ("upper", "Friday", "hikers"), ("a ring", "notch", "noon")]
    retold = [("one crate", "a village", "syrup"), ("sunny", "Monday", "tourists"), ("a belt", "groove", "lunch")]
    problems = [{"q": story.format(*words), "a": str(n + 100)} for n, (story, words) in enumerate(zip(STORIES, told))]
    write(place / "sums.jsonl", problems + [row(n) for n in range(3, 6)])
    items = [story.format(*words) for story, words in zip(STORIES, retold)]
    write(place / "bench.jsonl", [{"q": item} for item in [*items, text(3)]])
    plain = refresh(store_of(place), recipe(place, "contamination"))
    assert json.loads(plain.funnel["reasons"][1]) == {"near": 3, "exact": 1}
    words = {0: "<think>The same? No, not the same: yes, it is.</think> No.", 1: "**Yes**", 2: "Hard to say."}
    engine = Judge(words)
    judged = recipe(place, "contamination", sets=["contamination.judge=true"])
    refresh(store_of(place), judged, engine=engine)
    assert (sorted(engine.calls), numbers(kept(store_of(place)))) == (["0", "1", "2"], {0, 4, 5})
    rows = store_of(place).scan("decisions").filter(pl.col("filter") == "contamination").collect().tail(6)
    said = rows.drop_nulls("evidence").select("evidence", "keep").iter_rows()
    judged_so = {json.loads(evidence).get("judge"): keep for evidence, keep in said}
    assert judged_so == {"no": True, "yes": False, "unclear": False, None: False}
    refresh(store_of(place), judged, engine=engine)
    assert len(engine.calls) == 3  # recorded


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("yes", True), ("Yes.", True), ("**TRUE**", True), ("<think>no, no</think>\nyes", True), ("No", False),
        ("The answer is: no.", False), ("", None), ("maybe", None), ("yes and no", None), ("<think>yes", None),
        ("nothing", None), ("</think>no", False),
    ],
)  # fmt: skip
def test_a_judges_word(said, word):
    assert verdict_of(said) is word


def test_embeddings_find_a_problem_told_in_other_words_and_choose_unlike_ones(place):
    """With the real all-MiniLM-L6-v2; the stages without a model see nothing."""
    cases = bench.rows_of(bench.CASES / "decontamination.jsonl")
    told = [case for case in cases if case["kind"] == "paraphrase"]
    write(place / "bench.jsonl", [{"q": item["problem"]} for item in bench.rows_of(bench.CASES / "benchmark.jsonl")])
    lone = {"q": "Name the angle in degrees at which a mirror turns a ray of light back by a right angle.", "a": "45"}
    others = [lone] + [{"q": case["problem"], "a": "1"} for case in told]
    write(place / "sums.jsonl", [row(n) for n in range(6)] + others)
    plain = refresh(store_of(place), recipe(place, "contamination"))
    assert plain.funnel["rows_out"][-1] >= 7 + len(told) - 2
    sets = ["contamination.embeddings=all-minilm-l6-v2", "selection.size=2", "selection.diversity=embeddings"]
    made = refresh(store_of(place), recipe(place, "contamination", "selection", sets=sets))
    found = json.loads(made.funnel["reasons"][1])
    assert found["embedding"] >= 0.7 * len(told)
    assert not set(rejected(store_of(place)).items()) & {(text(n), ("contamination", "embedding")) for n in range(6)}
    assert len(numbers(kept(store_of(place))) & set(range(6))) < 2  # any two of the sums are alike


def test_a_source_that_joins_later_is_scanned_too(place):
    item = json.loads((place / "bench.jsonl").read_text())["q"]
    refresh(store_of(place), recipe(place, "contamination"))
    write(place / "late.jsonl", [{"q": item, "a": "3"}, row(9)])
    late = '[[sources]]\nname = "late"\npath = "late.jsonl"\nproblem = "q"\nanswer = "a"\n'
    (place / "recipe.toml").write_text(RECIPE.format(ladder='["contamination"]') + late)
    refresh(store_of(place), load(place / "recipe.toml", RefreshRecipe))
    assert rejected(store_of(place)) == {item: ("contamination", "exact")}


def test_a_diverse_choice_by_words(place):
    same = [f"Ann has {n} pears and eats {n // 2} of them at noon. How many pears has Ann left?" for n in range(40, 52)]
    other = "A train of 200 metres crosses a bridge of 1,000 metres in one minute. Find its speed in metres a second."
    write(place / "sums.jsonl", [{"q": text, "a": str(n)} for n, text in enumerate([*same, other])])
    sets = ["selection.size=2", "selection.diversity=words", "selection.balance=domain and bucket"]
    refresh(store_of(place), recipe(place, "selection", sets=sets))
    assert other in kept(store_of(place))["problem"].to_list()


def test_an_unchanged_file_is_parsed_once_and_a_changed_one_or_declaration_anew(place, monkeypatch):
    store, read = store_of(place), []
    parse = sources.read
    monkeypatch.setattr(sources, "read", lambda table: read.append(table.name) or parse(table))
    write(place / "sums.jsonl", [row(0), "{broken"])
    for _ in range(2):
        made = refresh(store, recipe(place, "format"))
        assert made.funnel.row(0)[1:] == (2, 1, '{"unparsable_line": 1}')
    assert read == ["sums"]
    write(place / "sums.jsonl", [row(1), "{broken"])
    refresh(store, recipe(place, "format"))
    assert numbers(kept(store)) == {1}
    refresh(store, recipe(place, "format", sets=["sources.sums.license=CC0"]))
    assert (read, kept(store)["license"].to_list()) == (["sums"] * 3, ["CC0"])
