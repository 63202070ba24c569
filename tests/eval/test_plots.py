"""The figures: places, bins, captions and colours, by hand; the PNG by its bytes."""

import json
import math
import re
import struct

import polars as pl
import pytest

from assay.eval import charts, plots
from assay.eval.charts import COLOURS, Log2Axis


def bands(**columns: list) -> pl.DataFrame:
    estimate = pl.col("estimate")
    return pl.DataFrame(columns).with_columns(low=(estimate - 0.05), high=(estimate + 0.05))


CURVES = bands(
    benchmark=["b"] * 4, model=["base", "base", "rl", "rl"], k=[1, 4, 1, 4], estimate=[0.4, 0.8, 0.6, 0.7]
)
BUDGETS = bands(
    benchmark=["b"] * 6,
    model=["base"] * 3 + ["rl"] * 3,
    budget=[0, 256, 1024] * 2,
    k=[1] * 6,
    estimate=[0.1, 0.3, 0.5, 0.2, 0.5, 0.6],
).with_columns(natural=pl.lit(0.7), forced=pl.lit(0.2), truncated=pl.lit(0.1), empty=pl.lit(0.0))


LONG = [f"organisation/Very-Long-Model-Name-of-Reasoning-7B-{end}" for end in ("base", "rl")]


def values(panel: dict) -> list[dict]:
    """The rows of a chart, those of its reference marks aside."""
    return max(panel["datasets"].values(), key=len)


def test_zero_stands_one_step_left_of_the_least_budget() -> None:
    axis = Log2Axis(BUDGETS, "budget", "budget")
    assert axis.zero == 128
    rows = values(axis.chart(BUDGETS).mark_point().to_dict())
    assert [row["x"] for row in rows[:3]] == [128, 256, 1024]
    (mark,) = axis.zero_mark()
    assert values(mark.to_dict())[0]["x"] == pytest.approx(math.sqrt(128 * 256))


def test_the_axis_is_base_two_and_labels_zero_only_when_measured() -> None:
    encoding = plots.budgets(BUDGETS).panels[0].to_dict()["layer"][-1]["encoding"]["x"]
    assert (encoding["scale"]["type"], encoding["scale"]["base"]) == ("log", 2)
    assert encoding["axis"]["values"] == [128, 256, 1024]
    assert "? '0'" in encoding["axis"]["labelExpr"]
    k_axis = Log2Axis(CURVES, "k", "k")
    assert k_axis.zero_mark() == []
    assert "'0'" not in k_axis.chart(CURVES).mark_point().to_dict()["encoding"]["x"]["axis"]["labelExpr"]


def test_models_stand_side_by_side_on_one_scale() -> None:
    panels = [panel.to_dict() for panel in plots.budgets(BUDGETS).panels]
    assert [panel["title"] for panel in panels] == ["base", "rl"]
    domains = [panel["layer"][1]["encoding"]["y"]["scale"]["domain"] for panel in panels]
    assert domains[0] == domains[1] == [0, pytest.approx(0.7)]


def test_long_names_are_cut_where_they_stay_apart() -> None:
    assert charts.shortened(["abcdefghij", "abc"], 5) == {"abcdefghij": "a…hij", "abc": "abc"}
    assert list(charts.shortened(LONG, 18).values()) == ["organi…ing-7B-base", "organi…oning-7B-rl"]
    assert list(charts.shortened(["aaaaXbbbbbb", "aaaaYbbbbbb"], 8).values()) == ["…Xbbbbbb", "…Ybbbbbb"]
    whole = ["a" * 9 + x + "b" * 9 for x in "XY"]
    assert list(charts.shortened(whole, 8).values()) == whole
    names = {"model": LONG[:1], "base": LONG[1:]}
    pair = pl.DataFrame(names).select(plots._pair_name(pl.DataFrame(names))).item()
    assert pair == "organ…ing-7B-base − organ…oning-7B-rl"


def test_points_over_fewer_items_than_the_first_are_open_and_said() -> None:
    assert "Open" not in plots.curves(CURVES).caption
    assert "Open" not in plots.curves(CURVES.with_columns(items=5)).caption
    figure = plots.curves(CURVES.with_columns(items=pl.Series([5, 3, 5, 5])))
    assert "Open points are over fewer items" in figure.caption
    layer = figure.panels[0].to_dict()["layer"][-1]
    assert layer["mark"]["fill"] == "var(--paper)"
    assert "items" in [entry["field"] for entry in layer["encoding"]["tooltip"]]
    shown = figure.panels[0].to_dict()["datasets"][layer["data"]["name"]]
    assert [(row["model"], row["k"], row["items"]) for row in shown] == [("base", 4, 3)]


