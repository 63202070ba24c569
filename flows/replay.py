"""Statistics, comparison and report of correctness that somebody else recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from assay.eval import recorded
from assay.eval.comparison import compare_pass_at_k, describe, four_way
from assay.eval.report import ReportData
from assay.flows.results import save
from assay.pipelines.errors import SourceError
from assay.pipelines.hints import did_you_mean

__all__ = ["Replay"]


class Replay:
    """The recorded results of one or two files.

    Args:
        columns: as `recorded.read` takes them. samples: n of every item where it was not recorded.
        against: a second file, whose groups are named with its own name before them.
    """

    def __init__(self, file: Path, columns: dict[str, str] | None = None, samples: int | None = None,
                 against: Path | None = None) -> None:  # fmt: skip
        self.name = file.stem
        frames = [_named(recorded.read(file, columns, samples), file.stem)]
        if against is not None:
            frames += [_named(recorded.read(against, columns, samples), against.stem, f"{against.stem} ")]
        self.results = pl.concat(frames)
        self.groups = self.results["group"].unique(maintain_order=True).to_list()

    def statistics(self, ks: Sequence[int]) -> pl.DataFrame:
        """As `recorded.replay`."""
        return recorded.replay(self.results, ks)

    def between(self, a: str, b: str, ks: Sequence[int]) -> pl.DataFrame:
        """`compare_pass_at_k` of two groups on their common items, with `benchmark, model, base` in front.

        Args:
            a, b: the groups' names, or parts of them that no other has.

        Raises:
            SourceError: no such group, or several.
        """
        names = [self._group(a), self._group(b)]
        found = compare_pass_at_k(*self._pair(*names), ks)
        who = zip(("benchmark", "model", "base"), (self.name, *names))
        return found.select(*[pl.lit(text).alias(key) for key, text in who], pl.all())

    def write(self, ks: Sequence[int], folder: Path, difference: pl.DataFrame | None = None) -> Path:
        """The report with its numbers; returns the folder."""
        found = self.statistics(ks).rename({"group": "model"}).with_columns(benchmark=pl.lit(self.name))
        parts: dict[str, Any] = {name: found.filter(pl.col("metric") == metric) for name, metric in
                 (("curves", "pass@k"), ("majority", "maj@k"), ("best", "best-of-k"))}  # fmt: skip
        table = None
        if difference is not None:
            a, b = difference["model"][0], difference["base"][0]
            cell = pl.col("solved_by").replace({"a_only": f"{a} only", "b_only": f"{b} only"})
            table = four_way(*self._pair(a, b)).with_columns(cell=cell, benchmark=pl.lit(self.name))
        return save(ReportData(difference=difference, four_way=table, **parts), folder, self.name)

    def describe(self, difference: pl.DataFrame) -> str:
        """A comparison in words."""
        first = difference.row(0, named=True)
        return "\n".join([f"{first['model']} - {first['base']}", *(f"  {line}" for line in describe(difference))])

    def _pair(self, a: str, b: str) -> tuple[Any, Any]:
        return recorded.pair(*(self.results.filter(pl.col("group") == name) for name in (a, b)))

    def _group(self, name: str) -> str:
        fits = [group for group in self.groups if name in group]
        if name in self.groups or len(fits) == 1:
            return name if name in self.groups else fits[0]
        missing = f"no such group{did_you_mean(name, self.groups)}"
        told = f"{len(fits)} groups have it in their names." if fits else missing
        raise SourceError(f"--between {name}: {told} Groups: {', '.join(self.groups[:40])}.")


def _named(frame: pl.DataFrame, file: str, before: str = "") -> pl.DataFrame:
    """Groups named by their file where the file has none of its own."""
    own = pl.lit(before) + pl.col("group")
    return frame.with_columns(group=pl.when(pl.col("group") == "").then(pl.lit(file)).otherwise(own))
