"""Statistics, comparison and report of correctness that somebody else recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from assay.eval import recorded
from assay.eval.curves import Comparison, compare, curves
from assay.eval.intervals import caution
from assay.eval.report import ReportData
from assay.flows.results import save
from assay.pipelines.errors import SourceError
from assay.pipelines.hints import did_you_mean

__all__ = ["Replay"]


class Replay:
    """The recorded results of one or two files.

    Args:
        columns: as `recorded.read` takes them. samples: n of every item where it was not recorded.
        against: a second file of the same items, whose models are named with its own name before them.
    """

    def __init__(self, file: Path, columns: dict[str, str] | None = None, samples: int | None = None,
                 against: Path | None = None) -> None:  # fmt: skip
        self.name = file.stem
        self.items = recorded.read(file, columns, samples)
        if against is not None:
            other, name = recorded.read(against, columns, samples), pl.col("model")
            own = pl.when(name == against.stem).then(name).otherwise(pl.lit(f"{against.stem} ") + name)
            self.items = pl.concat([self.items, other.with_columns(own.alias("model"), benchmark=pl.lit(self.name))])
        self.models = self.items["model"].unique(maintain_order=True).to_list()

    def statistics(self, ks: Sequence[int]) -> pl.DataFrame:
        """As `curves`.

        Raises:
            SourceError: a k that no item of a model allows.
        """
        for model, most in self.items.group_by("model", maintain_order=True).agg(pl.col("n").max()).iter_rows():
            if min(ks) < 1 or max(ks) > most:
                raise SourceError(f"k = {max(ks)}: no item of {model} has so many scored samples; the most is {most}.")
        return curves(self.items, ks)

    def described(self, found: pl.DataFrame) -> str:
        """`statistics` as a table in per cent, and what to beware of."""
        taken = self.items.group_by("model").agg(of=pl.len())
        share = pl.format("{} [{}, {}]", *(pl.col(name).fill_null(float("nan")).map_elements(
            lambda share: f"{100 * share:.2f}", pl.String) for name in ("estimate", "low", "high")))  # fmt: skip
        left_out = pl.when(pl.col("items") < pl.col("of")).then(pl.format("{} of {}", "items", "of"))
        rows = found.join(taken, on="model", maintain_order="left").select(
            "model", "metric", "k", share.alias("per cent"), left_out.fill_null(pl.col("items")).alias("items"))
        few = caution(min(found["items"].to_list()))
        with pl.Config(tbl_rows=-1, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, fmt_str_lengths=60):
            return "\n".join([str(rows), *([f"few items: {few}"] if few else [])])

    def between(self, a: str, b: str, ks: Sequence[int]) -> Comparison:
        """`compare` of two models, named by parts of their names that no other has.

        Raises:
            SourceError: no such model, several, or nothing that can be compared.
        """
        try:
            return compare(self.items, self._model(a), self._model(b), ks)
        except ValueError as error:
            raise SourceError(f"--between {a} {b}: {error}") from error

    def write(self, ks: Sequence[int], folder: Path, compared: Comparison | None = None) -> Path:
        """The report with its numbers; returns the folder."""
        two = compared._asdict() if compared else {}
        return save(ReportData(curves=self.statistics(ks), **two), folder, self.name)

    def _model(self, name: str) -> str:
        fits = [model for model in self.models if name in model]
        if name in self.models or len(fits) == 1:
            return name if name in self.models else fits[0]
        missing = f"no such model{did_you_mean(name, self.models)}"
        told = f"{len(fits)} models have it in their names." if fits else missing
        raise SourceError(f"--between {name}: {told} Models: {', '.join(self.models[:40])}.")
