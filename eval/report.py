"""One HTML file that says what was curated, what training did, and whether it can be believed.

Styles, the Vega libraries and every number are inside the file; a content security policy forbids it to load
anything. Beside it lie each figure as PNG and its numbers as Parquet and CSV.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.eval.checks import checks
from assay.eval.comparison import points, told
from assay.eval.curves import headline
from assay.eval.intervals import caution

if TYPE_CHECKING:
    from assay.eval.charts import Figure

__all__ = ["ReportData", "write_report"]

MAX_SAMPLES = 200  # in the page; all of them are in data/samples.parquet
MAX_CHARS = 12_000  # of a completion in the page: its middle is left out
MAX_ROWS = 400  # of a figure's folded table, and of items gained and lost
MAX_TEXT = 200  # of a problem in a table

COLUMNS = {
    "funnel": ("filter", "rows_in", "rows_out", "reasons"),
    "pass_rates": ("problem_id", "pass_rate", "kept"),
    "steps": ("step", "metric", "value"),
    "curves": ("benchmark", "model", "metric", "k", "estimate", "low", "high"),
    "difference": ("benchmark", "model", "base", "k", "items", "a", "b", "difference", "low", "high", "mdd", "p",
                   "crossing", "crossing_low", "crossing_high"),
    "budgets": ("benchmark", "model", "budget", "k", "estimate", "low", "high", "natural", "forced", "truncated",
                "empty"),
    "four_way": ("benchmark", "cell", "items"),
    "outcomes": ("benchmark", "model", "items", "samples", "unscored"),
    "benchmarks": ("benchmark", "items", "revision", "hash", "contaminated"),
    "distillation": ("task", "model", "accuracy", "low", "high", "tokens"),
    "distillation_items": ("student", "task", "item", "problem", "teacher", "before", "after", "change"),
    "samples": ("problem_id", "problem", "gold", "model", "completion", "status", "reason", "tokens", "tags"),
}  # fmt: skip


@dataclass(frozen=True)
class ReportData:
    """What a report can show; a part that is None (or a frame without rows) has no section.

    `COLUMNS` names the columns; `curves`, `difference` and `four_way` are of the module `curves`, `outcomes` counts
    every status of the samples, `benchmarks` says what was evaluated on and how many of its items stand in the training
    set (null: not looked). Shares (`pass_rate`, `estimate`, `accuracy`, `natural`, ...) are in [0, 1]; `reasons` is
    JSON (reason -> rows); `tags` is a list of strings or a string. Also read where there: `items` of `curves`,
    `new_tokens` and `anew_tokens` of `budgets`, `extracted` of `samples`.

    Raises:
        ValueError: a frame lacks a column.
    """

    summary: Mapping[str, Any] | None = None
    funnel: pl.DataFrame | None = None
    pass_rates: pl.DataFrame | None = None
    band: tuple[float, float] | None = None
    steps: pl.DataFrame | None = None
    curves: pl.DataFrame | None = None
    difference: pl.DataFrame | None = None
    budgets: pl.DataFrame | None = None
    outcomes: pl.DataFrame | None = None
    benchmarks: pl.DataFrame | None = None
    four_way: pl.DataFrame | None = None
    distillation: pl.DataFrame | None = None
    distillation_items: pl.DataFrame | None = None
    samples: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            frame = getattr(self, field.name)
            if not isinstance(frame, pl.DataFrame):
                continue
            if missing := [name for name in COLUMNS[field.name] if name not in frame.columns]:
                raise ValueError(f"ReportData.{field.name} has no column {missing}; it has {frame.columns}.")
            if frame.is_empty():
                object.__setattr__(self, field.name, None)


def write_report(data: ReportData, folder: Path, title: str) -> Path:
    """Write `report.html`, `plots/*.png`, `data/*.parquet` and `data/*.csv`; return the page's path."""
    from assay.eval.charts import png

    figures = _figures(data)
    for name in ("plots", "data"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for figure in figures.values():
        (folder / "plots" / f"{figure.name}.png").write_bytes(png(figure))
        _write_numbers(figure.numbers, folder / "data" / figure.name)
    for name in ("samples", "outcomes", "benchmarks", "distillation_items"):
        if (frame := getattr(data, name)) is not None:
            _write_numbers(frame, folder / "data" / name)
    page = folder / "report.html"
    page.write_text(_render(data, figures, title), encoding="utf-8")
    return page


def _write_numbers(frame: pl.DataFrame, stem: Path) -> None:
    frame.write_parquet(stem.with_suffix(".parquet"))
    lists = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.List)]
    joined = [pl.col(name).cast(pl.List(pl.String)).list.join("; ") for name in lists]  # CSV has no lists
    frame.with_columns(joined).write_csv(stem.with_suffix(".csv"))


