"""Results on disk: the frames of a report as Parquet, its summary as JSON, and the page made of them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl

from assay.eval.report import ReportData, write_report
from assay.pipelines.errors import SourceError

__all__ = ["load", "merge", "save"]


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
    """One report of several results; where two have the same part, the later one's counts."""
    merged: dict[str, Any] = {}
    for part in parts:
        own = {f.name: getattr(part, f.name) for f in fields(part) if getattr(part, f.name) is not None}
        merged |= own | {"summary": {**merged.get("summary", {}), **own.get("summary", {})}}
    return ReportData(**merged)
