import numpy as np
import polars as pl
import pytest

from assay.eval.distillation import changes, table


def frame(task, n, c, **more):
    return pl.DataFrame({"task": task, "item": [str(i) for i in range(len(c))], "n": n, "c": c, **more})


def test_table_by_hand():
    before, after, teacher = [0, 0, 0, 1], [1, 1, 0, 0], [1, 1, 1, 1]
    row = table(frame("math", 1, teacher), frame("math", 1, before), frame("math", 1, after),
                trained=["math"]).row(0, named=True)
    assert (row["teacher"], row["before"], row["after"], row["gain"]) == (1.0, 0.25, 0.5, 0.25)
    assert row["gap_recovered"] == pytest.approx(0.25 / 0.75)
    assert (row["items"], row["gained"], row["lost"]) == (4, 2, 1)
    assert row["p"] == 1.0  # 2 against 1
    assert row["forgotten"] is False


def test_gap_interval_is_paired():
    # the student after is exactly halfway on every item: any resample recovers a half
    rng = np.random.default_rng(0)
    teacher, before = rng.integers(6, 9, 60), rng.integers(0, 5, 60) * 2 % 5
    before = before - (teacher - before) % 2
    before = np.maximum(before, 0)
    after = (teacher + before) / 2
    frames = (frame("m", 16, (2 * x).astype(int).tolist()) for x in (teacher, before, after))
    row = table(*frames).row(0, named=True)
    assert (row["gap_recovered"], row["gap_low"], row["gap_high"]) == pytest.approx((0.5, 0.5, 0.5))


def test_no_gap_has_no_share():
    even = table(frame("m", 4, [2] * 30), frame("m", 4, [2] * 30), frame("m", 4, [3] * 30)).row(0, named=True)
    assert even["gap_recovered"] is None
    assert even["gap_low"] is None
    noisy = table(frame("m", 1, [1, 0] * 10 + [1]), frame("m", 1, [0, 1] * 10 + [0]), frame("m", 1, [1] * 21))
    assert noisy["gap_recovered"].item() > 0
    assert noisy["gap_low"].item() is None


def test_forgetting_is_a_clear_loss_on_an_untrained_task():
    before = pl.concat([frame("math", 4, [1] * 40), frame("chat", 4, [4] * 40), frame("code", 4, [2, 3] * 20)])
    code = [3, 2] * 19 + [2, 1]  # a loss of 2 samples in 160, well within the noise
    after = pl.concat([frame("math", 4, [0] * 40), frame("chat", 4, [1, 2] * 20), frame("code", 4, code)])
    found = table(frame("math", 4, [4] * 40), before, after, trained=["math"])
    assert found.filter("forgotten")["task"].to_list() == ["chat"]
    assert found["gain"].to_list()[2] < 0
    assert found["teacher"].to_list() == [1.0, None, None]
    assert found["gap_recovered"].to_list()[1:] == [None, None]


def test_pass_at_more_than_one():
    found = table(frame("m", 4, [4]), frame("m", 4, [0]), frame("m", 4, [1]), k=2)
    assert found["after"].item() == pytest.approx(0.5)


def test_tokens_beside_the_rates():
    found = table(frame("m", 1, [1, 1]), frame("m", 1, [0, 0], tokens=[10, 20]), frame("m", 1, [1, 0], tokens=[5, 5]))
    assert found.select("teacher_tokens", "before_tokens", "after_tokens").row(0) == (None, 15.0, 5.0)


def test_changes_per_item():
    found = changes(frame("m", 2, [2, 1]), frame("m", 2, [0, 2, 1]), frame("m", 2, [1, 0, 1]))
    assert found["change"].to_list() == ["lost", "gained", "same"]  # the greatest first
    assert found["item"].to_list() == ["1", "0", "2"]
    assert str(found["after"].to_list()) == "[0.0, 0.5, 0.5]"  # not -0.0
    assert found["teacher"].to_list() == [0.5, 1.0, None]


def test_the_gain_that_these_items_would_show():
    """Of 40 items 10 are gained and 2 lost: the gain's standard error is SD / sqrt(40)."""
    before, after = [0] * 10 + [1] * 12 + [0] * 18, [1] * 10 + [0] * 2 + [1] * 10 + [0] * 18
    row = table(frame("m", 1, [1] * 40), frame("m", 1, before), frame("m", 1, after)).row(0, named=True)
    sd = np.std(np.array(after) - before, ddof=1)
    assert row["mdd"] == pytest.approx((2.0227 + 0.8514) * sd / 40**0.5, abs=1e-4)  # t with 39 df at 0.975 and 0.8
    assert row["gap_mdd"] == pytest.approx(row["mdd"] / (1 - 0.3))
    same = table(frame("m", 1, [1] * 4), frame("m", 1, [0] * 4), frame("m", 1, [1] * 4)).row(0, named=True)
    assert (same["mdd"], same["gap_mdd"]) == (None, None)


def test_other_items_are_refused():
    with pytest.raises(ValueError, match="2 items, after 3, 2 are in both"):
        changes(frame("m", 1, [1]), frame("m", 1, [0, 1]), frame("m", 1, [0, 1, 1]))
    with pytest.raises(ValueError, match="same item twice"):
        changes(frame("m", 1, [1]), pl.concat([frame("m", 1, [0])] * 2), frame("m", 1, [0]))
    with pytest.raises(ValueError, match="no column task"):
        changes(frame("m", 1, [1]), frame("m", 1, [0]).drop("task"), frame("m", 1, [0]))
    with pytest.raises(ValueError, match="no item: there is nothing to compare"):
        table(frame("m", 1, [0]), frame("m", 1, [0])[:0], frame("m", 1, [0])[:0])
