import json
import random
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from assay.filters.duplicates import banding, decide, jaccards, sources_of

SOURCES = Path(__file__).parents[2].parent / "shared" / "data" / "sources"


def frame(*texts: str | None) -> pl.DataFrame:
    return pl.DataFrame(
        {"id": [f"r{i}" for i in range(len(texts))], "problem": texts}, schema_overrides={"problem": pl.String}
    )


def reasons(*texts: str | None, **options) -> list[str | None]:
    return decide(frame(*texts), **options)["reason"].to_list()


PEARS = (
    "An orchard has 120 pear trees and three times as many apple trees. How many trees are in the orchard altogether?"
)


def test_the_first_is_kept_and_named():
    out = decide(frame("Add 1 and 2.", PEARS, "add 1  and 2", PEARS.upper(), "Add 1 and 2."))
    assert out["keep"].to_list() == [True, True, False, False, False]
    assert out["reason"].to_list() == [None, None, "exact_duplicate", "exact_duplicate", "exact_duplicate"]
    assert [json.loads(e)["kept"] for e in out["evidence"].drop_nulls()] == ["r0", "r1", "r0"]
    assert out.columns == ["id", "keep", "reason", "evidence"]


def test_layout_markup_case_and_unicode_do_not_tell_problems_apart():
    same = [
        "Find $\\dfrac{1}{2} \\leq x$.",
        "FIND $\\frac12\\le x$",
        "find \\( \\frac{1} {2} ≤ x \\) .",
        "Find\n$\\frac 1 2 \\le x$.",
    ]
    assert reasons(*same) == [None] + ["exact_duplicate"] * 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Compute 12+34-5.", "Compute 12+34-6."),
        ("Compute 12+34-5.", "Compute 12-34+5."),
        ("Compute 12 + 34.", "Compute 12 * 34."),
        ("Compute (2+3)*4.", "Compute 2+(3*4)."),
        ("Compute 3.5 + 2.", "Compute 35 + 2."),
        ("Compute 5! + 2.", "Compute 5 + 2."),
        ("Find the sum of 1, 23.", "Find the sum of 12, 3."),
        (PEARS, PEARS.replace("120", "121")),
        (f"{PEARS} Say whether $a+b < c$.", f"{PEARS} Say whether $a+b > c$."),
        (f"{PEARS} Say whether it is -5.", f"{PEARS} Say whether it is 5."),
        ("Find all x in the real numbers such that x+5 < 7.", "Find all x in the real numbers such that x+5 > 7."),
        (
            "果园里有桃树120棵，梨树的棵数是桃树的3倍，梨树有多少棵？",
            "果园里有桃树120棵，梨树的棵数是桃树的4倍，梨树有多少棵？",
        ),
    ],
)
def test_other_numbers_or_operators_are_other_problems(one, other):
    assert reasons(one, other) == [None, None]


def test_hyphens_and_thousands_do_not_tell_problems_apart():
    assert reasons(f"{PEARS} Use 1,200.", f"{PEARS} Use 1200.") == [None, "exact_duplicate"]
    assert reasons(f"{PEARS} A well known riddle.", f"{PEARS} A well-known riddle.") == [None, "near_duplicate"]


CASTS = [f"A tray is 12 m long and 5 m wide. Find the {word} length of the shadow it casts at noon in June."
         for word in ("maximum", "minimum", "maximal")]  # fmt: skip


