"""What every figure shares: colours, the Vega-Lite configuration, axes, scales and banded lines, and the PNG.

A chart names its colours as CSS variables (`var(--blue)`), so that one specification serves the light page,
the dark page and print; `png` replaces them with the light values of `COLOURS`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import altair as alt
import polars as pl

__all__ = ["CATEGORIES", "COLOURS", "CONFIG", "Figure", "Log2Axis", "banded", "bands", "colour", "finite", "labels",
           "ordered", "parts", "percents", "png", "rule", "shape", "share_scale", "shortened", "spread",
           "thousands"]  # fmt: skip

# name: (light, dark). Categories after Okabe and Ito, lightened for the dark page; the ramp grows with k.
COLOURS = {
    "paper": ("#ffffff", "#14171c"),
    "panel": ("#f6f7f9", "#1c2027"),
    "ink": ("#1a1e24", "#e8ebf0"),
    "soft": ("#59626e", "#a3adba"),
    "line": ("#dfe3e8", "#323944"),
    "faint": ("#c3cad3", "#4a5361"),
    "blue": ("#0069a8", "#5bb5f0"),
    "orange": ("#c8500a", "#ff9d5c"),
    "green": ("#00795a", "#45cfa0"),
    "pink": ("#ae4d86", "#eaa0cb"),
    "gold": ("#8f6a00", "#e8bd4a"),
    "violet": ("#6a4fbf", "#b9a5f7"),
    "brown": ("#7c4a2d", "#d3a27d"),
    "ramp1": ("#4f98c4", "#3d77a8"),
    "ramp2": ("#3584bd", "#5a9bd0"),
    "ramp3": ("#1f69a8", "#82bdea"),
    "ramp4": ("#124a82", "#b0d9f6"),
    "ramp5": ("#0a2c57", "#e2f2fd"),
}
CATEGORIES = [f"var(--{name})" for name in ("blue", "orange", "green", "pink", "gold", "violet", "brown", "soft")]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]  # one fewer

_FONT = "Inter, 'Segoe UI', Helvetica, Arial, sans-serif"
_LABELS = {"labelColor": "var(--soft)", "titleColor": "var(--soft)", "labelFont": _FONT, "titleFont": _FONT,
           "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}  # fmt: skip
_LINES = {"gridColor": "var(--line)", "domainColor": "var(--faint)", "tickColor": "var(--faint)"}
_LEGEND = {"orient": "top", "title": None, "labelLimit": 260, "symbolSize": 70, "offset": 6, "columnPadding": 14}
CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": _FONT,
    "view": {"stroke": None},
    "axis": {**_LABELS, **_LINES, "titlePadding": 8, "labelPadding": 5},
    "axisX": {"grid": False, "labelFlush": False},
    "axisY": {"domain": False, "ticks": False},
    "legend": {**_LABELS, **_LEGEND, "symbolStrokeWidth": 2},
    "title": {"color": "var(--ink)", "subtitleColor": "var(--soft)", "font": _FONT, "subtitleFont": _FONT,
              "fontSize": 13, "subtitleFontSize": 11, "fontWeight": 600, "anchor": "start", "frame": "group",
              "offset": 10},
    "mark": {"color": "var(--blue)"},
    "rule": {"color": "var(--blue)"},
    "text": {"color": "var(--soft)", "font": _FONT, "fontSize": 12},
    "style": {"reference": {"color": "var(--soft)", "strokeWidth": 1, "strokeDash": [4, 3]}},
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One figure: its panels are altair charts without a width, `numbers` is everything behind them."""

    name: str
    title: str
    caption: str
    panels: list[Any]
    numbers: pl.DataFrame

    @property
    def columns(self) -> int:
        """Panels in a row: up to three of many, two of a few."""
        return min(len(self.panels), 3 if len(self.panels) > 4 else 2)

    @cached_property
    def specs(self) -> list[dict[str, Any]]:
        """One Vega-Lite specification a panel, as wide as the element it is put into."""
        return [_bare(panel.properties(width="container").to_dict(validate=False)) for panel in self.panels]


