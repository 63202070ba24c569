"""Verifier against math-verify alone, side by side on the same completions: seconds, items a second, verdicts.

    python tests/pipelines/bench_verify.py [FILE.jsonl]

The file's rows hold `gt` (gold), `code` (list of completions) and `score` (list of recorded verdicts). Without a file,
completions are made up: 800 chains of thought around integers and fractions.
"""

import json
import logging
import sys
import time
from pathlib import Path

from assay.pipelines.verify import Verifier

Items = list[tuple[str, str]]


def made_up(count: int = 800) -> tuple[Items, list[bool]]:
    golds = [str(i * 7 + 3) if i % 3 else f"\\frac{{{i + 1}}}{{{i + 2}}}" for i in range(count)]
    filler = "Adding the two sides gives $x + 2 = 9$, and so on. " * 20
    answers = [gold if i % 5 else "0" for i, gold in enumerate(golds)]
    return [(g, f"{filler}\\boxed{{{a}}}.") for g, a in zip(golds, answers)], [bool(i % 5) for i in range(count)]


def recorded(path: Path) -> tuple[Items, list[bool]]:
    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    return [(r["gt"], text) for r in rows for text in r["code"]], [bool(s) for r in rows for s in r["score"]]


def time_math_verify(items: Items) -> tuple[float, list[bool]]:
    """One process, its documented use: parse both sides, verify."""
    import math_verify

    logging.disable(logging.WARNING)
    math_verify.verify(math_verify.parse("$1$"), math_verify.parse("$x$"))
    start = time.perf_counter()
    verdicts = [bool(math_verify.verify(math_verify.parse(f"${g}$"), math_verify.parse(text))) for g, text in items]
    return time.perf_counter() - start, verdicts


def time_verifier(items: Items) -> tuple[float, float, list[bool]]:
    """Seconds with no worker started yet, seconds with workers warm and nothing cached, verdicts."""
    with Verifier(workers=2) as cold:
        start = time.perf_counter()
        cold.grade_many(items)
        cold_seconds = time.perf_counter() - start
    with Verifier(workers=2) as warm:
        warm.grade_many([("x+1", f"\\boxed{{y+{i}}}") for i in range(8)])
        start = time.perf_counter()
        verdicts = warm.grade_many(items)
        return cold_seconds, time.perf_counter() - start, [verdict.status == "correct" for verdict in verdicts]


def integers_per_second(count: int = 100_000) -> float:
    items = [(str(i % 1000), f"<think>a thought</think> so it is \\boxed{{{i % 700}}}") for i in range(count)]
    with Verifier() as verifier:
        start = time.perf_counter()
        verifier.grade_many(items)
        return count / (time.perf_counter() - start)


def main() -> None:
    items, scores = recorded(Path(sys.argv[1])) if len(sys.argv) > 1 else made_up()
    cold, warm, ours = time_verifier(items)
    alone, theirs = time_math_verify(items)
    print(
        f"{len(items)} completions; agreement with the recorded verdicts: assay {_agreement(ours, scores)}, "
        f"math-verify {_agreement(theirs, scores)}"
    )
    print(f"math-verify alone  {alone:8.3f} s  {len(items) / alone:10.0f} /s")
    print(f"assay, warm        {warm:8.3f} s  {len(items) / warm:10.0f} /s  x{alone / warm:.0f}")
    print(f"assay, cold        {cold:8.3f} s  (workers start when an item needs them)")
    print(f"integers after thinking: {integers_per_second():.0f} /s")


def _agreement(verdicts: list[bool], scores: list[bool]) -> str:
    return f"{sum(a == b for a, b in zip(verdicts, scores))}/{len(scores)}"


if __name__ == "__main__":
    main()