def test_a_sweep_says_its_cost_and_why_a_little_thinking_may_be_worse_than_none() -> None:
    assert not any(word in plots.budgets(BUDGETS).caption for word in ("Cost", "below"))
    cost = BUDGETS.with_columns(new_tokens=pl.Series([10, 20, 100] * 2), anew_tokens=pl.Series([10, 80, 110] * 2))
    cost = pl.concat([cost, cost.with_columns(k=pl.lit(2, pl.Int64))])  # a budget's tokens count once
    said = "260 tokens sampled, 1.18 times the longest budget alone (220); each budget anew: 400, 1.82 times"
    assert f"Cost: {said}." in plots.budgets(cost).caption
    dip = pl.when(budget=256, model="rl").then(0.1).otherwise("estimate")
    assert "budget lies below budget 0 (rl): the" in plots.budgets(BUDGETS.with_columns(estimate=dip)).caption


@pytest.mark.parametrize(
    ("numbers", "count", "expected"),
    [([1, 2, 4], 5, [1, 2, 4]), ([1, 2, 4, 8, 16], 3, [1, 4, 16]), ([1, 2, 4], 1, [2]), ([], 2, [])],
)
def test_spread(numbers: list[int], count: int, expected: list[int]) -> None:
    assert charts.spread(numbers, count) == expected


def test_eight_samples_give_nine_bars_and_unknown_is_not_zero() -> None:
    rates = [i / 8 for i in range(9)] + [0.5, None]
    frame = pl.DataFrame({"problem_id": list(map(str, range(11))), "pass_rate": rates})
    frame = frame.with_columns(kept=pl.col("pass_rate").is_between(0.2, 0.8))
    figure = plots.pass_rates(frame, (0.2, 0.8))
    bars = {row["pass_rate"]: row for row in values(figure.panels[0].to_dict())}
    assert sorted(bars) == [i / 8 for i in range(9)]
    assert (bars[0.5]["problems"], bars[0.0]["problems"]) == (2, 1)
    assert (bars[0.5]["part"], bars[0.0]["part"]) == ("kept", "removed")
    assert "10 problems with a pass rate; 1 unknown" in figure.caption
    *_, label = figure.panels[0].to_dict()["layer"]
    assert label["encoding"]["text"]["field"] == "label"  # in front of the bars, in the room above the highest
    bars_y = figure.panels[0].to_dict()["layer"][1]["encoding"]["y"]
    assert bars_y["scale"]["domain"] == [0, pytest.approx(2.24)]
    assert "60.0% of the known lie in the band" in figure.caption  # 2/8 ... 6/8 and the second 0.5


def test_many_rates_fall_into_twenty_bins_with_one_in_the_last() -> None:
    rates = [i / 200 for i in range(201)]
    frame = pl.DataFrame({"problem_id": rates, "pass_rate": rates, "kept": [True] * 201})
    bars = values(plots.pass_rates(frame, None).panels[0].to_dict())
    assert len(bars) == 20
    assert sum(bar["problems"] for bar in bars) == 201
    last = max(bars, key=lambda bar: bar["left"])
    assert (last["pass_rate"], last["problems"]) == (pytest.approx(0.975), 11)


def test_funnel_counts() -> None:
    rows = {"filter": ["answer_format", "difficulty"], "rows_in": [1000, 800], "rows_out": [800, 250]}
    figure = plots.funnel(pl.DataFrame({**rows, "reasons": ["{}", "{}"]}))
    assert figure.numbers["removed"].to_list() == [200, 550]
    assert figure.caption.startswith("250 of 1,000 rows (25.0%)")
    assert "answer format" in json.dumps(figure.panels[0].to_dict())


@pytest.mark.parametrize(
    ("metric", "panel"),
    [
        ("reward_mean", "Reward"),
        ("reward/accuracy", "Groups"),
        ("group_pass_rate", "Groups"),
        ("entropy", "Entropy"),
        ("kl_ref", "KL divergence"),
        ("approx/kl", "KL divergence"),
        ("ratio_error_max", "Ratio error"),
        ("ratio_mean", "Importance ratio"),
        ("clip_ratio_low", "Clip share"),
        ("completion_length_mean", "Completion length"),
        ("tokens_per_second", "Throughput"),
        ("truncated_share", "Samples without a verdict"),
        ("grad_norm", "Gradient norm"),
    ],
)
def test_a_metric_finds_its_panel(metric: str, panel: str) -> None:
    figure = plots.training(pl.DataFrame({"step": [1, 2], "metric": [metric] * 2, "value": [0.1, 0.2]}))
    assert [found.to_dict()["title"] for found in figure.panels] == [panel]