def _bare(spec: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "config"}  # altair's own; the page has CONFIG


def png(figure: Figure, scale: float = 2.0) -> bytes:
    """The figure as a PNG on white, `scale` pixels a point, panels in rows of `figure.columns`."""
    import vl_convert

    width = 620 if figure.columns == 1 else 330
    panels = [{**spec, "width": width} for spec in figure.specs]
    spec = {
        "$schema": panels[0]["$schema"],
        "title": {"text": figure.title, "fontSize": 15, "offset": 16},
        "padding": 18,
        "config": {**CONFIG, "background": "var(--paper)"},
        "datasets": {name: rows for panel in panels for name, rows in panel.pop("datasets").items()},
        "concat": [{key: value for key, value in panel.items() if key != "$schema"} for panel in panels],
        "columns": figure.columns,
        "spacing": 28,
        "resolve": {"scale": dict.fromkeys(("color", "shape", "fill"), "independent")},
    }
    painted = re.sub(r"var\(--(\w+)\)", lambda found: COLOURS[found[1]][0], json.dumps(spec))
    return bytes(vl_convert.vegalite_to_png(painted, scale=scale))


def finite(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows of a chart: NaN and infinities, which JSON has not, become null."""
    floats = pl.selectors.float()
    return frame.with_columns(pl.when(floats.is_finite()).then(floats))


class Log2Axis:
    """A base-2 logarithmic x axis over the distinct values (k, or token budgets) of a column.

    0, which has no logarithm, stands at `zero`, one step left of the least positive value, behind a dotted line.
    """

    def __init__(self, frame: pl.DataFrame, column: str, title: str) -> None:
        self.column, self.title = column, title
        self.values: list[float] = sorted(set(frame[column].to_list()))
        self.zero = min((value for value in self.values if value > 0), default=2) / 2

    def place(self, values: pl.Expr) -> pl.Expr:
        """Where values are drawn."""
        return pl.when(values > 0).then(values).otherwise(self.zero).cast(pl.Float64)

    def chart(self, frame: pl.DataFrame) -> Any:
        """A chart over `frame` whose x is set."""
        return alt.Chart(finite(frame.with_columns(x=self.place(pl.col(self.column))))).encode(x=self.x())

    def x(self, field: str = "x") -> Any:
        """The encoding of a field with places."""
        places = [value if value > 0 else self.zero for value in self.values]
        label = "format(datum.value, ',')"
        if 0 in self.values:
            label = f"datum.value <= {self.zero} ? '0' : {label}"
        scale = alt.Scale(type="log", base=2, nice=False, domain=[min(places) / 1.2, max(places) * 1.2])
        axis = alt.Axis(values=places, labelExpr=label, labelOverlap="greedy")
        return alt.X(f"{field}:Q", title=self.title, scale=scale, axis=axis)

    def zero_mark(self) -> list[Any]:
        """The dotted line between 0 and the rest, where the axis stops being logarithmic; [] without a 0."""
        if 0 not in self.values or len(self.values) == 1:
            return []
        return [rule(x=self.zero * math.sqrt(2)).encode(x=self.x())]


def rule(**place: float) -> Any:
    """A dotted line at `x` or `y`."""
    (name,) = place
    return alt.Chart(alt.InlineData(values=[place])).mark_rule(style="reference").encode(**{name: f"{name}:Q"})


def banded(frame: pl.DataFrame, axis: Log2Axis, y: Any, colours: Any, shapes: Any) -> Any:
    """Lines through `estimate` with points, in bands from `low` to `high`; y encodes `low`.

    With a column `fewer`, points where it is true are open.
    """
    base = axis.chart(frame).encode(color=colours)
    line = base.mark_line(strokeWidth=2).encode(y="estimate:Q")
    counts = [alt.Tooltip(f"{name}:Q", format=",") for name in ("k", "budget", "items") if name in frame.columns]
    tooltip = ["model:N", *counts, *percents("estimate", "low", "high")]
    look = {"y": "estimate:Q", "shape": shapes, "tooltip": tooltip}
    points = [base.mark_point(filled=True, size=46, opacity=1).encode(**look)]
    if "fewer" in frame.columns and frame["fewer"].any():
        over = axis.chart(frame.filter("fewer")).encode(color=colours)
        points.append(over.mark_point(size=46, opacity=1, strokeWidth=2, fill="var(--paper)").encode(**look))
    return alt.layer(*axis.zero_mark(), *bands(base, y), line, *points)


def bands(base: Any, y: Any) -> list[Any]:
    """From `low`, which y encodes, to `high`: an area, and a thin line at every value."""
    return [mark.encode(y=y, y2="high:Q") for mark in (base.mark_area(opacity=0.16), base.mark_rule(opacity=0.4))]


def colour(column: str, names: Sequence[str], colours: Sequence[str] = CATEGORIES, legend: Any = None) -> Any:
    """Colours for `names` in order; a name keeps its colour in every panel given the same `names`."""
    fitting = int(290 // (28 + 6.5 * max(map(len, names), default=1)))  # on the narrowest page
    legend = legend or alt.Legend(columns=max(fitting, 1), symbolOpacity=1, labelExpr=labels(names, 38))
    return alt.Color(f"{column}:N", scale=alt.Scale(domain=names, range=_cycle(colours, names)), legend=legend)


def shortened(names: Sequence[str], limit: int) -> dict[str, str]:
    """By name a text of at most `limit` characters, cut after a third or where no two read alike; else whole."""
    for head in sorted(range(limit), key=lambda at: abs(at - limit // 3)):  # names differ at their ends
        cut = {n: n if len(n) <= limit else f"{n[:head]}…{n[len(n) - limit + head + 1 :]}" for n in names}
        if len(set(cut.values())) == len(cut):
            return cut
    return {name: name for name in names}


def labels(names: Sequence[str], limit: int) -> str:
    """The expression that labels an axis or a legend with `shortened` names."""
    return f"({json.dumps(shortened(names, limit))})[datum.label] || datum.label"


def shape(column: str, names: Sequence[str]) -> Any:
    """Point shapes for `names`, so that no line is told apart by colour alone."""
    return alt.Shape(f"{column}:N", scale=alt.Scale(domain=names, range=_cycle(SHAPES, names)))


def _cycle(values: Sequence[str], names: Sequence[str]) -> list[str]:
    return [values[i % len(values)] for i in range(len(names))]


def share_scale(highs: pl.Series) -> Any:
    """From 0 to the tenth above the greatest value, at most 1."""
    top = max((value for value in highs.to_list() if value is not None and math.isfinite(value)), default=1.0)
    return alt.Scale(domain=[0, min(1.0, math.ceil(top * 10 + 0.2) / 10)], nice=False)


def percents(*columns: str, sign: str = "") -> list[Any]:
    """Tooltip lines in per cent."""
    return [alt.Tooltip(f"{column}:Q", format=f"{sign}.1%") for column in columns]


def spread(values: Sequence[int], count: int) -> list[int]:
    """At most `count` of `values`, evenly spaced, first and last among them (the middle for 1)."""
    if len(values) <= count:
        return list(values)
    if count == 1:
        return [values[len(values) // 2]]
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def parts(frame: pl.DataFrame, *columns: str) -> Iterator[tuple[dict[str, str], pl.DataFrame]]:
    """A part of the frame for each panel, and its title where there are several values to tell apart."""
    several = [name for name in columns if frame[name].n_unique() > 1]
    found = [(" · ".join(str(value) for name, value in zip(columns, values) if name in several), part)
             for values, part in frame.group_by(columns, maintain_order=True)]  # fmt: skip
    titles = shortened([title for title, _ in found], 36)
    yield from (({"title": titles[title]} if title else {}, part) for title, part in found)


def ordered(frame: pl.DataFrame, column: str) -> list[str]:
    """Distinct values in order of appearance."""
    return list(frame[column].unique(maintain_order=True))


def thousands(column: str) -> pl.Expr:
    """Numbers as text with commas, a decimal where they are not whole."""
    return pl.col(column).map_elements(lambda value: f"{value:,.1f}".removesuffix(".0"), return_dtype=pl.String)