def _figures(data: ReportData) -> dict[str, Figure]:
    from assay.eval import plots

    by_metric = {} if data.curves is None else {kind: data.curves.filter(metric=kind) for kind in plots.CURVES}
    models = [] if data.curves is None else data.curves["model"].unique(maintain_order=True).to_list()  # keep colours
    makers: list[tuple[Any, Callable[..., Figure]]] = [
        (None if data.curves is None else headline(data.curves), plots.headline),
        (data.funnel, plots.funnel),
        (data.pass_rates, partial(plots.pass_rates, band=data.band)),
        (data.steps, plots.training),
        *((by_metric.get(kind), partial(plots.curves, kind=kind, models=models)) for kind in plots.CURVES),
        (data.difference, plots.difference),
        (data.four_way, plots.four_way),
        (data.budgets, plots.budgets),
        (data.budgets, plots.endings),
        (data.distillation, plots.distillation),
    ]
    figures = [make(frame) for frame, make in makers if frame is not None and len(frame)]
    return {figure.name: figure for figure in figures}


# ---------------------------------------------------------------------------- what the numbers say, in words


def percent(value: Mapping[str, Any]) -> str:
    """A share with its interval, which one item alone does not give, in per cent; it does not break over lines."""
    ends = "no\u00a0interval" if value["low"] is None else f"{value['low']:.1%},\u00a0{value['high']:.1%}"
    return f"{value['value']:.1%} [{ends}]"


@dataclass(frozen=True)
class Card:
    """One headline number."""

    label: str
    value: str
    note: str = ""


def cards(summary: Mapping[str, Any]) -> list[Card]:
    """The headline numbers that the summary has, intervals among them."""
    evaluation, training = summary.get("evaluation") or {}, summary.get("training") or {}
    found = []
    for metric in evaluation.get("trained") or {}:
        base = (evaluation.get("base") or {}).get(metric)
        value, _, interval = percent(evaluation["trained"][metric]).partition(" ")
        found.append(Card(f"{metric}, trained", value, interval + (f"\nbase {percent(base)}" if base else "")))
    single = {"": change} if (change := evaluation.get("difference_pass@1")) else {}
    for benchmark, change in (single or evaluation.get("differences_pass@1") or {}).items():
        value, _, interval = points(**change).partition(" ")
        label = f"{benchmark}: change of pass@1" if benchmark else "Change of pass@1"
        found.append(Card(label, f"{value} points", f"{interval}, paired"))
    if (rows := summary.get("curation")) and rows.get("rows_in"):
        note = f"{rows['rows_out'] / rows['rows_in']:.1%} of {rows['rows_in']:,} rows"
        found.append(Card("Problems curated", f"{rows['rows_out']:,}", note))
    if training.get("steps") is not None:
        found.append(Card("Training", f"{training['steps']:,} steps", str(training.get("algorithm") or "")))
    if training.get("tokens_per_second") is not None:
        share = training.get("share_outside_engine_and_torch")
        note = "" if share is None else f"{share:.1%} of the time outside engine and torch"
        found.append(Card("Throughput", f"{training['tokens_per_second']:,.0f} tokens/s", note))
    if (seconds := summary.get("seconds")) is not None:
        found.append(Card("Wall time", duration(seconds["total"] if isinstance(seconds, Mapping) else seconds)))
    return found


def duration(seconds: float) -> str:
    """`45 s`, `13 min 32 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def moved(items: pl.DataFrame | None) -> tuple[list[dict[str, Any]], str]:
    """The items that students gained and lost, at most `MAX_ROWS`, texts cut short; and how many there are."""
    if items is None:
        return [], ""
    rows = items.head(MAX_ROWS).with_columns(pl.col("problem").str.head(MAX_TEXT)).to_dicts()
    several = items["student"].n_unique() > 1 or items["task"].n_unique() > 1
    for row in rows:
        row["of"] = f"{row['task']}, {row['student']}" if several else ""
    counts = [f"{(items['change'] == change).sum():,} {change}" for change in ("gained", "lost")]
    return rows, f"{', '.join(counts)}; shown are the {len(rows):,} greatest changes, of which some are chance. "


def gained(row: Mapping[str, Any]) -> str:
    """A student's change in words; empty for the others."""
    if row.get("gain") is None:
        return ""
    change = points(row["gain"], row["gain_low"], row["gain_high"])
    seen = "" if row.get("mdd") is None else f" (detectable: {100 * row['mdd']:.2f})"
    said = [f"{change} points{seen}, {row['gained']} items gained, {row['lost']} lost (p = {row['p']:.2g})"]
    if row["gap_recovered"] is not None:
        ends = "interval unknown" if row["gap_low"] is None else f"{row['gap_low']:.0%}, {row['gap_high']:.0%}"
        seen = "" if row.get("gap_mdd") is None else f" (detectable: {row['gap_mdd']:.0%})"
        said.append(f"of the gap {row['gap_recovered']:.0%} [{ends}]{seen}")
    few = caution(row["items"])
    return "; ".join([*said, *(["forgotten"] * bool(row["forgotten"])), *([few] if few else [])]).replace("-", "−")


