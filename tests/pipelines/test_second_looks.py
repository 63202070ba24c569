"""Second looks: a person's review of golds, a judge of near copies, embeddings for what words do not show."""

import json
import re

import polars as pl
import pytest
from small_ladder import Oracle, kept, numbers, recipe, rejected, row, store_of, text, write

from assay.flows import bench
from assay.pipelines import ledger, review
from assay.pipelines.curation import Refresh, refresh
from assay.pipelines.engines import Completion, Request
from assay.pipelines.errors import RecipeError
from assay.pipelines.judge import verdict_of


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


def test_a_review_goes_by_beginnings_of_ids_and_what_it_does_not_find_is_told(place, verifier):
    store = store_of(place)
    run = Refresh(store, recipe(place, "suspect_gold"), engine=Oracle({0: 0, 1: 0}), verifier=verifier)
    assert [run.run(step)["rows_out"] for step in run.steps] == [6, 4]
    run.finish()
    assert run.remarks == [f"2 golds are suspect: `assay review -s {store.path}` writes them to a file"]
    first = review.queue(store)[0].id
    told = "".join(f'[[items]]\nid = "{name}"\nverdict = "confirm"\n' for name in (first[:9], "", "typo"))
    review.file_of(store).write_text(told)
    again = Refresh(store, recipe(place, "suspect_gold"), verifier=verifier)
    assert [again.run(step)["rows_out"] for step in again.steps] == [6, 6, 5]
    assert again.remarks[:2] == [
        "review: 6 problems begin with ''; not used",
        "review: no problem begins with 'typo'; not used",
    ]
    assert again.remarks[2].startswith("1 golds are suspect")
    review.file_of(store).write_text(told + f'[[items]]\nid = "{first}"\nverdict = "drop"\n')
    with pytest.raises(RecipeError, match=f"{first} is decided twice"):
        refresh(store, recipe(place, "suspect_gold"), verifier=verifier)


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


@pytest.mark.parametrize(("said", "word"), [("yes, perhaps", None), ("no, no</think>yes", True)])
def test_a_judges_thought_that_its_prompt_opened_is_no_word(said, word):
    assert verdict_of(said, starts_in_thinking=True) is word


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
