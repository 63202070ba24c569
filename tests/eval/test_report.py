"""The page: what it says (by hand), what it must not let through, and how it behaves in a real browser."""

import json
import math
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assay.eval import report
from assay.eval.checks import checks
from assay.eval.report import ReportData, cards, write_report

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
TRAINED = {"evaluation": {"trained": {"pass@1": {"value": 0.5, "low": 0.4, "high": 0.6}}}}
MODELS = ("Qwen3-0.6B-base", "chains-dr-grpo-step-150")
HOSTILE = "<think>a</think><script>window.pwned = 1</script></script><img src=x onerror='window.pwned = 1'>"


def banded(value: float, half: float = 0.03) -> dict[str, float]:
    return {"estimate": value, "low": max(0.0, value - half), "high": min(1.0, value + half)}


def curve_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A base that overtakes the trained model as k grows, and the differences."""
    curves, differences = [], []
    for k in (2**i for i in range(8)):
        base, trained = (
            a + b * (1 - math.exp(-c * math.log2(k))) for a, b, c in ((0.40, 0.47, 0.42), (0.58, 0.24, 0.36))
        )
        for name, value in zip(MODELS, (base, trained)):
            curves.append({"benchmark": "chains", "model": name, "metric": "pass@k", "k": k, **banded(value)})
        gain = trained - base
        differences.append(compared(k, gain, gain - 0.03, gain + 0.03))
    return curves, differences


def compared(k: int, difference: float, low: float, high: float, **more: Any) -> dict[str, Any]:
    """A row of `compare_pass_at_k`."""
    row = {"benchmark": "chains", "model": MODELS[1], "base": MODELS[0], "k": k, "items": 650, "mdd": 0.041, "p": None}
    ends = {"a": 0.4 + difference, "b": 0.4, "difference": difference, "low": low, "high": high}
    return row | ends | {"crossing": 16, "crossing_low": 6, "crossing_high": None} | more


def differing(*rows: dict[str, Any]) -> pl.DataFrame:
    types = {"p": pl.Float64, "crossing_high": pl.Int64}
    return pl.DataFrame(list(rows), schema_overrides=types, infer_schema_length=None)


def budget_rows() -> list[dict[str, Any]]:
    rows = []
    for which, model in enumerate(MODELS):
        for budget in (0, 128, 512, 1024, 4096, 16384):
            forced = math.exp(-budget / (900 + 700 * which)) if budget else 0.0
            ends = {"natural": 0.97 * (1 - forced), "forced": 0.97 * forced, "truncated": 0.02, "empty": 0.01}
            for k in (1, 4, 16):
                value = 0.12 + 0.06 * math.log2(k) + (0.32 + 0.2 * which) * (1 - math.exp(-budget / 1200))
                rows.append({"benchmark": "chains", "model": model, "budget": budget, "k": k, **banded(value), **ends})
    return rows


def step_rows(rng: random.Random) -> list[dict[str, Any]]:
    """Metric: start, change over the run, noise."""
    shapes = {
        "reward_mean": (0.4, 0.2, 0.03),
        "group_pass_rate": (0.42, 0.2, 0.03),
        "groups_all_right": (0.1, 0.15, 0.02),
        "entropy": (0.6, -0.25, 0.01),
        "kl_ref": (0.001, 0.02, 0.001),
        "ratio_error_max": (4e-6, 0, 1e-6),
        "clip_high_share": (0.004, 0, 0.001),
        "length_mean": (220, 90, 6),
        "tokens_per_second": (7400, 0, 180),
        "learning_rate": (5e-5, 0, 0),
    }
    return [
        {"step": step, "metric": name, "value": start + change * (1 - math.exp(-step / 60)) + rng.gauss(0, noise)}
        for step in range(1, 151)
        for name, (start, change, noise) in shapes.items()
    ]


def sample_rows(rng: random.Random) -> list[dict[str, Any]]:
    rows = []
    for i in range(24):
        a, b = rng.randint(10, 50), rng.randint(10, 50)
        for which, model in enumerate(MODELS):
            status = ("correct", "wrong", "truncated", "unverifiable")[(i + which) % 4]
            found = a + b + (status == "wrong")
            answer = "" if status == "truncated" else f"</think>\n\nThe sum is \\boxed{{{found}}}."
            row = {"problem_id": f"chains-{i:04d}", "problem": f"Compute ${a} + {b}$.", "gold": str(a + b)}
            row |= {"model": model, "status": status, "tokens": 40 + i, "tags": ["chains", f"terms={2 + i % 3}"]}
            row["completion"] = f"<think>\nTens of {a}, then ones & x < 3.\n{answer}"
            rows.append({**row, "reason": f"{found} is not {a + b}" if status == "wrong" else None})
    rows[1]["completion"] = HOSTILE
    return rows


def realistic() -> ReportData:
    rng = random.Random(7)
    ladder = [
        ("answer_format", 48210, {"multiple_choice": 5120, "proof": 3186}),
        ("duplicates", 39904, {"near_duplicate": 7239}),
    ]
    ladder += [
        ("contamination", 32665, {"ngram": 118, "exact": 41}),
        ("difficulty", 32506, {"too_easy": 12400, "too_hard": 12106}),
    ]
    funnel = [
        {"filter": f, "rows_in": n, "rows_out": n - sum(r.values()), "reasons": json.dumps(r)} for f, n, r in ladder
    ]
    rates = [sum(rng.random() < p for _ in range(8)) / 8 for p in (rng.betavariate(0.7, 0.8) for _ in range(2000))] + [
        None
    ]
    curves, differences = curve_rows()
    share = lambda value: {"value": value, "low": value - 0.03, "high": value + 0.03}  # noqa: E731
    scores = {
        "base": {"pass@1": share(0.4), "maj@8": share(0.49)},
        "trained": {"pass@1": share(0.58), "maj@8": share(0.69)},
    }
    speed = {"ratio_error_first_step": 3.1e-6, "tokens_per_second": 7402.0, "share_outside_engine_and_torch": 0.034}
    summary = {
        "seconds": 812.4,
        "curation": {"rows_in": 48210, "rows_out": 8000, "removed": 40210},
        "training": {"steps": 150, "algorithm": "dr_grpo", **speed},
        "evaluation": {**scores, "difference_pass@1": {"value": 0.18, "low": 0.15, "high": 0.21}},
    }
    students = [("teacher", 0.91, 312), ("student before", 0.42, 180), ("student after", 0.78, 265)]
    return ReportData(
        summary=summary,
        funnel=pl.DataFrame(funnel),
        pass_rates=pl.DataFrame({"pass_rate": rates}).with_columns(
            problem_id=pl.int_range(pl.len()).cast(pl.String), kept=pl.col("pass_rate").is_between(0.2, 0.8)
        ),
        band=(0.2, 0.8),
        steps=pl.DataFrame(step_rows(rng)),
        curves=pl.DataFrame(curves + [
            row | {"metric": m} for m, most in (("maj@k", 32), ("best-of-k", 16)) for row in curves if row["k"] < most
        ]),
        difference=differing(*differences),
        budgets=pl.DataFrame(budget_rows()),
        four_way=pl.DataFrame(
            {"cell": ["both", "base only", "trained only", "neither"], "items": [412.0, 38.0, 121.0, 79.0]}
        ).with_columns(benchmark=pl.lit("chains")),
        outcomes=pl.DataFrame(
            {"benchmark": "chains", "model": MODELS, "items": 650, "samples": 83_200, "unscored": [120, 31]}
        ),
        benchmarks=pl.DataFrame(
            {"benchmark": ["chains"], "items": [650], "revision": ["v1"], "hash": ["fa5e48dc"], "contaminated": [2]}
        ),
        distillation=pl.DataFrame(
            [
                {"task": "chains", "model": m, "accuracy": a, "low": a - 0.04, "high": a + 0.04, "tokens": n}
                for m, a, n in students
            ]
        ),
        distillation_items=moved_rows(),
        samples=pl.DataFrame(sample_rows(rng)),
    )


def moved_rows() -> pl.DataFrame:
    rows = [("s", "chains", f"item{i}", HOSTILE if i == 1 else f"Sum {i} terms.", 1.0, 0.25, 0.5 + i / 8, "gained")
            for i in range(3)]  # fmt: skip
    rows.append(("s", "chains", "item9", "Count the lost sheep.", None, 0.5, 0.25, "lost"))
    return pl.DataFrame(rows, schema=list(report.COLUMNS["distillation_items"]), orient="row")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(realistic(), tmp_path_factory.mktemp("report"), "Chains & <sums>").parent


# ------------------------------------------------------------------------------------------------- by hand


def test_a_frame_without_its_columns_is_refused() -> None:
    frame = differing(compared(1, 0.1, 0.0, 0.2)).drop("low", "high")
    with pytest.raises(ValueError, match=r"ReportData\.difference has no column \['low', 'high'\]"):
        ReportData(difference=frame)


@pytest.mark.parametrize(
    ("completion", "thinking", "answer"),
    [
        ("<think>\na\n</think>\n\nb", "a", "b"),
        ("a</think>b", "a", "b"),  # the template opened the thinking
        ("\n<think>never ended", "never ended", ""),
        ("plain <think> later", None, "plain <think> later"),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
    ],
)
def test_split_thinking(completion: str, thinking: str | None, answer: str) -> None:
    assert report.split_thinking(completion) == (thinking, answer)


@pytest.mark.parametrize(
    ("low", "high", "verdict", "words"),
    [(0.01, 0.2, "good", "rose"), (-0.01, 0.2, "open", "includes 0"), (-0.2, -0.01, "bad", "fell")],
)
def test_a_gain_is_claimed_only_when_its_interval_excludes_zero(
    low: float, high: float, verdict: str, words: str
) -> None:
    frame = differing(compared(1, (low + high) / 2, low, high, items=20))
    (check,) = checks(ReportData(difference=frame, summary=TRAINED))
    assert check.verdict == verdict
    assert words in check.claim
    assert "paired; detectable: 4.10. 20 items: the interval is rough" in check.evidence


def test_coverage_is_judged_at_the_greatest_k() -> None:
    frame = differing(compared(64, -0.05, -0.09, -0.01), compared(1, 0.2, 0.1, 0.3))
    gain, coverage = checks(ReportData(difference=frame, summary=TRAINED))
    assert (gain.verdict, coverage.verdict) == ("good", "bad")
    assert "k = 64" in coverage.claim
    assert coverage.evidence.startswith("−5.00 [−9.00,\u00a0−1.00] points")


def test_of_two_models_that_no_training_joins_only_who_solves_more_is_said() -> None:
    rows = compared(1, 0.2, 0.1, 0.3), compared(8, 0.1, -0.1, 0.3), compared(64, -0.05, -0.09, -0.01)
    found = checks(ReportData(difference=differing(*rows)))
    assert [(check.verdict, check.claim) for check in found] == [
        ("good", f"{MODELS[1]} solves more than {MODELS[0]} at k = 1"),
        ("good", f"{MODELS[0]} solves more than {MODELS[1]} at k = 64")]
    (unclear,) = checks(ReportData(difference=differing(rows[1])))
    assert (unclear.verdict, unclear.claim[:13]) == ("open", "No difference")


def test_a_gain_that_random_rewards_give_too_is_doubted() -> None:
    control = {"summary": {"evaluation": {"controls": ["random"]}}}
    rows = [compared(1, 0.06, 0.02, 0.10), compared(1, 0.05, 0.01, 0.09, model="random")]
    found = checks(ReportData(difference=differing(*rows, compared(1, 0.01, -0.03, 0.05, base="random")), **control))
    assert [check.verdict for check in found] == ["good", "bad", "open"]
    assert all(word in check.claim for word, check in zip(("rose", "spurious", "not shown to exceed"), found))
    clean = [compared(1, 0.0, -0.02, 0.02, model="random"), compared(1, 0.06, 0.02, 0.10, base="random")]
    assert [check.verdict for check in checks(ReportData(difference=differing(*clean), **control))] == ["good", "good"]


def test_contaminated_benchmarks_and_missing_verdicts_are_told() -> None:
    data = realistic()
    found = {check.claim: check for check in checks(ReportData(benchmarks=data.benchmarks, outcomes=data.outcomes))}
    assert found["Benchmark items stand in the training set: their accuracy is too high"].evidence == "chains 2 of 650"
    assert found["Few samples have no verdict"].verdict == "good"
    assert checks(ReportData(benchmarks=data.benchmarks.with_columns(contaminated=pl.lit(None, pl.Int64)))) == []
    assert checks(ReportData(benchmarks=data.benchmarks.with_columns(contaminated=0)))[0].verdict == "good"
    assert checks(ReportData(outcomes=data.outcomes.with_columns(unscored=9_000)))[0].verdict == "open"


def test_doubts_of_sampler_contamination_and_truncation() -> None:
    row = {"benchmark": ["b"], "model": ["m"], "budget": [8], "k": [1], "estimate": [0.5], "low": [0.4], "high": [0.6]}
    data = ReportData(
        summary={"training": {"ratio_error_first_step": 2e-3}},
        funnel=pl.DataFrame({"filter": ["answers"], "rows_in": [2], "rows_out": [1], "reasons": ["{}"]}),
        budgets=pl.DataFrame({**row, "natural": [3], "forced": [4], "truncated": [1], "empty": [0]}),
    )
    assert [check.verdict for check in checks(data)] == ["bad", "bad", "open"]
    assert "12.5%" in checks(data)[-1].evidence  # 1 of 8


def test_what_a_student_gained_in_words() -> None:
    row = {"gain": 0.3, "gain_low": 0.2, "gain_high": 0.4, "gained": 9, "lost": 2, "p": 0.065, "forgotten": False}
    row["items"] = 100
    gap = {"gap_recovered": 0.75, "gap_low": 0.5, "gap_high": 0.98}
    said = "+30.00 [+20.00,\u00a0+40.00] points, 9 items gained, 2 lost (p = 0.065)"
    assert report.gained(row | gap) == f"{said}; of the gap 75% [50%, 98%]"
    assert report.gained(row | gap | {"gap_low": None}).endswith("; of the gap 75% [interval unknown]")
    seen = report.gained(row | gap | {"mdd": 0.0612, "gap_mdd": 0.153, "items": 20})
    assert seen.startswith("+30.00 [+20.00,\u00a0+40.00] points (detectable: 6.12), 9 items")
    assert "[50%, 98%] (detectable: 15%); 20 items: the interval is rough" in seen
    lost = {"gain": -0.1, "gain_low": -0.2, "gain_high": -0.05, "forgotten": True}
    assert report.gained(row | lost | dict.fromkeys(gap)).startswith("−10.00 [−20.00,\u00a0−5.00] points")
    assert report.gained(row | lost | dict.fromkeys(gap)).endswith("(p = 0.065); forgotten")
    assert report.gained({"model": "teacher", "gain": None}) == ""


def test_items_gained_and_lost_are_told_apart_where_there_are_several_students() -> None:
    rows, note = report.moved(moved_rows())
    assert note == "3 gained, 1 lost; shown are the 4 greatest changes, of which some are chance. "
    assert [row["of"] for row in rows] == [""] * 4
    two = pl.concat([moved_rows(), moved_rows().with_columns(student=pl.lit("t"))])
    assert report.moved(two)[0][7]["of"] == "chains, t"
    many = pl.concat([moved_rows()] * 200)
    assert (len(report.moved(many)[0]), report.moved(many)[1][:21]) == (400, "600 gained, 200 lost;")
    assert report.moved(None) == ([], "")


def test_samples_are_capped_and_say_so() -> None:
    row = {"problem": "p", "gold": "1", "model": "m", "status": "wrong", "reason": None, "tokens": 1, "tags": "a"}
    text = "x" * (report.MAX_CHARS + 1000)
    rows = [{**row, "problem_id": f"{i % 150}", "completion": text} for i in range(300)]
    frame = pl.DataFrame(rows)
    problems, note = report.grouped(frame)
    assert [len(problem["completions"]) for problem in problems] == [2] * 100  # whole problems, first to last
    assert note.startswith("To read: 2 samples of each model on 100 of 150 items, 200 of 300 samples. More are in")
    shown = problems[0]["completions"][0]
    assert "1,000 characters left out" in shown["answer"]
    assert len(shown["answer"]) < report.MAX_CHARS + 100
    assert shown["tags"] == ["a"]
    outcomes = pl.DataFrame({"benchmark": ["b", "b"], "model": ["m", "o"], "items": [400, 400], "samples": [900, 900]})
    assert report.grouped(frame.head(3), outcomes)[1].endswith("on 3 of 400 items, 3 of 1,800 samples. ")


def test_a_verdict_without_a_reason_shows_the_answer_beside_the_gold() -> None:
    row = pl.DataFrame(sample_rows(random.Random(7))).with_columns(extracted=pl.lit("27")).row(0, named=True)
    whys = [report._completion(row | more)["why"] for more in ({}, {"reason": "cut"}, {"extracted": None})]
    assert whys == [f"answered 27, gold {row['gold']}", "cut", None]


def test_a_table_of_some_hundred_rows_is_kept() -> None:
    frame = pl.DataFrame({"k": range(401)})
    assert len(report._numbers(frame.head(400)) or ()) == 401
    assert report._numbers(frame) is None


@pytest.mark.parametrize(("seconds", "text"), [(4.25, "4.25 s"), (812.4, "13 min 32 s"), (7500, "2 h 5 min")])
def test_duration(seconds: float, text: str) -> None:
    assert report.duration(seconds) == text


def test_changes_of_several_benchmarks_each_have_a_card_and_notes_are_shown(tmp_path: Path) -> None:
    change = {"value": 0.5, "low": 0.25, "high": 0.75}
    summary = {"evaluation": {"differences_pass@1": {"x": change, "y": change}, "notes": ["y has no verdict"]}}
    assert [card.label for card in cards(summary)] == ["x: change of pass@1", "y: change of pass@1"]
    page = write_report(ReportData(summary=summary), tmp_path, "t").read_text()
    assert "y has no verdict." in page


def test_headline_cards_carry_their_intervals() -> None:
    cards = {card.label: card for card in report.cards(realistic().summary or {})}
    assert cards["pass@1, trained"].value == "58.0%"
    assert cards["pass@1, trained"].note == "[55.0%,\u00a061.0%]\nbase 40.0% [37.0%,\u00a043.0%]"
    assert cards["Change of pass@1"].value == "+18.00 points"
    assert cards["Problems curated"].note == "16.6% of 48,210 rows"
    assert report.percent({"value": 0.5, "low": None, "high": None}) == "50.0% [no\u00a0interval]"


# ------------------------------------------------------------------------------------------------ the files


def test_every_figure_has_its_png_and_its_numbers(folder: Path) -> None:
    names = ["best_of_k", "budgets", "difference", "distillation", "endings", "four_way", "funnel", "headline"]
    names += ["majority", "pass_at_k", "pass_rates", "training"]
    assert sorted(path.stem for path in (folder / "plots").glob("*.png")) == names
    tables = ["benchmarks", "distillation_items", "outcomes", "samples"]
    assert sorted(path.stem for path in (folder / "data").glob("*.csv")) == sorted([*names, *tables])
    data = realistic()
    assert pl.read_parquet(folder / "data/pass_at_k.parquet").equals(data.curves.filter(metric="pass@k"))
    assert pl.read_parquet(folder / "data/samples.parquet").equals(data.samples)
    csv = pl.read_csv(folder / "data/samples.csv")
    assert csv["completion"].to_list() == data.samples["completion"].to_list()
    assert csv["tags"][0] == "chains; terms=2"


def test_nothing_is_loaded_from_elsewhere_and_no_text_escapes(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<(script|link|img|iframe|source)\b[^>]*\b(src|href)=\"?(?!\"?data:)", markup)
    assert "<script>window.pwned" not in page
    assert "&lt;script&gt;window.pwned = 1&lt;/script&gt;" in page
    assert "<title>Chains &amp; &lt;sums&gt;</title>" in page
    assert "The curves cross after k = 16 [6, beyond 128]." in page
    # One end tag for each start: no text inside a script closed it early.
    assert len(re.findall(r"</script", page, re.IGNORECASE)) == 3


def test_sections_appear_only_with_their_data(tmp_path: Path) -> None:
    four = pl.DataFrame({"benchmark": ["b"], "cell": ["</script><b>"], "items": [3]})
    page = write_report(
        ReportData(four_way=four, steps=pl.DataFrame(schema=dict.fromkeys(report.COLUMNS["steps"]))), tmp_path, "x"
    )
    text = page.read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)"', text) == ["accuracy"]
    assert "</script><b>" not in text
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["four_way.png"]


def test_importing_the_report_loads_no_altair() -> None:
    code = (
        "import sys, assay.eval.report; print({'altair', 'vl_convert', 'jinja2'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


# ---------------------------------------------------------------------------------------------- the browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not (CHROMIUM and DRIVER):
        pytest.skip("no chromium with its driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    flags = "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    for flag in [*flags.split(), "disable-component-update", "disable-sync"]:
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def show(browser: Any, folder: Path, width: int = 1400, scheme: str = "light") -> None:
    """Load the page at a width and a colour scheme and wait until the charts are drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}  # else clicks meet a moving page
    media = {"media": "", "features": [{"name": name, "value": value} for name, value in features.items()]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get((folder / "report.html").as_uri())
    drawn = "return document.documentElement.dataset.drawn === 'yes'"
    WebDriverWait(browser, 60).until(lambda page: page.execute_script(drawn))


# Of each chart its width, its right edge, and how many of its marks have an extent.
CHARTS = """return [...document.querySelectorAll('[data-figure] > div')].map(box => {
  const svg = box.querySelector('svg');
  if (!svg) return [0, 0, 0];
  const marks = [...svg.querySelectorAll('.mark-rect path, .mark-symbol path, .mark-line path')];
  const filled = marks.filter(mark => mark.getBBox().width + mark.getBBox().height > 1);
  return [svg.getBoundingClientRect().width, svg.getBoundingClientRect().right, filled.length]; })"""
LOOK = """return [getComputedStyle(document.body).backgroundColor,
  getComputedStyle(document.querySelector('svg .role-axis-label text')).fill]"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 400])
def test_every_chart_is_drawn_within_the_page_and_the_console_is_silent(browser: Any, folder: Path, width: int) -> None:
    browser.get_log("browser")
    show(browser, folder, width)
    charts = browser.execute_script(CHARTS)
    assert len(charts) == 9 + 8 + 4  # figures of one panel, training panels, the two budget figures
    assert all(drawn > 200 and right <= width and marks >= 2 for drawn, right, marks in charts), charts
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return window.pwned") is None


@pytest.mark.browser
def test_a_page_of_curves_alone_draws_every_chart(browser: Any, tmp_path: Path) -> None:
    write_report(ReportData(curves=pl.DataFrame(curve_rows()[0])), tmp_path, "curves")
    browser.get_log("browser")
    show(browser, tmp_path)
    assert [marks >= 2 for _, _, marks in browser.execute_script(CHARTS)] == [True] * 2  # headline and pass@k
    assert browser.get_log("browser") == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [2400, 400])
def test_print_has_its_own_width_and_the_first_samples_unfolded(browser: Any, folder: Path, width: int) -> None:
    show(browser, folder, width)
    before = browser.execute_script(CHARTS)
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    drawn = browser.execute_script("""return [...document.querySelectorAll('[data-figure] > div')].map(
      box => [box.clientWidth, Number(box.querySelector('svg').getAttribute('width'))])""")
    assert {wide for wide, _ in drawn} == {328, 680}
    assert all(abs(svg - wide) <= 30 for wide, svg in drawn), drawn
    assert len({wide for wide, _ in drawn[-5:-1]}) == 1  # base and RL alike, in both budget figures
    assert browser.execute_script("return document.querySelectorAll('.problem:not(.unprinted) [open]').length") == 12
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script(CHARTS) == before
    assert browser.execute_script("return document.querySelectorAll('[open]').length") == 0


@pytest.mark.browser
def test_search_and_filters_narrow_the_samples(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    show(browser, folder)
    shown = lambda: browser.find_element(By.ID, "shown").text  # noqa: E731
    assert shown() == "48 of 48 completions shown."
    browser.find_element(By.ID, "search").send_keys("CHAINS-0003")
    assert shown() == "2 of 48 completions shown."
    assert len([p for p in browser.find_elements(By.CSS_SELECTOR, ".problem") if p.is_displayed()]) == 1
    browser.find_element(By.ID, "search").clear()
    browser.find_element(By.ID, "search").send_keys("gold 72")
    assert 0 < int(shown().split()[0]) < 48
    browser.find_element(By.ID, "search").clear()
    browser.execute_script("document.getElementById('search').form.dispatchEvent(new Event('input'))")
    Select(browser.find_element(By.ID, "filter-status")).select_by_visible_text("wrong")
    assert shown() == "12 of 48 completions shown."
    Select(browser.find_element(By.ID, "filter-model")).select_by_visible_text(MODELS[0])
    assert shown() == "6 of 48 completions shown."
    Select(browser.find_element(By.ID, "filter-tag")).select_by_visible_text("terms=3")
    assert shown() == "2 of 48 completions shown."  # i = 1, 5, 9, ... of which i % 3 == 1


@pytest.mark.browser
def test_items_gained_and_lost_are_searched(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.by import By

    show(browser, folder)
    rows = browser.find_elements(By.CSS_SELECTOR, "#moved tbody tr")
    assert rows[3].text.split()[-3:] == ["item9", "50%", "25%"]  # the teacher has no verdict of it
    browser.find_element(By.CSS_SELECTOR, "[data-rows]").send_keys("SHEEP lost")
    assert [row.is_displayed() for row in rows] == [False, False, False, True]


@pytest.mark.browser
def test_thinking_is_folded_until_asked_for(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.by import By

    show(browser, folder, 400)
    completion = browser.find_element(By.CSS_SELECTOR, ".completion")
    thinking = completion.find_element(By.CSS_SELECTOR, ".thinking pre")
    assert not completion.find_element(By.CSS_SELECTOR, ":scope > pre").is_displayed()
    completion.find_element(By.CSS_SELECTOR, "summary").click()
    assert "\\boxed" in completion.find_element(By.CSS_SELECTOR, ":scope > pre").text
    assert not thinking.is_displayed()
    completion.find_element(By.CSS_SELECTOR, ".thinking summary").click()
    assert thinking.is_displayed()
    assert "x < 3" in thinking.text
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_charts_follow_the_colour_scheme_the_button_and_print(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.by import By

    show(browser, folder, scheme="light")
    light = browser.execute_script(LOOK)
    show(browser, folder, scheme="dark")
    dark = browser.execute_script(LOOK)
    assert light == ["rgb(255, 255, 255)", "rgb(89, 98, 110)"]
    assert dark == ["rgb(20, 23, 28)", "rgb(163, 173, 186)"]
    button = browser.find_element(By.ID, "theme")
    button.click()
    assert (button.text, browser.execute_script(LOOK)) == ("Colours: light", light)
    button.click()
    assert (button.text, browser.execute_script(LOOK)) == ("Colours: dark", dark)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.execute_script(LOOK) == light
    browser.execute_script("localStorage.clear()")
