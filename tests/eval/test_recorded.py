import json
from pathlib import Path

import polars as pl
import pytest

from assay.eval.curves import compare, curves, doubling, headline, partial, reach
from assay.eval.recorded import read
from assay.eval.voting import majority_at_k, merge_correct
from assay.flows.replay import Replay
from assay.pipelines.errors import SourceError

REPLAY = Path(__file__).parents[2].parent / "shared" / "data" / "replay"


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_lists_an_item(tmp_path):
    path = lines(tmp_path / "r.jsonl", [
        {"idx": 7, "score": [True, False, None], "pred": ["4", "5", None], "pred_score": [[0.5], [0.1], [0.2]]},
        {"idx": 8, "score": [False, False, False], "pred": ["1", "1", "1"], "pred_score": [[0.5], [0.1], [0.2]]}])
    found = read(path)
    assert found["item"].to_list() == ["7", "8"]
    assert found.select("taken", "n", "c").rows() == [(3, 2, 1), (3, 3, 0)]
    assert found["answers"].to_list()[0] == ["4", "5", None]
    assert found["scores"].to_list()[1] == [0.5, 0.1, 0.2]


def test_one_row_a_sample(tmp_path):
    frame = pl.DataFrame({"problem_id": ["a", "b", "a", "a"], "status": ["correct", "wrong", "truncated", "wrong"],
                          "extracted": ["1", "2", None, "3"], "model": "m"})
    frame.write_parquet(tmp_path / "r.parquet")
    found = read(tmp_path / "r.parquet")
    assert found.select("model", "item", "taken", "n", "c").rows() == [("m", "a", 3, 2, 1), ("m", "b", 1, 1, 0)]
    assert found["answers"].to_list() == [["1", None, "3"], ["2"]]


def test_counts_repeated_in_a_long_table_are_one_item(tmp_path):
    frame = pl.DataFrame({"Model": ["x", "x", "y"], "Problem Idx": [1, 1, 1], "Num. Samples Total": [4, 4, 4],
                          "Num. Samples Correct": [1.0, 1.0, 3.0], "Score": [0.25, 1.0, 0.75]})
    frame.write_parquet(tmp_path / "r.parquet")
    assert read(tmp_path / "r.parquet").select("model", "item", "n", "c").rows() == [("x", "1", 4, 1), ("y", "1", 4, 3)]


def test_a_count_called_correct_is_a_count(tmp_path):
    path = lines(tmp_path / "r.jsonl", [{"id": "a", "n": 8, "correct": 1}, {"id": "b", "n": 8, "correct": 0}])
    assert read(path).select("n", "c").rows() == [(8, 1), (8, 0)]
    path = lines(tmp_path / "s.jsonl", [{"id": "a", "n": 8, "c": 3, "passed": True}])
    assert read(path).select("n", "c").rows() == [(8, 3)]


def test_mappings_inside_a_larger_object(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"raw": {"a": ["x", "y"], "b": ["z", "w"]}, "pass@1": 25.0,
                                "scored": {"a": [True, False], "b": [False, False]}}))
    assert read(path).select("item", "n", "c").rows() == [("a", 2, 1), ("b", 2, 0)]
    path.write_text(json.dumps({"a": 3, "b": 0}))
    assert read(path, samples=10).select("item", "n", "c").rows() == [("a", 10, 3), ("b", 10, 0)]
    path.write_text(json.dumps({"a": {"passed": [1, 1]}, "b": {"passed": [0, 1]}}))
    assert read(path).select("item", "c").rows() == [("a", 2), ("b", 1)]


def test_named_columns(tmp_path):
    path = lines(tmp_path / "r.jsonl", [{"question": "q", "ok_first": [1, 0], "ok_last": [1, 1]}])
    assert read(path, {"item": "question", "correct": "ok_last"}).select("item", "c").rows() == [("q", 2)]