@pytest.mark.parametrize(
    ("golds", "kept"),
    [
        (["7", "3", "7"], [0, 1, 0]),
        (["7", "7", "7"], [0, 0, 0]),
        (["\\frac{1}{2}", "0.5", "$\\dfrac12$"], [0, 0, 0]),
        (["$7$", "\\boxed{7}", "so 3 + 4 is\n#### 7"], [0, 0, 0]),
        ([None, "3", "7"], [0, 0, 2]),
        (["7", None, ""], [0, 0, 0]),
        (["converges", "diverges", "a proof " * 40], [0, 1, 0]),
        ([None, None, None], [0, 0, 0]),
    ],
)
def test_near_copies_with_other_golds_are_other_problems(golds, kept):
    """Exact copies are copies whatever their golds, and go with the row that they copy."""
    answers = pl.Series([*golds, "1", "1", "1"], dtype=pl.String)
    rows = frame(*CASTS, *map(str.upper, CASTS)).with_columns(answer=answers)
    out = decide(rows)
    named = [json.loads(e)["kept"] if e else f"r{i}" for i, e in enumerate(out["evidence"])]
    assert named == [f"r{row}" for row in kept * 2]
    assert decide(rows.drop("answer"))["keep"].sum() == 1


def test_numbers_may_be_let_go():
    assert reasons(PEARS, PEARS.replace("120", "90"), "Add.", numbers=False) == [None, "near_duplicate", None]


def test_near_copies():
    edited = PEARS.replace("An orchard", "One orchard")
    asked = "Please answer the following question. " + PEARS
    out = decide(
        frame(PEARS, edited, asked, "A zoo has 120 birds and three times as many fish. How many animals are there?")
    )
    assert out["reason"].to_list() == [None, "near_duplicate", "near_duplicate", None]
    assert json.loads(out["evidence"][2]) == {"kept": "r0", "similarity": 1.0}
    assert reasons(PEARS, edited, threshold=1.0) == [None, None]


def test_clusters_join_through_their_members():
    """The third is a copy of the second, not quite of the first; the evidence says how far it is from the kept one."""
    steps = [PEARS, PEARS.replace("pear", "plum"), PEARS.replace("pear", "plum").replace("apple", "olive")]
    out = decide(frame(*steps), threshold=0.75)
    assert out["keep"].to_list() == [True, False, False]
    first, second = (json.loads(e) for e in out["evidence"].drop_nulls())
    assert (first["kept"], second["kept"]) == ("r0", "r0")
    assert second["similarity"] < 0.75 <= first["similarity"]
    assert reasons(steps[0], steps[2], threshold=0.75) == [None, None]


def test_an_exact_copy_of_a_near_copy_names_the_kept_row():
    edited = PEARS.replace("An orchard", "One orchard")
    out = decide(frame(PEARS, edited, edited.upper()))
    assert [json.loads(e)["kept"] for e in out["evidence"].drop_nulls()] == ["r0", "r0"]
    assert out["reason"].to_list() == [None, "near_duplicate", "near_duplicate"]


def test_nothing_to_compare_is_kept():
    assert reasons(None, "", "?!", None, "") == [None] * 5
    assert decide(frame()).height == 0


def test_a_threshold_is_a_similarity():
    for threshold in (0.0, 1.2):
        with pytest.raises(ValueError, match=str(threshold)):
            decide(frame("a"), threshold=threshold)


def test_jaccard_by_hand():
    sets = np.array([1, 2, 3, 2, 3, 4, 9], np.uint64)
    at = np.array([0, 3, 7, 7])
    assert jaccards(sets, at, np.array([0, 0, 2]), np.array([1, 0, 2])).tolist() == pytest.approx([2 / 5, 1, 0])


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.95])
def test_bands_find_pairs_at_the_threshold(threshold):
    bands, rows = banding(threshold)
    assert bands * rows <= 64
    assert 1 - (1 - threshold**rows) ** bands >= 0.995


def test_a_file_repeated_a_hundred_times_counts_its_copies():
    once = [f"A farmer has {n} cows and buys {n + 7} more at the market. How many cows now?" for n in range(20)]
    problems = frame(*(once * 100)).with_columns(source=pl.Series((["a"] * 20 + ["b"] * 20) * 50))
    out = decide(problems)
    assert out["keep"].sum() == 20
    kept = sources_of(problems, out)
    assert kept["id"].to_list() == [f"r{i}" for i in range(20)]
    assert kept["copies"].to_list() == [99] * 20
    assert kept["sources"].to_list() == [["a", "b"]] * 20