def test_a_metric_without_a_panel_is_named() -> None:
    steps = pl.DataFrame({"step": [1, 1], "metric": ["reward", "zzz"], "value": [1, 2]})
    figure = plots.training(steps)
    assert len(figure.panels) == 1
    assert "In the files only: zzz." in figure.caption
    assert figure.numbers.height == 2


def test_a_ratio_error_of_zero_is_drawn_at_the_floor() -> None:
    steps = pl.DataFrame({"step": [1, 2], "metric": ["ratio_error"] * 2, "value": [0.0, 2e-6]})
    panel = plots.training(steps).panels[0].to_dict()
    assert [row["value"] for row in values(panel)] == [plots.RATIO_FLOOR, 2e-6]
    assert panel["layer"][0]["encoding"]["y"]["scale"]["domain"] == [pytest.approx(1e-8), pytest.approx(1e-5)]


def test_long_runs_are_averaged_over_equal_spans() -> None:
    steps = pl.DataFrame({"step": range(1, 901), "metric": ["a"] * 900, "value": [float(i) for i in range(900)]})
    drawn = plots.thinned(steps)
    assert drawn.height == plots.MAX_POINTS
    assert drawn["value"].to_list()[:3] == [1.0, 4.0, 7.0]  # means of 0 1 2, 3 4 5, 6 7 8
    assert drawn["step"].to_list()[:3] == [1, 4, 7]


def test_the_rolling_mean_stays_within_its_metric() -> None:
    frame = pl.DataFrame({"step": [*range(100)] * 2, "metric": ["a"] * 100 + ["b"] * 100})
    drawn = plots.thinned(frame.with_columns(value=pl.when(pl.col("metric") == "a").then(1.0).otherwise(9.0)))
    assert set(drawn.filter(pl.col("metric") == "a")["smooth"].round(9)) == {1.0}
    assert set(drawn.filter(pl.col("metric") == "b")["smooth"].round(9)) == {9.0}


def differences(benchmarks: list[str], models: list[str], low: list[float]) -> pl.DataFrame:
    rows = [(b, m, "base", k, x + 0.1, x, x + 0.2) for b in benchmarks for m in models for k, x in zip((1, 2, 4), low)]
    names = ["benchmark", "model", "base", "k", "difference", "low", "high"]
    return pl.DataFrame(rows, orient="row", schema=names).with_columns(
        pl.lit(None, pl.Int64).alias(name) for name in ("crossing", "crossing_low", "crossing_high"))  # fmt: skip