def test_replay_by_hand(tmp_path):
    path = lines(tmp_path / "r.jsonl", [
        {"id": "a", "correct": [1, 1, 0], "answers": ["1/2", "0.5", "3"], "scores": [0.1, 0.2, 0.9]},
        {"id": "b", "correct": [0, 0, 1], "answers": ["4", "4", "5"], "scores": [0.1, 0.2, 0.9]}])
    found = curves(read(path), [1, 3])
    rows = {(metric, k): estimate for metric, k, estimate in found.select("metric", "k", "estimate").rows()}
    assert rows["pass@k", 1] == pytest.approx(0.5)
    assert rows["pass@k", 3] == 1.0
    assert rows["maj@k", 3] == 0.5  # the two notations of a vote together
    assert rows["best-of-k", 3] == 0.5


def test_unscored_samples_are_left_out_and_said(tmp_path):
    path = lines(tmp_path / "r.jsonl", [{"correct": [1, 0]}] * 30 + [{"correct": [None, 1], "answers": ["1", "1"]}])
    found = curves(read(path), [1, 2])
    assert found["items"].to_list() == [31, 30, 1]  # one item has answers, and one sample of it a vote
    told = Replay(path).described(found)
    assert "30 of 31" in told
    assert "31 of 31" not in told
    assert told.endswith("1 item: no interval can be given")


def estimates(path, ks, metric):
    return curves(read(path), ks).filter(metric=metric)["estimate"].to_list()


def test_a_sample_without_a_verdict_has_no_vote_and_one_without_an_answer_wins_none(tmp_path):
    """The first item: right in 1 of 2. The second: right in 1 of 3, so a pair holds it in 2 of 3 and it wins both."""
    rows = [{"id": 1, "correct": [1, 0, None, None], "answers": ["1", "2", None, "7"]}]
    rows += [{"id": 2, "correct": [1, 0, 0], "answers": ["1", None, None]}]
    path = lines(tmp_path / "r.jsonl", rows)
    assert estimates(path, [1], "maj@k") == estimates(path, [1], "pass@k") == [pytest.approx((1 / 2 + 1 / 3) / 2)]
    assert estimates(path, [2], "maj@k") == [pytest.approx((1 / 2 + 2 / 3) / 2)]
    rows = [{"id": 1, "correct": [1, 0], "answers": ["4", "5"]}, {"id": 2, "correct": None, "answers": None}]
    assert estimates(lines(tmp_path / "n.jsonl", rows), [1, 2], "maj@k") == [0.5, 0.5]


def test_many_items_of_many_samples_are_drawn_apart(tmp_path):
    """Alike items drawn with one seed would err alike: no spread, and an interval that claims none."""
    row = {"correct": [1] * 150 + [0] * 150, "answers": ["a"] * 150 + ["b"] * 150}
    (found,) = curves(read(lines(tmp_path / "r.jsonl", [row] * 20)), [5]).filter(metric="maj@k").to_dicts()
    assert 0.001 < found["high"] - found["low"] < 0.01  # about 2 * 2.09 * 0.5 / (20 * 20,000) ** 0.5 = 0.0033
    assert found["low"] - 0.002 < 0.5 < found["high"] + 0.002


def hard_and_easy(path, hard, easy):
    """Easy items are always right; hard ones never, and one of their four samples has no verdict."""
    return lines(path, [{"correct": [None, 0, 0, 0]}] * hard + [{"correct": [1] * 4}] * easy)


def test_a_k_that_only_the_easy_items_allow_is_no_headline(tmp_path):
    path = hard_and_easy(tmp_path / "r.jsonl", 20, 20)
    found = curves(read(path), [1, 2, 4])
    assert found.select("k", "estimate", "items", "of").rows() == [(1, 0.5, 40, 40), (2, 0.5, 40, 40), (4, 1.0, 20, 40)]
    assert headline(found).select("metric", "value").rows() == [("pass@1", 0.5), ("pass@2", 0.5)]
    assert partial(found) == [
        "r, r: pass@4 is over the 20 of 40 items that have so many scored samples, and no headline figure"]
    both = pl.concat([read(path), read(path).with_columns(model=pl.lit("b"))])
    assert compare(both, "r", "b", [1, 2, 3, 4]).difference["k"].to_list() == [1, 2, 3]
    few = curves(read(hard_and_easy(tmp_path / "s.jsonl", 2, 38)), [1, 4])  # 2 of 40 may lack samples
    assert headline(few)["metric"].to_list() == ["pass@1", "pass@4"]
    assert partial(few) == []


