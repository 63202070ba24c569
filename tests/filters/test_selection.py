"""Max-min fairness by hand, and a draw that depends on the seed and nothing else."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.filters import selection


def pool(**sizes: int) -> pl.DataFrame:
    rows = [(f"{group}{i}", group) for group, size in sizes.items() for i in range(size)]
    return pl.DataFrame(rows, schema={"id": pl.String, "domain": pl.String}, orient="row")


def kept(problems: pl.DataFrame, size: int, seed: int = 0, **options: str | None) -> set[str]:
    decisions = selection.decide(problems, size, seed, **options)
    assert decisions["id"].to_list() == problems["id"].to_list()
    assert (decisions["keep"] == decisions["reason"].is_null()).all()
    assert set(decisions["reason"].drop_nulls()) <= {"over_target"}
    return set(decisions.filter("keep")["id"])


def counts(names: set[str]) -> dict[str, int]:
    return {group: sum(name.startswith(group) for name in names) for group in "abc"}


def test_small_groups_are_whole_and_the_rest_is_shared():
    problems = pool(a=2, b=100, c=100)
    assert counts(kept(problems, 20)) == {"a": 2, "b": 9, "c": 9}
    assert counts(kept(problems, 3)) == {"a": 1, "b": 1, "c": 1}
    evidence = set(selection.decide(problems, 20, 0)["evidence"])
    assert evidence == {"2 of 2 taken from a", "9 of 100 taken from b", "9 of 100 taken from c"}


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.integers(0, 30), st.integers(0, 5))
def test_size_is_met_and_no_group_could_be_served_better(sizes, size, seed):
    problems = pool(a=sizes[0], b=sizes[1], c=sizes[2])
    taken = counts(kept(problems, size, seed))
    assert sum(taken.values()) == min(size, sum(sizes))
    for group, available in zip("abc", sizes):
        if taken[group] < available:
            assert taken[group] >= max(taken.values()) - 1


def test_same_seed_same_choice_whatever_the_order():
    problems = pool(a=50, b=50)
    assert kept(problems, 20) == kept(problems.sample(fraction=1, shuffle=True, seed=3), 20)
    assert kept(problems, 20) != kept(problems, 20, seed=1)


def test_new_problems_change_few_of_the_old():
    before = kept(pool(a=100, b=100), 100)
    after = kept(pool(a=110, b=100), 100)
    assert len(before - after) <= 10


def test_without_groups_and_null_groups():
    problems = pool(a=5, b=5).with_columns(domain=pl.when(pl.col("domain") == "a").then(pl.lit("a")))
    assert counts(kept(problems, 4)) == {"a": 2, "b": 2, "c": 0}
    assert len(kept(problems, 4, by=None)) == 4
    assert len(kept(problems, 99)) == 10
    assert kept(problems, 0) == set()
    assert selection.decide(problems.clear(), 3, 0).is_empty()


def test_refusals():
    with pytest.raises(ValueError, match="negative"):
        selection.decide(pool(a=1), -1, 0)
    with pytest.raises(ValueError, match="no column 'bucket'"):
        selection.decide(pool(a=1), 1, 0, by="bucket")


def test_combinations_are_groups():
    rows = [(f"{d}{b}{i}", d, b) for d in "ab" for b, size in (("x", 1), ("y", 30)) for i in range(size)]
    problems = pl.DataFrame(rows, schema=["id", "domain", "bucket"], orient="row")
    taken = kept(problems, 8, by=("domain", "bucket"))
    assert {name[:2] for name in taken} == {"ax", "ay", "bx", "by"}
    assert sum(name[1] == "y" for name in taken) == 6


def test_farthest_first_by_hand():
    """Three directions, the first given twice: of three, one of each."""
    vectors = np.array([[1, 0], [1, 0], [0, 1], [0.6, 0.8]], np.float32)
    problems = pl.DataFrame({"id": list("pqrs"), "domain": ["d"] * 4})
    for seed in range(6):
        assert len(kept(problems, 3, seed, vectors=vectors) & {"p", "q"}) == 1
    order = [selection._draw(0, name) for name in "pqrs"]
    first = "pqrs"[order.index(min(order))]
    farthest = {"p": "r", "q": "r", "r": "p", "s": "p"}
    assert first in kept(problems, 2, vectors=vectors)
    assert kept(problems, 2, vectors=vectors) - {first} <= set(farthest[first] + ("q" if first in "rs" else ""))
    with pytest.raises(ValueError, match="3 vectors for 4 problems"):
        selection.decide(problems, 2, 0, vectors=vectors[:3])


def test_sketches_are_near_for_like_texts_and_masked_for_numbers():
    texts = ["Ann sold 12 pears at the market", "Ann sold 99 pears at the market", "Solve the cubic in z", None]
    vectors = selection.sketches(pl.Series(texts))
    assert vectors.shape == (4, 256)
    assert vectors[0] @ vectors[1] == pytest.approx(1)
    assert abs(vectors[0] @ vectors[2]) < 0.3
    assert not vectors[3].any()