def test_a_difference_has_a_panel_a_benchmark_and_a_colour_a_pair() -> None:
    figure = plots.difference(differences(["math", "code"], ["rl", "random"], [0.1, -0.1, -0.3]))
    assert [panel.to_dict()["title"] for panel in figure.panels] == ["math", "code"]
    panel = figure.panels[0].to_dict()
    assert panel["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["rl − base", "random − base"]
    assert {row["benchmark"] for row in values(panel)} == {"math"}
    assert "title" not in plots.difference(differences(["math"], ["rl"], [0.1, 0, 0])).panels[0].to_dict()


def test_a_crossing_is_drawn_with_its_interval_up_to_the_ends_of_the_axis() -> None:
    frame = differences(["math"], ["rl"], [0.1, -0.1, -0.3])
    assert "bar on the line of 0" not in plots.difference(frame).caption
    figure = plots.difference(frame.with_columns(crossing=2, crossing_low=None))
    assert "bar on the line of 0" in figure.caption
    (drawn,) = [rows for rows in figure.panels[0].to_dict()["datasets"].values() if {"crossing", "y"} <= set(rows[0])]
    assert [(row["low"], row["x"], row["high"]) for row in drawn] == [(1.0, 2.0, 4.0)]


def test_an_open_point_is_filled_only_where_the_interval_excludes_zero() -> None:
    layers = lambda low: plots.difference(differences(["math"], ["rl"], low)).panels[0].to_dict()["layer"]  # noqa: E731
    assert sum("filled" in layer["mark"] for layer in layers([-0.1, -0.1, -0.1])) == 0
    (filled,) = [layer for layer in layers([0.1, -0.1, -0.3]) if "filled" in layer["mark"]]
    assert filled["encoding"]["y"]["field"] == "difference"


def test_many_models_are_told_apart_by_colour_and_shape() -> None:
    looks = [(charts.CATEGORIES[i % 8], charts.SHAPES[i % 7]) for i in range(56)]
    assert (len(charts.CATEGORIES), len(charts.SHAPES), len(set(looks))) == (8, 7, 56)


def test_counts_of_outcomes_become_shares_and_shares_stay() -> None:
    counts = pl.DataFrame({"model": ["a", "b"], "budget": [1, 1], "natural": [3.0, 0.5], "forced": [1.0, 0.25]})
    counts = counts.with_columns(benchmark=pl.lit("x"), empty=pl.Series([0.0, 0.25]))
    figure = plots.endings(counts.with_columns(truncated=pl.lit(0.0), k=1, estimate=0, low=0, high=0))
    shares = [{row["outcome"]: row["share"] for row in values(panel.to_dict())} for panel in figure.panels]
    assert shares[0] == {"natural": 0.75, "forced": 0.25, "truncated": 0.0, "empty": 0.0}
    assert shares[1] == {"natural": 0.5, "forced": 0.25, "truncated": 0.0, "empty": 0.25}


def test_what_json_has_not_becomes_null() -> None:
    rows = charts.finite(pl.DataFrame({"a": [1.0, math.nan, math.inf], "b": [1, 2, 3]}))
    assert rows.to_dicts() == [{"a": 1.0, "b": 1}, {"a": None, "b": 2}, {"a": None, "b": 3}]


def test_a_model_keeps_its_colour_when_it_comes_second_elsewhere() -> None:
    only = plots.curves(CURVES.filter(pl.col("model") == "rl"), "maj@k", ["base", "rl"])
    scale = only.panels[0].to_dict()["layer"][0]["encoding"]["color"]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True))["rl"] == charts.CATEGORIES[1]


def test_png_is_painted_in_light_colours_and_sharp() -> None:
    figure = plots.curves(CURVES)
    assert set(re.findall(r"var\(--(\w+)\)", json.dumps([figure.specs, charts.CONFIG]))) <= set(COLOURS)
    image = charts.png(figure)
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", image[16:24])
    assert 1240 < width < 1600
    assert 600 < height < 1000


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("page", [0, 1], ids=["light", "dark"])
def test_colours_are_readable_on_their_page(page: int) -> None:
    paper = luminance(COLOURS["paper"][page])
    for name, pair in COLOURS.items():
        one, two = sorted([luminance(pair[page]), paper])
        contrast = (two + 0.05) / (one + 0.05)
        if name in ("ink", "soft"):
            assert contrast >= 4.5, name  # text
        elif name not in ("paper", "panel", "line", "faint"):
            assert contrast >= 3, name  # graphics


def test_every_pair_has_a_panel_of_who_solves_what() -> None:
    cells = ["both", "a only", "base only", "neither"]
    one = pl.DataFrame({"benchmark": "x", "cell": cells, "items": [1.0, 2.0, 3.0, 4.0]})
    assert len(plots.four_way(one).panels) == 1  # results of earlier versions name no pair
    pairs = pl.concat([one.with_columns(model=pl.lit(model), base=pl.lit("base")) for model in ("a", "b")])
    found = plots.four_way(pairs)
    assert [spec["title"] for spec in found.specs] == ["a", "b"]
    shown = [row["label"] for row in next(iter(found.specs[0]["datasets"].values()))]
    assert shown == ["1 (10.0%)", "2 (20.0%)", "3 (30.0%)", "4 (40.0%)"]  # of its own ten items


def test_metrics_of_two_runs_are_told_apart_in_a_legend() -> None:
    names = [f"reward, chains-dr-grpo-2026113{i}-234806" for i in (0, 1)]
    steps = pl.DataFrame({"step": [1, 1], "metric": names, "value": [0.5, 0.6]})
    legend = plots.training(steps).specs[0]["layer"][0]["encoding"]["color"]["legend"]
    shown = json.loads(legend["labelExpr"].partition(")")[0].removeprefix("("))
    assert len({shown[name] for name in names}) == 2
    assert all(len(shown[name]) <= 19 for name in names)
