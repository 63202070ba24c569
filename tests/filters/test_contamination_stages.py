"""Contamination stages that are reported and do not drop."""

from __future__ import annotations

import polars as pl

from assay.filters.contamination import BenchmarkIndex, decide


def test_stages_that_do_not_drop_stay_in_the_evidence() -> None:
    index = BenchmarkIndex.build({"exam": ["Find the sum of 12 apples and 34 pears in the basket of 7 farmers today."]})
    rows = pl.DataFrame(
        {"id": ["a"], "problem": ["Find the sum of 15 apples and 31 pears in the basket of 9 farmers today."]}
    )
    assert decide(rows, index)["reason"].to_list() == ["number_variant"]
    kept = decide(rows, index, stages=("exact", "ngram"))
    assert kept["keep"].to_list() == [True]
    assert '"stage": "number_variant"' in kept["evidence"][0]