def test_models_have_their_headline_at_the_same_k(tmp_path):
    full = read(lines(tmp_path / "full.jsonl", [{"correct": [1, 0, 0, 0]}] * 40))
    both = pl.concat([full, read(hard_and_easy(tmp_path / "r.jsonl", 20, 20))]).with_columns(benchmark=pl.lit("x"))
    found = headline(curves(both, [1, 2, 4]))
    assert found.select("model", "metric").rows() == [(m, k) for m in ("full", "r") for k in ("pass@1", "pass@2")]


def test_how_far_the_samples_reach():
    assert reach(pl.Series([0] * 5 + [3] + [8] * 19)) == 8
    assert reach(pl.Series([3] * 2 + [8] * 18)) == 3
    assert reach(pl.Series([0, 0])) == 0
    assert doubling(1) == [1]
    assert doubling(8) == [1, 2, 4, 8]
    assert doubling(10) == [1, 2, 4, 8, 10]


def test_benchmarks_of_one_file_are_not_pooled(tmp_path):
    rows = [{"benchmark": b, "id": i, "correct": right} for b, right in (("aime", 0), ("math", 1)) for i in (1, 1, 2)]
    found = read(lines(tmp_path / "r.jsonl", rows))
    assert found.select("benchmark", "item", "n", "c").rows() == [
        ("aime", "1", 2, 0), ("aime", "2", 1, 0), ("math", "1", 2, 2), ("math", "2", 1, 1)]
    named = [{"set": b, "id": 1, "correct": [1, 0]} for b in ("aime", "math")]
    assert read(lines(tmp_path / "s.jsonl", named), {"benchmark": "set"})["benchmark"].to_list() == ["aime", "math"]


def test_any_row_may_bring_a_column(tmp_path):
    rows = [{"id": 0}, {"id": 1, "correct": [1, 0], "answers": ["4", "5"]}]
    assert read(lines(tmp_path / "r.jsonl", rows)).select("item", "n", "c").rows() == [("0", 0, 0), ("1", 2, 1)]
    rows = [{"id": 1, "n": 4, "c": None}, {"id": 2, "n": 8, "c": 8}]
    assert read(lines(tmp_path / "s.jsonl", rows)).select("taken", "n", "c").rows() == [(4, 0, 0), (8, 8, 8)]
    with pytest.raises(SourceError, match="row 2 has no id"):
        read(lines(tmp_path / "t.jsonl", [{"id": 0, "correct": 1}, {"correct": 0}]))


def test_lines_are_counted_and_marks_of_unicode_are_none(tmp_path):
    (tmp_path / "r.jsonl").write_bytes(b'\xef\xbb\xbf{"id": 1, "answers": ["a\xe2\x80\xa8b"], "correct": [1]}\n')
    assert read(tmp_path / "r.jsonl")["answers"].to_list() == [["a\u2028b"]]
    (tmp_path / "s.jsonl").write_text('{"id": 1, "correct": [1]}\n\nnot json\n')
    with pytest.raises(SourceError, match=r"s\.jsonl: .*line 3: Expecting value \(column 1\) in 'not json'"):
        read(tmp_path / "s.jsonl")


@pytest.mark.parametrize(("row", "named", "said"), [
    ({"correct": [1, 0], "sc": ["x", "y"]}, {"scores": "sc"}, "scores=sc cannot be used: it holds values such as"),
    ({"correct": [1, 0], "pr": ["1"]}, {"answers": "pr"}, "answers=pr cannot be used: no item has one entry a sample"),
    ({"correct": [1, 0], "many": 2}, {"n": "many"}, "n=many cannot be used: verdicts are read, from correct"),
    ({"n": 2, "c": 1, "pr": ["1", "2"]}, {"answers": "pr"}, "answers=pr cannot be used: counts are read, from c"),
    ({"correct": [0.9, 0.1]}, {"correct": "correct"}, r"such as \[0\.9, 0\.1\]")])
