"""Statistics, comparison and report of correctness that somebody else recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from assay.eval import recorded
from assay.eval.curves import Comparison, compare, curves, doubling, few, partial, reach
from assay.eval.report import ReportData
from assay.flows.results import save
from assay.pipelines.errors import SourceError
from assay.pipelines.hints import did_you_mean

if TYPE_CHECKING:
    from assay.pipelines.verify import Verifier

__all__ = ["Replay"]

WHERE = ["benchmark", "model"]
DIFFERENT = 64  # wrong answers of an item that are compared, each with each; mathematics takes milliseconds a pair


class Replay:
    """The recorded results of one or two files; answers that the verifier finds equal vote together.

    Args:
        columns: as `recorded.read` takes them. samples: n of every item where it was not recorded.
        against: a second file of the same items, whose models are named with its own name before them.
    """

    def __init__(self, file: Path, columns: dict[str, str] | None = None, samples: int | None = None,
                 against: Path | None = None) -> None:  # fmt: skip
        self.name = file.stem
        self.items = recorded.read(file, columns, samples)
        if against is not None:
            self.items = _both(self.items, file, recorded.read(against, columns, samples), against)
        self.items, self.by_text = _clustered(self.items)
        self.models = self.items["model"].unique(maintain_order=True).to_list()
        if not self.items["n"].sum():
            raise SourceError(f"{file}: no sample has a verdict; there is nothing to estimate.")

    def ks(self) -> list[int]:
        """Powers of two up to the largest k that nearly all items of every model allow, and that k."""
        return doubling(min(filter(None, (reach(part["n"]) for _, part in self.items.group_by(WHERE)))))

    def statistics(self, ks: Sequence[int]) -> pl.DataFrame:
        """As `curves`.

        Raises:
            SourceError: a k that no item of a model allows.
        """
        for model, most in self.items.group_by("model", maintain_order=True).agg(pl.col("n").max()).iter_rows():
            if most and max(ks) > most:
                raise SourceError(f"k = {max(ks)}: no item of {model} has so many scored samples; the most is {most}.")
        return curves(self.items, ks)

    def described(self, found: pl.DataFrame) -> str:
        """`statistics` as a table in per cent, and what to beware of."""
        taken = self.items.group_by(WHERE).agg(total=pl.len())
        share = pl.format("{} [{}, {}]", *(pl.col(name).fill_null(float("nan")).map_elements(
            lambda share: f"{100 * share:.2f}", pl.String) for name in ("estimate", "low", "high")))  # fmt: skip
        left_out = pl.when(pl.col("items") < pl.col("total")).then(pl.format("{} of {}", "items", "total"))
        named = WHERE if found["benchmark"].n_unique() > 1 else ["model"]
        rows = found.join(taken, on=WHERE, maintain_order="left").select(
            *named, "metric", "k", share.alias("per cent"), left_out.fill_null(pl.col("items")).alias("items"))
        said = [f"{model}: no sample has a verdict" for model in self.models if model not in found["model"]]
        if self.by_text:
            said.append(f"{self.by_text:,} items have over {DIFFERENT} wrong answers; these vote by their text")
        with pl.Config(tbl_rows=-1, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, fmt_str_lengths=60):
            return "\n".join([str(rows), *said, *partial(found), *few(found)])

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
        two, found = compared._asdict() if compared else {}, self.statistics(ks)
        notes = [*partial(found), *few(found, compared.difference["benchmark"].unique() if compared else ())]
        return save(ReportData({"evaluation": {"notes": notes}}, curves=found, **two), folder, self.name)

    def _model(self, name: str) -> str:
        fits = [model for model in self.models if name in model]
        if name in self.models or len(fits) == 1:
            return name if name in self.models else fits[0]
        missing = f"no such model{did_you_mean(name, self.models)}"
        told = f"{len(fits)} models have it in their names." if fits else missing
        raise SourceError(f"--between {name}: {told} Models: {', '.join(self.models[:40])}.")


def _both(own: pl.DataFrame, file: Path, other: pl.DataFrame, against: Path) -> pl.DataFrame:
    """The items of two files under names that tell the files' models apart."""
    mine, theirs = _apart(file, against)
    where, name = pl.col("benchmark"), pl.col("model")
    named = pl.when(name == against.stem).then(pl.lit(theirs)).otherwise(pl.lit(f"{theirs} ") + name)
    same = pl.when(where == against.stem).then(pl.lit(file.stem)).otherwise(where)
    other = other.with_columns(named.alias("model"), same.alias("benchmark"))
    own = own.with_columns(model=pl.when(name == file.stem).then(pl.lit(mine)).otherwise(name))
    if set(own["model"]) & set(other["model"]):
        own = own.with_columns(model=pl.lit(f"{mine} ") + name)
    return pl.concat([own, other])


def _apart(a: Path, b: Path) -> tuple[str, str]:
    """What tells two files apart: their stems, or these after the nearest folders that differ.

    Raises:
        SourceError: it is the same file.
    """
    if a.resolve() == b.resolve():
        raise SourceError(f"--against {b}: it is the same file; give another one.")
    if a.stem != b.stem:
        return a.stem, b.stem
    parts = zip(reversed(a.resolve().parts), reversed(b.resolve().parts))
    left, right = next((x, y) for x, y in parts if x != y)
    return f"{left}/{a.stem}", f"{right}/{b.stem}"


def _clustered(items: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Wrong answers of an item that the verifier finds equal, under one text; correct ones vote together anyway.

    Also how many items have so many different ones that they were left as they are.
    """
    if items["answers"].null_count() == items.height:
        return items, 0
    from assay.pipelines.verify import Verifier

    rows = items.select("answers", "correct").iter_rows()
    wrong = [[a if flag is False else None for a, flag in zip(answers or (), flags or ())] for answers, flags in rows]
    too_many = [len(set(texts)) > DIFFERENT for texts in wrong]
    with Verifier() as verifier:
        found = [answers if answers is None or skip else _one_text(verifier, answers, texts)
                 for answers, texts, skip in zip(items["answers"].to_list(), wrong, too_many)]  # fmt: skip
    return items.with_columns(pl.Series("answers", found, items.schema["answers"])), sum(too_many)


def _one_text(verifier: Verifier, answers: list[str | None], wrong: list[str | None]) -> list[str | None]:
    first: dict[int, str | None] = {}
    classes = verifier.equivalence_classes(wrong)
    return [answer if c < 0 else first.setdefault(c, answer) for answer, c in zip(answers, classes)]
