"""Results on disk: the frames of a report as Parquet, its summary as JSON, and the page made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import polars as pl

from assay.eval.report import ReportData, write_report
from assay.pipelines.errors import SourceError

__all__ = ["load", "merge", "save"]

PAIRED = ("benchmark", "model", "base")
KEYS = {"curves": PAIRED[:2], "budgets": PAIRED[:2], "outcomes": PAIRED[:2], "difference": PAIRED, "four_way": PAIRED,
        "benchmarks": PAIRED[:1], "samples": ("problem_id", "model"), "steps": ("metric",)}  # fmt: skip
ONCE = ("curation", "training", "distillation")


def save(data: ReportData, folder: Path, title: str) -> Path:
    """Write `summary.json`, `frames/*.parquet` and the report into `folder`; returns it."""
    (folder / "frames").mkdir(parents=True, exist_ok=True)
    for field in fields(data):
        value = getattr(data, field.name)
        if isinstance(value, pl.DataFrame):
            value.write_parquet(folder / "frames" / f"{field.name}.parquet")
    summary = dict(data.summary or {}) | ({"band": list(data.band)} if data.band else {})
    (folder / "summary.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    write_report(data, folder, title)
    return folder


def load(folder: Path) -> ReportData:
    """What `save` wrote.

    Raises:
        SourceError: no results there.
    """
    if not (folder / "summary.json").is_file():
        raise SourceError(f"{folder}: no summary.json; give the folder of an evaluation, a training run or a demo.")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    frames = {p.stem: pl.read_parquet(p) for p in sorted((folder / "frames").glob("*.parquet"))}
    band = summary.pop("band", None)
    return ReportData(summary=summary, band=tuple(band) if band else None, **frames)


def merge(parts: list[ReportData]) -> ReportData:
    """One report of several results, beside one another: what is of another model, benchmark or run is added.

    The same model on the same items in two results: the later one's rows count. A model with the name of another but
    other weights (or unknown ones) carries these; metrics of several training runs carry the run. Of a part that can
    stand in a page only once (a funnel, a distillation, a card), the later one's counts, and a note says so.

    Raises:
        SourceError: a benchmark of one result has other items than the one of that name in another.
    """
    _same_items(parts)
    merged: dict[str, Any] = {}
    for part in _told_apart(parts):
        own = {f.name: getattr(part, f.name) for f in fields(part) if getattr(part, f.name) is not None}
        summary = _summaries(merged.get("summary", {}), own.get("summary", {}))
        for name in KEYS.keys() & own.keys() & merged.keys():
            key = [column for column in KEYS[name] if column in own[name].columns]
            earlier = merged[name].join(own[name], on=key, how="anti", maintain_order="left")
            own[name] = pl.concat([earlier, own[name]], how="diagonal_relaxed")
        merged |= own | {"summary": summary}
    return ReportData(**merged)


def _same_items(parts: list[ReportData]) -> None:
    known: dict[str, tuple[int, str]] = {}
    for part in parts:
        rows = () if part.benchmarks is None else part.benchmarks.select("benchmark", "items", "hash").iter_rows()
        for name, *own in rows:
            if (other := known.setdefault(name, tuple(own))) != tuple(own):
                raise SourceError(
                    f"benchmark '{name}' has {other[0]:,} items, hash {other[1]}, in one result and {own[0]:,}, hash "
                    f"{own[1]}, in another: one figure cannot show both. Give one another name in its recipe and "
                    "evaluate again (recorded samples cost nothing), or make a report of each.")  # fmt: skip


def _told_apart(parts: list[ReportData]) -> Iterator[ReportData]:
    """The parts with names of their own for models and training runs that are not the same."""
    runs = [_of(part, "training").get("run", number) for number, part in enumerate(parts, 1)]
    several = len({run for run, part in zip(runs, parts) if part.steps is not None}) > 1
    known: dict[str, str] = {}
    for number, (run, part) in enumerate(zip(runs, parts), 1):
        weights = _of(part, "evaluation").get("models") or {}
        own = {model: str(weights.get(model) or number)[:8] for model in _models(part)}
        if named := {m: f"{m} @{which}" for m, which in own.items() if known.setdefault(m, which) != which}:
            part = _renamed(part, named)
        if part.steps is not None and several:
            part = replace(part, steps=part.steps.with_columns(metric=pl.format("{}, {}", "metric", pl.lit(str(run)))))
        yield part


def _of(part: ReportData, name: str) -> Mapping[str, Any]:
    """A section of the summary."""
    return (part.summary or {}).get(name) or {}


def _models(part: ReportData) -> list[str]:
    frames = [getattr(part, name) for name in ("curves", "budgets", "outcomes") if getattr(part, name) is not None]
    return pl.concat([frame["model"] for frame in frames]).unique(maintain_order=True).to_list() if frames else []


def _renamed(part: ReportData, named: dict[str, str]) -> ReportData:
    """With other names for models, wherever they stand, and a note."""
    only = {f"{old} only": f"{new} only" for old, new in named.items()}
    frames = {}
    for name in KEYS:
        if (frame := getattr(part, name)) is not None:
            new = [pl.col(c).replace(only if c == "cell" else named) for c in ("model", "base", "cell") if c in frame]
            frames[name] = frame.with_columns(new)
    evaluation = dict(_of(part, "evaluation"))
    told = [f"{new}: another result's {old}, of other or unknown weights" for old, new in named.items()]
    evaluation["notes"] = [*told, *(evaluation.get("notes") or ())]
    evaluation["controls"] = [named.get(model, model) for model in evaluation.get("controls") or ()]
    return replace(part, summary={**(part.summary or {}), "evaluation": evaluation}, **frames)


def _summaries(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Both; what only one can have is the later one's, but a headline stays where the later has no trained model."""
    a, b = old.get("evaluation") or {}, new.get("evaluation") or {}
    both = {**a, **b, **(a if "trained" in a and "trained" not in b else {})}
    once = [name for name in ONCE if name in old and name in new and old[name] != new[name]]
    told = [f"{name}: several results have it, and the figures are the last one's" for name in once]
    for name in ("notes", "controls"):
        both[name] = list(dict.fromkeys([*(a.get(name) or ()), *(b.get(name) or ())]))
    both["notes"] += told
    return {**old, **new} | ({"evaluation": both} if a or b or told else {})
