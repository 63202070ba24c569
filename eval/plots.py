"""The report's figures: each takes a frame and gives a `Figure` of Vega-Lite charts made by altair."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import altair as alt
import polars as pl

from assay.eval.charts import (
    CATEGORIES,
    Figure,
    Log2Axis,
    banded,
    bands,
    colour,
    finite,
    labels,
    ordered,
    parts,
    percents,
    rule,
    shape,
    share_scale,
    shortened,
    spread,
    thousands,
)
from assay.eval.thinking_budget import Cost

__all__ = ["budgets", "curves", "difference", "distillation", "endings", "four_way", "funnel", "headline", "pass_rates",
           "training"]  # fmt: skip

MAX_POINTS = 300  # steps drawn in a training panel; longer runs are averaged over equal spans
RATIO_FLOOR = 1e-8  # below float32's resolution: where a ratio error of 0 is drawn on the logarithmic axis
KS = "k (samples a problem, log2 scale)"
SHARE = "share of problems"
OPEN = " Open points are over fewer items than the smallest k: the numbers say how many."
PERCENT = {"format": ".0%", "tickCount": 5}
KEPT = ["kept", "removed"]
ENDINGS = ["natural", "forced", "truncated", "empty"]

CURVES = {"pass@k": ("pass_at_k", "pass@k"), "maj@k": ("majority", "Majority vote, maj@k"),
          "best-of-k": ("best_of_k", "Best of k by score")}  # fmt: skip

# Panel title, y axis with its unit, pattern over metric names; a metric goes to the first panel that matches.
PANELS = (
    ("Throughput", "tokens / s", r"tokens?_?(/|per_?)s"),
    ("Clip share", "share of tokens", r"clip"),
    ("KL divergence", "nats a token", r"(^|[/_.])kl"),
    ("Entropy", "nats a token", r"entropy"),
    ("Ratio error", "max |ratio − 1|, log scale", r"ratio.*err|mismatch"),
    ("Importance ratio", "ratio", r"ratio"),
    ("Samples without a verdict", "share of samples", r"truncat|unverif|timeout|masked"),
    ("Groups", "share, or pass rate", r"group|pass_?rate|pass@|solved|zero_std|all_(right|wrong)|accuracy"),
    ("Reward", "reward", r"reward"),
    ("Completion length", "tokens", r"length|(^|[/_.])tokens"),
    ("Loss", "loss", r"loss"),
    ("Gradient norm", "L2 norm", r"grad"),
)
ORDER = (
    *("Reward", "Groups", "Entropy", "KL divergence", "Ratio error", "Importance ratio", "Clip share"),
    *("Completion length", "Samples without a verdict", "Throughput", "Loss", "Gradient norm"),
)


def headline(values: pl.DataFrame) -> Figure:
    """Points with intervals: `metric, model, value, low, high`."""
    models = ordered(values, "model")
    axis = alt.Axis(format=".0%", grid=True, tickCount=6)
    base = alt.Chart(finite(values)).encode(
        y=alt.Y("metric:N", sort=None, title=None, axis=_named(values["metric"].to_list())),
        yOffset=alt.YOffset("model:N", sort=models), color=colour("model", models),
        tooltip=["metric:N", "model:N", *percents("value", "low", "high")])  # fmt: skip
    x = alt.X("low:Q", title=SHARE, axis=axis, scale=share_scale(values["high"]))
    spans = base.mark_rule(strokeWidth=2, opacity=0.6).encode(x=x, x2="high:Q")
    points = base.mark_point(filled=True, size=80, opacity=1).encode(x="value:Q", shape=shape("model", models))
    chart = (spans + points).properties(height=24 * values.height + 10)
    return Figure("headline", "Headline accuracy", "Points are estimates, bars their intervals.", [chart], values)


def _named(names: Sequence[str]) -> Any:
    return alt.Axis(labelFontSize=12, labelLimit=180, labelExpr=labels(names, 24))


def funnel(frame: pl.DataFrame) -> Figure:
    """Rows kept and removed by each filter: `filter, rows_in, rows_out, reasons`, in the order they ran."""
    frame = frame.with_columns(removed=pl.col("rows_in") - pl.col("rows_out"))
    label = pl.format("{} kept, {} removed", thousands("rows_out"), thousands("removed"))
    name = pl.col("filter").str.replace_all("_", " ")
    rows = frame.select(name, pl.col("rows_out").alias("kept"), "removed", label=label)
    stacked = _ranked(rows.unpivot(KEPT, index="filter", variable_name="part", value_name="rows"), "part", KEPT)
    axis = alt.Axis(labels=False, ticks=False, domain=False)
    y = alt.Y("filter:N", sort=rows["filter"].to_list(), title=None, axis=axis)
    x = alt.X("rows:Q", title="rows", axis=alt.Axis(format="~s", tickCount=5))
    bars = alt.Chart(finite(stacked)).mark_bar(height=12, yOffset=9)
    bars = bars.encode(y=y, x=x, color=_kept(), order="rank:Q", tooltip=["filter:N", "part:N", _count("rows")])
    text = alt.Chart(finite(rows)).encode(y=y)
    names = text.mark_text(align="left", dy=-7, fontWeight=600, color="var(--ink)")
    counts = text.mark_text(align="right", dy=-7).encode(x=alt.value("width"), text="label:N")
    chart = (bars + names.encode(x=alt.value(0), text="filter:N") + counts).properties(height=42 * frame.height)
    first, last = int(frame["rows_in"][0]), int(frame["rows_out"][-1])
    caption = f"{last:,} of {first:,} rows ({last / max(first, 1):.1%}) passed every filter."
    return Figure("funnel", "Rows through the filters", caption, [chart], frame)


def _kept() -> Any:
    return alt.Color("part:N", scale=alt.Scale(domain=KEPT, range=["var(--blue)", "var(--faint)"]))


def _ranked(frame: pl.DataFrame, column: str, names: Sequence[str]) -> pl.DataFrame:
    """With `rank`, the place of `column` in `names`: the order in which parts are stacked."""
    return frame.with_columns(rank=pl.col(column).replace_strict(names, range(len(names)), return_dtype=pl.Int8))


def _count(column: str) -> Any:
    return alt.Tooltip(f"{column}:Q", format=",")


def pass_rates(frame: pl.DataFrame, band: tuple[float, float] | None) -> Figure:
    """Histogram of `problem_id, pass_rate, kept`, stacked by kept, with the band shaded."""
    known = frame.drop_nulls("pass_rate")
    part = pl.when(pl.col("kept")).then(pl.lit("kept")).otherwise(pl.lit("removed"))
    bars = known.group_by(*_bins(known["pass_rate"]), part.alias("part")).agg(problems=pl.len())
    scale = alt.Scale(domain=[-0.04, 1.04], nice=False)
    axis = alt.Axis(values=[0, 0.2, 0.4, 0.6, 0.8, 1], format="~g")
    title = "pass rate (correct / verified samples)"
    x = alt.X("left:Q", bin="binned", title=title, scale=scale, axis=axis)
    highest = bars.group_by("left").agg(pl.col("problems").sum())["problems"].max() or 1
    room = alt.Scale(domain=[0, 1.12 * highest], nice=False)  # type: ignore[operator]  # above it stands the label
    y = alt.Y("problems:Q", title="problems", axis=alt.Axis(format="~s", tickCount=5), scale=room)
    tooltip = [alt.Tooltip("pass_rate:Q", format=".3~f"), "part:N", _count("problems")]
    chart = alt.Chart(finite(_ranked(bars.sort("left"), "part", KEPT))).mark_bar()
    chart = chart.encode(x=x, x2="right:Q", y=y, color=_kept(), order="rank:Q", tooltip=tooltip)
    caption = f"{known.height:,} problems with a pass rate; {frame.height - known.height:,} unknown, not drawn."
    if band is not None:
        inside = known["pass_rate"].is_between(*band).sum() / max(known.height, 1)
        caption += f" {inside:.1%} of the known lie in the band from {band[0]:g} to {band[1]:g} (shaded)."
    marks = _band_marks(band)
    layers = [*marks[:1], chart, *marks[1:]]
    return Figure("pass_rates", "Pass rates", caption, [alt.layer(*layers).properties(height=240)], frame)


def _band_marks(band: tuple[float, float] | None) -> list[Any]:
    if band is None:
        return []
    edges = alt.InlineData(values=[{"low": band[0], "high": band[1], "label": "band"}])
    base = alt.Chart(edges).encode(x="low:Q")
    label = base.mark_text(align="left", dx=5, dy=8).encode(y=alt.value(0), text="label:N")
    area = base.mark_rect(color="var(--green)", opacity=0.12).encode(x2="high:Q")
    edge = base.mark_rule(style="reference")
    return [area, edge, edge.encode(x="high:Q"), label]


def _bins(rates: pl.Series) -> list[pl.Expr]:
    """Bars at the exact rates when few (8 samples give 9), else twenty equal bins, the last one closed."""
    exact = rates.unique().sort().to_list()
    gap = min((b - a for a, b in pairwise(exact)), default=1.0)
    if len(exact) <= 21 and gap >= 0.02:
        middle, half = pl.col("pass_rate"), min(0.4 * gap, 0.03)
    else:
        middle, half = ((pl.col("pass_rate") * 20).floor().clip(upper_bound=19) + 0.5) / 20, 0.0225
    return [middle.alias("pass_rate"), (middle - half).alias("left"), (middle + half).alias("right")]


def training(steps: pl.DataFrame) -> Figure:
    """Small multiples of `step, metric, value`: thin as recorded, thick a centred rolling mean."""
    groups: dict[str, list[str]] = {title: [] for title in ORDER}
    metrics = ordered(steps, "metric")
    for metric in metrics:
        title = next((name for name, _, pattern in PANELS if re.search(pattern, metric, re.IGNORECASE)), None)
        if title and len(groups[title]) < len(CATEGORIES):
            groups[title].append(metric)
    panels = [_training_panel(steps, title, names) for title, names in groups.items() if names]
    caption = "Thin lines as recorded, thick lines a rolling mean over a twentieth of the run."
    drawn = {name for names in groups.values() for name in names}
    if left_over := [metric for metric in metrics if metric not in drawn]:
        caption += f" In the files only: {', '.join(left_over)}."
    return Figure("training", "Training curves", caption, panels, steps)


def _training_panel(steps: pl.DataFrame, title: str, metrics: list[str]) -> Any:
    frame = steps.filter(pl.col("metric").is_in(metrics)).with_columns(pl.col("value").cast(pl.Float64))
    axis: dict[str, Any] = {"format": ".4~g", "tickCount": 5}
    scale: dict[str, Any] = {"zero": False}
    if title == "Ratio error":
        frame = frame.with_columns(pl.col("value").abs().clip(lower_bound=RATIO_FLOOR))
        decades = _decades(frame["value"])
        axis = {"format": ".0e", "values": decades}
        scale = {"type": "log", "domain": [decades[0], decades[-1]]}
    frame = thinned(frame)
    tooltip = ["step:Q", "metric:N", *[alt.Tooltip(f"{name}:Q", format=".4~g") for name in ("value", "smooth")]]
    x = alt.X("step:Q", title="optimizer step", axis=alt.Axis(tickMinStep=1, format=",~f", tickCount=5))
    legend = alt.Legend(orient="bottom", symbolOpacity=1, columns=2, labelLimit=130, offset=4,
                        labelExpr=labels(metrics, 19))  # fmt: skip
    base = alt.Chart(finite(frame)).encode(x=x, color=colour("metric", metrics, legend=legend), tooltip=tooltip)
    y = alt.Y("value:Q", title=next(unit for name, unit, _ in PANELS if name == title), scale=scale, axis=axis)
    raw = base.mark_line(strokeWidth=1, opacity=0.4).encode(y=y)
    point = {"size": 30} if frame["step"].n_unique() < 3 else False  # a line needs two steps to be seen
    smooth = base.mark_line(strokeWidth=2, point=point).encode(y="smooth:Q")
    return (raw + smooth).properties(height=170, title=title)


def _decades(values: pl.Series) -> list[float]:
    """The powers of ten that enclose the finite values."""
    finite = [value for value in values.to_list() if value is not None and math.isfinite(value)] or [RATIO_FLOOR]
    low, high = math.floor(math.log10(min(finite))), math.ceil(math.log10(max(finite)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def thinned(frame: pl.DataFrame) -> pl.DataFrame:
    """`step, metric, value, smooth`: at most `MAX_POINTS` spans of steps, averaged; a rolling mean."""
    first, last = int(frame["step"].min()), int(frame["step"].max())  # type: ignore[arg-type]
    span = math.ceil((last - first + 1) / MAX_POINTS)
    start = (pl.col("step") - first) // span * span + first
    means = frame.group_by("metric", start, maintain_order=True).agg(pl.col("value").mean())
    means = means.sort("metric", "step")
    window = max(1, means["step"].n_unique() // 20)
    smooth = pl.col("value").rolling_mean(window, center=True, min_samples=1).over("metric")
    return means.with_columns(smooth=smooth)


def curves(frame: pl.DataFrame, kind: str = "pass@k", models: Sequence[str] = ()) -> Figure:
    """`benchmark, model, k, estimate, low, high`: a panel a benchmark, a banded line a model on a log₂ axis.

    Args:
        kind: one of `CURVES`.
        models: fixes the colours, so that a model keeps its own from one figure to the next.
    """
    names, axis, drawn = list(models) or ordered(frame, "model"), Log2Axis(frame, "k", KS), _fewer(frame)
    look = _share_axis(kind, frame), colour("model", names), shape("model", names)
    panels = [banded(part, axis, *look).properties(height=280, **title) for title, part in parts(drawn, "benchmark")]
    said = "Bands are intervals over problems." + OPEN * drawn["fewer"].any()
    for title, part in parts(frame, "benchmark"):
        last = part.filter(pl.col("k") == pl.col("k").max())
        rates = ", ".join(f"{model} {rate:.1%}" for model, rate in last.select("model", "estimate").iter_rows())
        said += f" {title.get('title', 'At')}{', at' * bool(title)} k = {last['k'][0]:,}: {rates}."
    return Figure(*CURVES[kind], said, panels, frame)


def _fewer(frame: pl.DataFrame) -> pl.DataFrame:
    """With `fewer`: whether the point is over fewer items than the least k of its line; false where unknown."""
    if "items" not in frame.columns:
        return frame.with_columns(fewer=False)
    line = [name for name in ("benchmark", "model", "budget") if name in frame.columns]
    first = pl.col("items").sort_by("k").first().over(line)
    return frame.with_columns(fewer=(pl.col("items") < first).fill_null(False))


def _share_axis(kind: str, frame: pl.DataFrame) -> Any:
    """The y axis of a banded curve."""
    return alt.Y("low:Q", title=f"{kind} ({SHARE})", axis=PERCENT, scale=share_scale(frame["high"]))


def difference(frame: pl.DataFrame) -> Figure:
    """model - base at every k, paired, a panel a benchmark: rows of `curves.compare`.

    A point is filled where its interval excludes 0; a bar on the line of 0 is where the curves cross.
    """
    rows = frame.sort("k", maintain_order=True).with_columns(series=_pair_name(frame))
    names, axis = ordered(rows, "series"), Log2Axis(rows, "k", KS)
    colours, shapes = colour("series", names), shape("series", names)
    ticks = alt.Axis(labelExpr="datum.value ? format(100 * datum.value, '+.3~g') : '0'", tickCount=6)
    y = alt.Y("low:Q", title="difference (percentage points)", axis=ticks, scale=alt.Scale(zero=True))
    tooltip = ["k:Q", "series:N", *percents("difference", "low", "high", sign="+")]
    panels = []
    for title, part in parts(rows, "benchmark"):
        base = axis.chart(part).encode(color=colours)
        line = base.mark_line(strokeWidth=2).encode(y="difference:Q")
        point = base.encode(y="difference:Q", shape=shapes, tooltip=tooltip)
        open_ = point.mark_point(size=64, opacity=1, strokeWidth=2, fill="var(--paper)")
        layers = [*bands(base, y), rule(y=0), *_crossings(part, axis, colours), line, open_]
        clear = part.filter((pl.col("low") > 0) | (pl.col("high") < 0))
        if len(clear):
            filled = axis.chart(clear).mark_point(filled=True, size=64, opacity=1)
            layers.append(filled.encode(color=colours, y="difference:Q", shape=shapes, tooltip=tooltip))
        panels.append(alt.layer(*layers).properties(height=280, **title))
    caption = "Above 0 the first of the two solves more. Filled where the interval excludes 0."
    if frame["crossing"].is_not_null().any():
        caption += " A bar on the line of 0: where the curves cross, from one end of the interval to the other."
    return Figure("difference", "Difference of pass@k, paired", caption, panels, frame)


def _pair_name(frame: pl.DataFrame) -> pl.Expr:
    """`model − base`, each short enough that both are read in a legend."""
    short = shortened(list({*frame["model"], *frame["base"]}), 17)
    return pl.format("{} − {}", *(pl.col(name).replace(short) for name in ("model", "base")))


def _crossings(part: pl.DataFrame, axis: Log2Axis, colours: Any) -> list[Any]:
    """The crossing of every pair with its interval, which may reach beyond the axis; [] where none crosses."""
    first, last = min(axis.values), max(axis.values)
    ends = {"low": ("crossing_low", first), "x": ("crossing", first), "high": ("crossing_high", last)}
    drawn = {name: pl.col(column).fill_null(beyond).clip(first, last).cast(pl.Float64)
             for name, (column, beyond) in ends.items()}  # fmt: skip
    rows = part.unique("series", maintain_order=True).filter(pl.col("crossing").is_not_null())
    if rows.is_empty():
        return []
    told = rows.select("series", "crossing", "crossing_low", "crossing_high", y=0.0, **drawn)
    base = alt.Chart(finite(told)).encode(y="y:Q", color=colours, tooltip=[f"{name}:N" for name in told.columns[:4]])
    span = base.mark_rule(strokeWidth=7, opacity=0.35, strokeCap="round").encode(x=axis.x("low"), x2="high:Q")
    return [span, base.mark_tick(orient="vertical", thickness=3, size=16).encode(x=axis.x())]


def budgets(frame: pl.DataFrame) -> Figure:
    """pass@k against the thinking budget (log₂, 0 apart): a panel a benchmark and model, a line a k, one y axis.

    Reads `benchmark, model, budget, k, estimate, low, high`; with more than five ks, five spread evenly are drawn.
    """
    ks = spread(sorted(set(frame["k"].to_list())), 5)
    names = [f"k = {k}" for k in ks]
    rows = _fewer(frame.filter(pl.col("k").is_in(ks))).with_columns(series=pl.format("k = {}", "k"))
    axis = Log2Axis(frame, "budget", "thinking budget (tokens, log2 scale)")
    colours = colour("series", names, [f"var(--ramp{i})" for i in spread(range(1, 6), len(ks))])
    look = _share_axis("pass@k", frame), colours, shape("series", names)
    panels = [banded(part, axis, *look).properties(height=280, **title)
              for title, part in parts(rows, "benchmark", "model")]  # fmt: skip
    caption = "Bands are intervals over problems." + OPEN * rows["fewer"].any()
    if (frame["budget"] == 0).any():
        caption += " Budget 0, no thinking at all, stands left of the dotted line." + _dip(rows)
    caption += _cost(frame)
    return Figure("budgets", "Accuracy against thinking budget", caption, panels, frame)


def _dip(frame: pl.DataFrame) -> str:
    """A sentence where a little thinking does worse than none."""
    rows = frame.filter(pl.col("k") == pl.col("k").min()).sort("budget")
    positive = pl.col("estimate").filter(pl.col("budget") > 0).first()
    none = pl.col("estimate").filter(pl.col("budget") == 0).first()
    below = rows.group_by("benchmark", "model", maintain_order=True).agg(below=positive < none).filter("below")
    said = f" The smallest budget lies below budget 0 ({', '.join(ordered(below, 'model'))}): the direct mode is "
    return f"{said}trained to answer at once, a thought that is cut off is not." if len(below) else ""


def _cost(frame: pl.DataFrame) -> str:
    """What the sweeps sampled, where the frame has it."""
    if not {"new_tokens", "anew_tokens"} <= set(frame.columns):
        return ""
    rows = frame.unique(["benchmark", "model", "budget"]).cast({"new_tokens": pl.Int64, "anew_tokens": pl.Int64})
    longest = rows.filter(pl.col("budget") == pl.col("budget").max().over("benchmark", "model"))
    of = ((rows, "new_tokens"), (longest, "anew_tokens"), (rows, "anew_tokens"))
    cost = Cost(*(int(part[name].sum()) for part, name in of))
    return f" Cost: {cost}." if cost.longest else ""


def endings(frame: pl.DataFrame) -> Figure:
    """Shares `natural, forced, truncated, empty` by `benchmark, model, budget` (counts are divided by their sum)."""
    index = ["benchmark", "model", "budget"]
    rows = frame.select(*index, *ENDINGS).unique(maintain_order=True).sort("budget", maintain_order=True)
    total = pl.max_horizontal(pl.sum_horizontal(ENDINGS), pl.lit(1.0))
    shares = rows.select(*index, *[pl.col(name) / total for name in ENDINGS])
    long = shares.unpivot(ENDINGS, index=index, variable_name="outcome", value_name="share")
    long = _ranked(long.with_columns(label=thousands("budget")), "outcome", ENDINGS)
    colours = [f"var(--{name})" for name in ("blue", "ramp1", "orange", "faint")]
    look = {
        "x": alt.X("label:N", sort=None, title="thinking budget (tokens)", axis=alt.Axis(labelAngle=0)),
        "y": alt.Y("share:Q", title="share of samples", axis=PERCENT, scale=alt.Scale(domain=[0, 1])),
        "color": alt.Color("outcome:N", scale=alt.Scale(domain=ENDINGS, range=colours)), "order": "rank:Q",
        "tooltip": ["label:N", "outcome:N", *percents("share")]}  # fmt: skip
    panels = [alt.Chart(finite(part), height=170, **title).mark_bar().encode(**look)
              for title, part in parts(long, *index[:2])]  # fmt: skip
    caption = ("Natural: the model ended its thinking. Forced: the budget ended it. Truncated: the answer itself was "
               "cut and has no verdict. Empty: there was no answer.")  # fmt: skip
    return Figure("endings", "How thinking ended", caption, panels, rows)


def four_way(frame: pl.DataFrame) -> Figure:
    """Items solved by both models, by one, or by neither: `benchmark, cell, items`, where known `model` and `base`.

    A panel a benchmark and pair.
    """
    by = [name for name in ("benchmark", "model", "base") if name in frame.columns]
    total = pl.col("items").sum().over(by)
    share = (pl.col("items") * 100 / pl.max_horizontal(total, pl.lit(1))).round(1)
    label = pl.format("{} ({}%)", thousands("items"), share)
    rows = frame.with_columns(pl.col("items").cast(pl.Float64).round(1)).with_columns(label=label)
    axis, panels = alt.Axis(tickMinStep=1, tickCount=5), []
    for title, part in parts(rows, *by):
        names = _named(part["cell"].to_list())
        room = max(*part["items"].to_list(), 1) * 1.4  # right of the longest bar, for its label
        base = alt.Chart(finite(part)).encode(
            y=alt.Y("cell:N", sort=None, title=None, axis=names),
            x=alt.X("items:Q", title="items", axis=axis, scale=alt.Scale(domain=[0, room], nice=False)),
            tooltip=["cell:N", _count("items")])  # fmt: skip
        labels = base.mark_text(align="left", dx=6).encode(text="label:N")
        panels.append((base.mark_bar(height=16) + labels).properties(height=32 * part.height, **title))
    caption = "Expected counts over which samples are drawn, at the largest k that all items allow."
    return Figure("four_way", "Which items each model solves", caption, panels, frame)


def distillation(frame: pl.DataFrame) -> Figure:
    """Accuracy with its interval by task and model: `task, model, accuracy, low, high, tokens`."""
    values = frame.select("model", "low", "high", metric="task", value="accuracy")
    caption = "Accuracy by task; bars are intervals. Gap recovered: (after − before) / (teacher − before)."
    return Figure("distillation", "Teacher and student", caption, headline(values).panels, frame)
