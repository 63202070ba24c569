import json
import math

import numpy as np
import pytest

from assay.pipelines.errors import AssayWarning, RecipeError
from assay.rl.curriculum import Curriculum, GroupBuffer

IDS = [f"p{i}" for i in range(70)]
RATES = [i / 69 for i in range(70)]  # p69 is the easiest


def test_easy_to_hard_opens_bucket_after_bucket():
    c = Curriculum(IDS, RATES, full_after=60, seed=1)
    assert c.open_buckets == 1
    assert min(c.sample(10)) >= 60  # only the easiest tenth of seven buckets of ten
    assert c.open_buckets == 2
    seen = [c.open_buckets]
    for _ in range(5):
        assert min(c.sample(10)) >= 70 - 10 * seen[-1]
        seen.append(c.open_buckets)
    assert seen == [2, 3, 4, 5, 6, 7]
    assert min(i for _ in range(20) for i in c.sample(20)) < 10


def test_order_none_opens_everything():
    c = Curriculum(IDS, RATES, order="none", prioritised=False)
    assert sorted(c.sample(70)) == list(range(70))


def test_without_priorities_an_epoch_visits_every_problem_once():
    c = Curriculum(IDS, RATES, order="none", prioritised=False, seed=5)
    first = [i for _ in range(7) for i in c.sample(10)]
    second = [i for _ in range(7) for i in c.sample(10)]
    assert sorted(first) == sorted(second) == list(range(70))
    assert first != second


def test_priority_is_one_minus_success_with_a_floor():
    """Draws of one: frequencies 0.9 : 0.5 : 0.05 (a solved problem keeps the floor)."""
    c = Curriculum(["a", "b", "c"], [0.1, 0.5, 1.0], order="none", seed=0)
    counts = np.bincount([c.sample(1)[0] for _ in range(6000)], minlength=3) / 6000
    assert counts == pytest.approx([0.9 / 1.45, 0.5 / 1.45, 0.05 / 1.45], abs=0.02)


def test_draws_are_distinct_until_the_window_is_empty():
    c = Curriculum(IDS, RATES, order="none")
    assert len(set(c.sample(70))) == 70
    assert sorted(Curriculum(["a", "b"], [0.5, 0.5], order="none").sample(5))[:2] == [0, 0]


def test_success_rates_decay_towards_what_is_observed():
    c = Curriculum(["a", "b", "c"], [0.5, None, math.nan], decay=0.8)
    assert c.success.tolist() == [0.5, 0.5, 0.5]
    c.update([0, 1, 2, 0], [1.0, 0.0, math.nan, 1.0])
    assert c.success.tolist() == pytest.approx([0.68, 0.4, 0.5])


@pytest.mark.parametrize("prioritised", [True, False])
def test_resume_draws_what_the_uninterrupted_run_draws(prioritised):
    def advance(c, steps):
        draws = []
        for _ in range(steps):
            drawn = c.sample(8)
            c.update(drawn, [(i % 3) / 2 for i in drawn])
            draws.append([c.ids[i] for i in drawn])
        return draws

    make = lambda: Curriculum(IDS, RATES, prioritised=prioritised, seed=9)  # noqa: E731
    straight = make()
    want = advance(straight, 20)
    first, second = make(), make()
    assert advance(first, 7) == want[:7]
    saved = json.loads(json.dumps(first.state()))
    first.sample(3)  # the saved state is a copy
    second.load(saved)
    assert advance(second, 13) == want[7:]
    assert json.dumps(second.state()) == json.dumps(straight.state())


def test_state_of_other_problems_is_refused():
    with pytest.raises(ValueError, match="other problems"):
        Curriculum(IDS, RATES).load(Curriculum(IDS[:5], RATES[:5]).state())


def test_faults_are_refused():
    for ids, rates in ((["a", "a"], [0, 0]), ([], []), (["a"], [0, 1]), (["a"], [1.5])):
        with pytest.raises(ValueError, match="curriculum"):
            Curriculum(ids, rates)
    with pytest.raises(RecipeError, match="easy_to_hard, none"):
        Curriculum(["a"], [0], order="hard_to_easy")


@pytest.mark.parametrize("rewards", [[0, 0], [1, 1], [0.5] * 4, [0.1, 0.1, math.nan], [math.nan] * 2, [1, math.nan]])
def test_constant_groups_are_dropped(rewards):
    buffer = GroupBuffer(1)
    assert not buffer.offer("g", rewards, tokens=100)
    assert len(buffer) == 0
    assert GroupBuffer(1, drop_constant=False).offer("g", rewards)


def test_batch_size_is_constant_and_surplus_waits():
    buffer = GroupBuffer(2)
    for name in "abc":
        buffer.offer(name, [0, 1])
    buffer.offer("d", [1, 1], tokens=50)
    buffer.end_round()
    assert buffer.wants == 0
    groups, tally = buffer.take()
    assert groups == ["a", "b"]
    assert (tally.offered, tally.constant, tally.unverified, tally.wasted_tokens, tally.refills) == (4, 1, 0, 50, 0)
    assert buffer.wants == 1
    buffer.offer("e", [0, 1])
    groups, tally = buffer.take()
    assert groups == ["c", "e"]
    assert tally.offered == 1


def test_all_right_data_reaches_the_cap_and_goes_on():
    buffer, rounds = GroupBuffer(4, max_refills=3), 0
    while buffer.wants:
        for _ in range(buffer.wants):
            buffer.offer("g", [1, 1])
        buffer.end_round()
        rounds += 1
    assert rounds == 4
    with pytest.warns(AssayWarning, match="0 of 4 groups after 3 refills; 16 of 16 had constant rewards"):
        groups, _ = buffer.take()
    assert groups == []
    assert buffer.wants == 4  # the next step starts afresh


def test_end_of_data_hands_out_the_surplus():
    buffer = GroupBuffer(4)
    buffer.offer("a", [0, 1])
    with pytest.warns(AssayWarning, match="1 of 4 groups"):
        assert buffer.take()[0] == ["a"]


def test_stale_groups_are_dropped_and_counted():
    buffer = GroupBuffer(1, max_refills=0)
    for version in (3, 4, 5):
        buffer.offer(version, [0, 1], version=version)
    assert buffer.discard_older(4) == 1
    groups, tally = buffer.take()
    assert groups == [4]
    assert tally.stale == 1


def test_buffer_state_is_exact():
    buffer = GroupBuffer(2)
    buffer.offer({"ids": [1, 2]}, [0, 1], version=3)
    buffer.offer({"ids": [3]}, [1, 1], tokens=7)
    buffer.end_round()
    saved = json.loads(json.dumps(buffer.state()))
    other = GroupBuffer(2)
    other.load(saved)
    assert json.loads(json.dumps(other.state())) == saved
    other.offer({"ids": [4]}, [0, 1])
    groups, tally = other.take()
    assert groups == [{"ids": [1, 2]}, {"ids": [4]}]
    assert (tally.offered, tally.constant, tally.wasted_tokens) == (3, 1, 7)