def test_named_columns_that_cannot_be_used_are_said(tmp_path, row, named, said):
    with pytest.raises(SourceError, match=said):
        read(lines(tmp_path / "r.jsonl", [row] * 3), named)


def test_named_columns_count_before_found_ones(tmp_path):
    path = lines(tmp_path / "r.jsonl", [{"id": 1, "n": 4, "c": 1, "passed": True, "acc": 0.5}])
    assert read(path, {"correct": "passed"}).select("n", "c").rows() == [(1, 1)]
    assert read(path, {"rate": "acc"}).select("n", "c").rows() == [(4, 2)]
    assert read(path).select("n", "c").rows() == [(4, 1)]


def test_an_answer_both_right_and_wrong_has_no_vote(tmp_path):
    rows = [{"correct": [1, 0], "answers": ["4", "4"]}, {"correct": [1, 0], "answers": ["4", "5"]}]
    found = curves(read(lines(tmp_path / "r.jsonl", rows)), [2]).filter(pl.col("metric") == "maj@k")
    assert found.select("estimate", "items").row(0) == (0.5, 1)


def test_scores_of_unscored_samples_do_not_count(tmp_path):
    rows = [{"correct": [None, 1, 0], "scores": [9.0, 2.0, 1.0]}, {"correct": [1, 0, 0], "scores": [1.0, None, 0.0]}]
    found = curves(read(lines(tmp_path / "r.jsonl", rows)), [2]).filter(metric="best-of-k")
    assert found.select("estimate", "items").row(0) == (1.0, 1)  # the second item lacks a score


def test_pairs_join_by_item(tmp_path):
    a = read(lines(tmp_path / "a.jsonl", [{"id": "x", "correct": [1, 1]}, {"id": "y", "correct": [0, None]}]))
    b = read(lines(tmp_path / "b.jsonl", [{"id": "y", "correct": [1, 1]}, {"id": "x", "correct": [0, 1]}]))
    b = b.with_columns(benchmark=pl.lit("a"))
    found = compare(pl.concat([a, b]), "a", "b", [1])
    assert found.difference.select("benchmark", "model", "base", "a", "b").row(0) == ("a", "a", "b", 0.5, 0.75)
    assert found.four_way["cell"].to_list() == ["both", "a only", "b only", "neither"]
    assert found.four_way["items"].to_list() == [0.5, 0.5, 1, 0]
    with pytest.raises(ValueError, match="nothing to compare"):
        compare(pl.concat([a, b.with_columns(item=pl.lit("z"))]), "a", "b", [1])


def test_items_of_fewer_samples_than_k_are_in_no_estimate_at_k(tmp_path):
    rows = [{"correct": [1], "answers": ["4"], "scores": [1.0]},
            {"correct": [0, 1], "answers": ["5", "4"], "scores": [2.0, 1.0]}]  # fmt: skip
    found = curves(read(lines(tmp_path / "r.jsonl", rows)), [1, 2]).sort("metric", "k")
    assert found.select("metric", "k", "estimate", "items").rows() == [
        ("best-of-k", 1, 0.75, 2), ("best-of-k", 2, 0.0, 1), ("maj@k", 1, 0.75, 2), ("maj@k", 2, 0.5, 1),
        ("pass@k", 1, 0.75, 2), ("pass@k", 2, 1.0, 1)]  # fmt: skip


def test_headline_numbers_are_the_first_and_last_of_a_curve(tmp_path):
    rows = [{"correct": [1, 0], "answers": ["4", "4"]}, {"correct": [1, 0], "answers": ["4", "5"], "scores": [1, 2]}]
    found = headline(curves(read(lines(tmp_path / "r.jsonl", rows)), [1, 2]))
    assert found.select("metric", "value").rows() == [("pass@1", 0.5), ("pass@2", 1.0), ("maj@2", 0.5)]