# ------------------------------------------------------------------------------------------ samples to read


def split_thinking(completion: str) -> tuple[str | None, str]:
    """Thinking (None without any mark of it) and answer; the template may have opened `<think>` itself."""
    head, closed, answer = completion.partition("</think>")
    opened = head.lstrip().startswith("<think>")
    if not (closed or opened):
        return None, completion
    return head.lstrip().removeprefix("<think>").strip(), answer.strip()


def grouped(samples: pl.DataFrame, outcomes: pl.DataFrame | None = None) -> tuple[list[dict[str, Any]], str]:
    """At most `MAX_SAMPLES` completions by problem, in order of appearance; a note on how many there are in all."""
    places = samples.with_row_index("at").with_columns(start=pl.col("at").min().over("problem_id"))
    shown = places.sort("start", "at").head(MAX_SAMPLES)
    problems = [
        {**rows.row(0, named=True), "completions": [_completion(row) for row in rows.to_dicts()]}
        for rows in shown.partition_by("problem_id", maintain_order=True)
    ]
    items, taken = samples["problem_id"].n_unique(), samples.height
    if outcomes is not None:
        items, taken = int(outcomes.unique("benchmark")["items"].sum()), int(outcomes["samples"].sum())
    each = shown.group_by("problem_id", "model").len()["len"].unique().to_list()
    of = f"{each[0]} sample{'s' * (each[0] > 1)} of each model on " if len(each) == 1 else ""
    note = f"To read: {of}{len(problems):,} of {items:,} items, {shown.height:,} of {taken:,} samples. "
    return problems, note + "More are in data/samples.parquet. " * (shown.height < samples.height)


def _completion(row: Mapping[str, Any]) -> dict[str, Any]:
    text = row["completion"] or ""
    thinking, answer = split_thinking(text)
    thinking = thinking if thinking is None else _shorten(thinking)
    tags = row["tags"] if isinstance(row["tags"], list) else [row["tags"]] if row["tags"] else []
    extracted = row.get("extracted")
    why = row["reason"] or (None if extracted is None else f"answered {extracted[:200]}, gold {row['gold']}")
    return {**row, "why": why, "thinking": thinking, "answer": _shorten(answer), "tags": tags}


def _shorten(text: str) -> str:
    """The text, or its two ends with a note between them."""
    left_out = len(text) - MAX_CHARS
    if left_out <= 0:
        return text
    half = MAX_CHARS // 2
    return f"{text[:half]}\n\n[… {left_out:,} characters left out …]\n\n{text[-half:]}"


# ------------------------------------------------------------------------------------------------- the page


def _render(data: ReportData, figures: dict[str, Figure], title: str) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from assay.eval import charts

    assets = files("assay.eval") / "assets"
    css, js, page = (
        (assets / name).read_text(encoding="utf-8") for name in ("report.css", "report.js", "report.html.j2")
    )
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": percent, "reasons": _reasons, "numbers": _numbers, "gained": gained}
    problems, note = grouped(data.samples, data.outcomes) if data.samples is not None else ([], "")
    specs = {name: figure.specs for name, figure in figures.items()}
    return environment.from_string(page).render(
        title=title,
        data=data,
        figures=figures,
        cards=cards(data.summary or {}),
        checks=checks(data),
        notes=((data.summary or {}).get("evaluation") or {}).get("notes") or [],
        comparisons=told(data.difference),
        moved=moved(data.distillation_items),
        problems=problems,
        samples_note=note,
        colours=charts.COLOURS,
        css=Markup(css),
        charts=Markup(_script_json({"config": charts.CONFIG, "figures": specs})),
        scripts=[Markup(_script_text(text)) for text in (_vega(), js)],
    )


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _script_json(value: Any) -> str:
    """JSON that no text inside can end the script element with."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _script_text(text: str) -> str:
    return re.sub(r"</(script)", r"<\\/\1", text, flags=re.IGNORECASE).replace("<!--", "<\\!--")


def _reasons(text: str | None) -> list[tuple[str, int]]:
    """(reason, rows), most first."""
    return sorted(json.loads(text or "{}").items(), key=lambda item: -item[1])


def _numbers(frame: pl.DataFrame) -> list[list[str]] | None:
    """A figure's rows as text for the folded table, header first; None when they are too many to read."""
    if frame.height > MAX_ROWS:
        return None
    return [frame.columns, *[[_cell(value) for value in row] for row in frame.rows()]]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
