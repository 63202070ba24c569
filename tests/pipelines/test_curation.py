"""The ladder over real stores and files: what goes in, what stays, what is recorded, and what is never paid twice."""

import json
from typing import Any

import polars as pl
import pytest
from small_ladder import RECIPE, Oracle, kept, numbers, recipe, rejected, row, store_of, text, write

from assay.flows.plan import describe_refresh
from assay.pipelines import curation, ledger, sources
from assay.pipelines import snapshot as snapshots
from assay.pipelines.curation import Refresh, back_scan, refresh
from assay.pipelines.errors import EngineError, SourceError, StoreError
from assay.pipelines.recipe import RefreshRecipe, load, without_model
from assay.pipelines.store import SCHEMAS


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
    whole = {"without_gold": 0, "unread": 0, "faults": ""}
    assert made.benchmarks[0] | {"hash": ""} == {"name": "bench", "revision": None, "hash": "", "rows": 1} | whole


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
    assert back_scan(store, index, benchmarks, ("exact",)).is_empty()
    assert store.scan("decisions").collect().height == before  # recorded once


def scanned(store):
    rows = store.scan("decisions").filter(pl.col("filter") == ledger.BACK_SCAN).collect()
    return [(row["snapshot"], row["reason"], json.loads(row["evidence"])["benchmark"]) for row in rows.to_dicts()]


def test_old_snapshots_are_scanned_once_for_every_benchmark_by_the_recipes_stages(place, monkeypatch):
    store, recipes = store_of(place), {}
    for name, items in (("one", [text(3)]), ("two", [text(3), text(9)]), ("like", [text(4).replace("40", "41")])):
        write(place / f"{name}.jsonl", [{"q": item} for item in items])
        recipes[name] = f'[[benchmarks]]\nname = "{name}"\npath = "{name}.jsonl"\nproblem = "q"\n'

    def run(*names, stages='["exact", "ngram"]'):
        said = RECIPE.format(ladder='["contamination"]') + "".join(recipes[name] for name in names)
        (place / "recipe.toml").write_text(f"{said}[contamination]\nstages = {stages}\n")
        refreshed = Refresh(store, load(place / "recipe.toml", RefreshRecipe))
        for step in refreshed.steps:
            refreshed.run(step)
        return refreshed.finish(), refreshed.remarks

    old, _ = run()
    _, said = run("one", "like")
    assert scanned(store) == [(old.id, "exact", "one")]  # the variant of its numbers drops nothing by this recipe
    assert said == [f"older snapshots that hold benchmark items: {old.id} (1 rows)"]
    run("one", "like", "two")
    assert scanned(store) == [(old.id, "exact", "one"), (old.id, "exact", "two")]
    parquet, read = pl.read_parquet, []
    monkeypatch.setattr(curation.pl, "read_parquet", lambda file, **more: read.append(file) or parquet(file, **more))
    _, said = run("one", "like", "two")
    assert [file for file in read if "snapshots_data" in str(file)] == []
    assert said == []
    run("one", "like", "two", stages='["exact", "ngram", "number_variant"]')
    assert (old.id, "number_variant", "like") in scanned(store)


def test_a_benchmarks_rows_are_looked_for_without_their_golds_and_the_unparsable_are_told(place):
    golds = [{"q": text(8), "g": "so #### 108"}, {"q": text(3), "g": "no gold"}, {"q": 7, "g": "#### 1"}, "{x"]
    write(place / "bench.jsonl", golds)
    sets = ["benchmarks.bench.answer=g", "benchmarks.bench.answer_pattern=#### (.*)"]
    declared = recipe(place, "contamination", sets=sets)
    run = Refresh(store_of(place), declared)
    for step in run.steps:
        run.run(step)
    made = run.finish()
    assert rejected(run.store)[text(3)] == ("contamination", "exact")
    counts = {name: made.benchmarks[0][name] for name in ("rows", "without_gold", "unread")}
    assert counts == {"rows": 2, "without_gold": 1, "unread": 2}
    assert "2 rows unparsable and NOT looked for: " in run.remarks[0]
    assert "1 rows of unparsable gold, looked for by their question; " in run.remarks[0]
    assert "field 'q' holds a number" in run.remarks[0]
    assert "benchmark  bench                       2 items" in describe_refresh(declared)
    assert run.remarks[0].partition(": ")[2] in describe_refresh(declared)
    card = (snapshots.folder_of(run.store, made.id) / "README.md").read_text()
    assert f"{made.benchmarks[0]['hash']} | 2 | 1 | 2 |" in card


def test_a_pinned_benchmark_of_another_version_is_refused(place):
    right = curation.read_benchmark(recipe(place, "contamination").benchmarks[0])[1]["hash"]
    refresh(store_of(place), recipe(place, "contamination", sets=[f"benchmarks.bench.hash={right}"]))
    with pytest.raises(SourceError, match=rf"'bench' has hash {right}, and the recipe pins 00ff"):
        refresh(store_of(place), recipe(place, "contamination", sets=["benchmarks.bench.hash='00ff'"]))


def test_guessable_golds_need_no_model_and_their_bounds_are_the_recipes(place):
    write(place / "sums.jsonl", [row(n) | ({"a": "5"} if n < 9 else {}) for n in range(12)])
    sets = ["shortcut.guess_rows=10", "shortcut.guess_p=0.1"]
    run = Refresh(store_of(place), without_model(recipe(place, "shortcut", "difficulty", sets=sets)))
    assert run.steps == ("parse", "shortcut")
    assert [run.run(step)["rows_out"] for step in run.steps] == [12, 3]
    assert run.remarks == ["without a model, shortcut looks only for golds that can be guessed"]
    for few in (["shortcut.guess_rows=13"], [*sets, "shortcut.guess_lift=0.9"], ["shortcut.guess_rows=10"]):
        refresh(store_of(place), without_model(recipe(place, "shortcut", sets=few)))
        assert kept(store_of(place)).height == (3 if few == ["shortcut.guess_rows=10"] else 12)


def test_what_was_never_solved_goes_by_the_band_and_nothing_else(place, verifier):
    engine = Oracle({0: 0, 1: 1, 2: 8})
    sets = ["difficulty.band=[0.0, 1.0]", "difficulty.inclusive=high"]
    refresh(store_of(place), recipe(place, "difficulty", sets=sets), engine=engine, verifier=verifier)
    assert rejected(store_of(place)) == {text(0): ("difficulty", "too_hard")}


def test_the_plans_most_is_the_most(place):
    adaptive = recipe(place, "difficulty", sets=["difficulty.adaptive=true", "difficulty.max_samples=64"])
    assert "384 samples at most, 0 recorded" in " ".join(describe_refresh(adaptive).split())


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


def test_a_gold_is_read_once_by_a_verifier(place, verifier, monkeypatch):
    store, asked = store_of(place), []
    read = verifier.gold_faults
    monkeypatch.setattr(verifier, "gold_faults", lambda golds: asked.append(sorted(golds)) or read(golds))
    write(place / "sums.jsonl", [row(0), row(1), row(2) | {"a": "{7"}])
    for _ in range(2):
        refresh(store, recipe(place, "answer"), verifier=verifier)
        assert (numbers(kept(store)), rejected(store)) == ({0, 1}, {text(2): ("answer", "gold_unparsable")})
    write(place / "sums.jsonl", [row(0), row(3)])
    refresh(store, recipe(place, "answer"), verifier=verifier)
    assert asked == [["100", "101", "{7"], [], ["103"]]