def test_faults_name_the_file_and_the_remedy(tmp_path):
    lines(tmp_path / "right.jsonl", [{}])
    with pytest.raises(SourceError, match="near it"):
        read(tmp_path / "rigth.jsonl")
    with pytest.raises(SourceError, match=r"columns prompt; name the column .*correct="):
        read(lines(tmp_path / "r.jsonl", [{"prompt": "q"}]))
    with pytest.raises(SourceError, match="no role is called gold"):
        read(tmp_path / "r.jsonl", {"gold": "prompt"})
    with pytest.raises(SourceError, match="no column nope; it has prompt"):
        read(tmp_path / "r.jsonl", {"correct": "nope"})
    with pytest.raises(SourceError, match="recorded twice"):
        read(lines(tmp_path / "r.jsonl", [{"id": 1, "correct": [1]}, {"id": 1, "correct": [0]}]))
    with pytest.raises(SourceError, match="recorded twice"):
        read(lines(tmp_path / "r.jsonl", [{"id": 1, "n": 4, "c": 1}, {"id": 1, "n": 4, "c": 2}]))
    with pytest.raises(SourceError, match="c = 5 of n = 4"):
        read(lines(tmp_path / "r.jsonl", [{"id": 1, "n": 4, "c": 5}]))
    (tmp_path / "r.json").write_text("{not json")
    with pytest.raises(SourceError, match=r"r\.json: not readable"):
        read(tmp_path / "r.json")
    (tmp_path / "r.parquet").write_text("no parquet")
    with pytest.raises(SourceError, match=r"r\.parquet: not readable"):
        read(tmp_path / "r.parquet")
    with pytest.raises(SourceError, match="the most is 1"):
        Replay(lines(tmp_path / "r.jsonl", [{"correct": [1]}])).statistics([2])


@pytest.mark.skipif(not REPLAY.is_dir(), reason="recorded files are not beside the repository")
def test_recorded_files_need_no_configuration():
    qwen = curves(read(REPLAY / "qwen_math_cot_100x8.jsonl"), [1, 8])
    assert (qwen["estimate"] * 100).round(2).to_list() == [91.0, 96.0, 91.0, 92.50, 91.0, 94.0]
    monkeys = curves(read(REPLAY / "large_language_monkeys_pass_at_k.parquet"), [100])
    assert dict(zip(monkeys["model"], (monkeys["estimate"] * 100).round(2)))["Pythia 12B"] == 48.34


def test_a_vote_that_is_drawn_says_how_well():
    """300 samples an item: each of two items has the error of its own draws, and the mean a half of their norm."""
    votes, flags = ["a", "b", "c"] * 100, [True, False, False] * 100
    row = {"benchmark": "b", "model": "m", "taken": 300, "n": 300, "c": 100, "correct": flags, "answers": votes}
    items = pl.DataFrame([row | {"item": str(i)} for i in range(2)]).with_columns(scores=None)
    found = curves(items, [1, 8])
    parts = [majority_at_k(merge_correct(votes, flags), flags, 8, seed=i) for i in range(2)]
    told = found.filter(metric="maj@k", k=8).row(0, named=True)
    assert told["estimate"] == pytest.approx(sum(parts) / 2)
    assert told["drawn_error"] == pytest.approx(sum(p.standard_error**2 for p in parts) ** 0.5 / 2)
    assert found.filter(metric="pass@k")["drawn_error"].to_list() == [0.0, 0.0]
    (said,) = partial(found)
    worst = 100 * max(found["drawn_error"].to_list())
    assert said == f"b, m: maj@k is drawn, not exact; Monte-Carlo standard error up to {worst:.2f} points"
    few = items.with_columns(pl.col("correct", "answers").list.head(200))
    assert partial(curves(few, [1, 8])) == []