def test_sources_keep_the_rows_own_first():
    problems = frame(PEARS, "Add 1 and 2.", PEARS, PEARS).with_columns(source=pl.Series(["z", "y", "a", "z"]))
    assert sources_of(problems, decide(problems)).rows() == [("r0", ["z", "a"], 2), ("r1", ["y"], 0)]


NAMES = ["Ann", "Bob", "Carla", "Dmitri", "Emeka", "Farah", "Goran", "Hiro"]
PLACES = ["market", "harbour", "library", "school", "garden", "museum", "bakery", "stadium"]
THINGS = ["pears", "books", "candles", "bicycles", "stamps", "lamps", "chairs", "kites", "buttons", "shells"]
STORIES = [
    "{a} carried {n} {x} to the {p} and sold half of them before noon. How many {x} came back home with {a}?",
    "At the {p}, {a} and {b} share {n} {x} so that {b} gets {m} more. How many does each of them get?",
    "A box at the {p} holds {n} {x}. {a} fills {m} boxes in an hour and {b} only two. What is their total output?",
    "If {a} walks to the {p} at {m} kilometres per hour and the way has {n} kilometres, when will {b} see {a} arrive?",
    "The {p} orders {n} {x} every week and throws away {m} percent of them. How many {x} are used in a year by {b}?",
]


def planted(rng: random.Random) -> tuple[list[str], list[int]]:
    """Made-up problems, each with copies that are reworded in front, respaced, recased, repunctuated or misspelt."""
    texts, truth = [], []
    for story in range(1_500):
        a, b = rng.sample(NAMES, 2)
        n, m = rng.randint(12, 9_999), rng.randint(2, 11)
        words = {"a": a, "b": b, "n": n, "m": m, "x": rng.choice(THINGS), "p": rng.choice(PLACES)}
        text = rng.choice(STORIES).format(**words)
        at = rng.choice([i.start() + 2 for i in re.finditer(r"[a-z]{5,}", text)])
        prefix = rng.choice(
            ["Solve this problem: ", "Question: ", "Please think carefully. ", "Here is a math problem. "]
        )
        copies = [
            prefix + text,
            text.replace(" ", "  "),
            text.upper(),
            re.sub("[.,?]", "", text),
            text[:at] + text[at + 1 :],
        ]
        texts += [text, *rng.sample(copies, 2)]
        truth += [story] * 3
    order = rng.sample(range(len(texts)), len(texts))
    return [texts[i] for i in order], [truth[i] for i in order]


def test_planted_copies_are_found_and_little_else():
    texts, truth = planted(random.Random(7))
    out = decide(frame(*texts))
    dropped = [(i, int(json.loads(e)["kept"][1:])) for i, e in enumerate(out["evidence"]) if e]
    right = sum(truth[i] == truth[kept] for i, kept in dropped)
    assert right / len(dropped) >= 0.99
    assert right / (len(texts) - len(set(truth))) >= 0.98


def test_real_sources_with_planted_copies():
    path = SOURCES / "gsm8k_train.jsonl"
    if not path.exists():
        pytest.skip("the sources are not beside the checkout")
    texts = [json.loads(line)["question"] for line in path.read_text().splitlines()]
    copies = ["Solve the following problem. " + t.replace(". ", ".\n") for t in texts]
    variants = [re.sub(r"\d+", lambda m: str(int(m[0]) + 1), t) for t in texts if re.search(r"\d", t)]
    keep = decide(frame(*texts, *copies, *variants))["keep"]
    originals, planted_copies, others = keep[: len(texts)], keep[len(texts) : 2 * len(texts)], keep[2 * len(texts) :]
    assert originals.mean() >= 0.99
    assert planted_copies.mean() <= 0.02
    assert others.mean() >= 0.99
