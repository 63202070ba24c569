"""Verifier against math-verify alone, side by side on the same completions: wall and processor seconds, verdicts.

    python tests/pipelines/bench_verify.py [FILE.jsonl]

The file's rows hold `gt` (gold), `code` (list of completions) and `score` (list of recorded verdicts). Without a file,
completions are made up: 800 chains of thought around integers and fractions.
"""

import json
import logging
import sys
import time
from pathlib import Path

from assay.pipelines.process_pool import _processor_seconds
from assay.pipelines.verify import Verifier

Seconds = tuple[float, float]
Items = list[tuple[str, str]]


def made_up(count: int = 800) -> tuple[Items, list[bool]]:
    golds = [str(i * 7 + 3) if i % 3 else f"\\frac{{{i + 1}}}{{{i + 2}}}" for i in range(count)]
    filler = "Adding the two sides gives $x + 2 = 9$, and so on. " * 20
    answers = [gold if i % 5 else "0" for i, gold in enumerate(golds)]
    return [(g, f"{filler}\\boxed{{{a}}}.") for g, a in zip(golds, answers)], [bool(i % 5) for i in range(count)]


def recorded(path: Path) -> tuple[Items, list[bool]]:
    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    return [(r["gt"], text) for r in rows for text in r["code"]], [bool(s) for r in rows for s in r["score"]]


def now(verifier: Verifier | None = None) -> Seconds:
    """On the clock, and of processor time with the verifier's workers."""
    workers = verifier._pool.processes() if verifier else []
    return time.perf_counter(), time.process_time() + sum(_processor_seconds(pid)[1] for pid in workers)


def since(start: Seconds, verifier: Verifier | None = None) -> Seconds:
    end = now(verifier)
    return end[0] - start[0], end[1] - start[1]


def time_math_verify(items: Items) -> tuple[Seconds, list[bool]]:
    """One process, its documented use: parse both sides, verify."""
    import math_verify

    logging.disable(logging.WARNING)
    math_verify.verify(math_verify.parse("$1$"), math_verify.parse("$x$"))
    start = now()
    verdicts = [bool(math_verify.verify(math_verify.parse(f"${g}$"), math_verify.parse(text))) for g, text in items]
    return since(start), verdicts


def time_verifier(items: Items, warm: bool) -> tuple[Seconds, list[bool]]:
    """With workers that have answered before or with none started, and nothing cached."""
    with Verifier(workers=2) as verifier:
        if warm:
            verifier.grade_many([("x+1", f"\\boxed{{y+{i}}}") for i in range(8)])
        start = now(verifier)
        verdicts = verifier.grade_many(items)
        return since(start, verifier), [verdict.status == "correct" for verdict in verdicts]


def integers_per_second(count: int = 100_000) -> float:
    items = [(str(i % 1000), f"<think>a thought</think> so it is \\boxed{{{i % 700}}}") for i in range(count)]
    with Verifier() as verifier:
        start = time.perf_counter()
        verifier.grade_many(items)
        return count / (time.perf_counter() - start)


def main() -> None:
    items, scores = recorded(Path(sys.argv[1])) if len(sys.argv) > 1 else made_up()
    cold, _ = time_verifier(items, warm=False)
    warm, ours = time_verifier(items, warm=True)
    alone, theirs = time_math_verify(items)
    print(
        f"{len(items)} completions; agreement with the recorded verdicts: assay {_agreement(ours, scores)}, "
        f"math-verify {_agreement(theirs, scores)}"
    )
    for name, (clock, processor) in (("math-verify alone", alone), ("assay, warm", warm), ("assay, cold", cold)):
        print(f"{name:18} {clock:8.3f} s on the clock, x{alone[0] / clock:.0f}; "
              f"{processor:8.3f} s of processor time, x{alone[1] / processor:.0f}")  # fmt: skip
    print(f"integers after thinking: {integers_per_second():.0f} /s")


def _agreement(verdicts: list[bool], scores: list[bool]) -> str:
    return f"{sum(a == b for a, b in zip(verdicts, scores))}/{len(scores)}"


if __name__ == "__main__":
    main()
