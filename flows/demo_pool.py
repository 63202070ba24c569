"""The demo's raw pool: chains of sums in three schemas, messy on purpose, with a label for everything planted.

The labels go to a file of their own that no filter reads; a test compares the ledger with them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.flows.reasoner import Chain, phrase, sample_chain, story

__all__ = ["Pool", "write_pool"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Pool:
    """Paths of what `write_pool` wrote; `planted` has `source, line, key, label`."""

    drills: Path
    stories: Path
    gym: Path
    benchmark: Path
    planted: Path


def write_pool(folder: Path, problems: int = 640, benchmark_items: int = 400, seed: int = 0) -> Pool:
    """Write three sources (two JSONL files and one of `reasoning-gym`), the benchmark and the labels into `folder`.

    Args:
        problems: sound problems; some 160 others are planted among them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"demo-pool:{seed}")
    benchmark = _distinct(rng, benchmark_items, (3, 5), set())
    seen = {c.expression for c in benchmark}
    sound = _distinct(rng, problems, (3, 5), seen)
    pool = Pool(*(folder / f"{n}.jsonl" for n in ("drills", "stories", "gym", "benchmark", "planted")))
    exam = [phrase(c, rng) for c in benchmark]
    _write(pool.benchmark, [{"question": q, "gold": str(c.answer)} for q, c in zip(exam, benchmark)])
    drills = _drills(rng, sound[: 3 * problems // 4], exam, benchmark)
    stories = _stories(rng, sound[3 * problems // 4 :])
    gym = _gym(60, seed)
    labels: list[Row] = []
    for path, rows in ((pool.drills, drills), (pool.stories, stories), (pool.gym, gym)):
        rng.shuffle(rows)
        keyed = [
            {"key": f"{path.stem}-{i:03d}", **row} if isinstance(row, dict) else row for i, (row, _) in enumerate(rows)
        ]
        _write(path, keyed)
        labels += [
            {"source": path.stem, "line": i + 1, "key": f"{path.stem}-{i:03d}", "label": label}
            for i, (_, label) in enumerate(rows)
            if label
        ]
    _write(pool.planted, labels)
    return pool


def _distinct(rng: random.Random, count: int, terms: tuple[int, int], seen: set[str]) -> list[Chain]:
    """Chains whose expressions are all different, also from those in `seen`."""
    chains: list[Chain] = []
    while len(chains) < count:
        chain = sample_chain(rng, rng.randint(*terms))
        if chain.expression not in seen:
            seen.add(chain.expression)
            chains.append(chain)
    return chains


def _drills(
    rng: random.Random, sound: list[Chain], exam: list[str], benchmark: list[Chain]
) -> list[tuple[Row | str, str | None]]:
    """Schema `prompt`, `solution` (worked, the gold after `####`), `choices`."""

    def row(question: str, gold: object, **more: Any) -> Row:
        return {"prompt": question, "solution": f"Step by step.\n#### {gold}", **more}

    plain: list[tuple[Row | str, str | None]] = [(row(phrase(c, rng), c.answer), None) for c in sound]
    planted: list[tuple[Row | str, str | None]] = []
    planted += [
        (row(q.upper() if i % 2 else "Solve this. " + q, c.answer), "contaminated")
        for i, (q, c) in enumerate(zip(exam[:12], benchmark))
    ]
    planted += [(dict(r), "duplicate") for r, _ in plain[:15] if isinstance(r, dict)]
    planted += [
        (row(f"What is {a} + {b}?", a + b), "no_cot")
        for a, b in rng.sample([(a, b) for a in range(6) for b in range(6)], 12)
    ]
    planted += [(_multiple_choice(rng, row), "multiple_choice") for _ in range(15)]
    planted += [
        (row(f"Is {a} + {b} equal to {a + b + d}?", "No" if d else "Yes"), "true_false")
        for a, b, d in ((rng.randint(2, 20), rng.randint(2, 20), rng.choice((0, 1))) for _ in range(10))
    ]
    planted += [
        (row(f"Prove that {a} + {b} is {'even' if (a + b) % 2 == 0 else 'odd'}.", "see proof"), "proof")
        for a, b in ((rng.randint(2, 20), rng.randint(2, 20)) for _ in range(5))
    ]
    planted += [
        (row(f"What is {a} * {b}?", a * b), "too_hard")
        for a, b in ((rng.randint(23, 79), rng.randint(23, 79)) for _ in range(15))
    ]
    planted += [
        ('{"prompt": "What is 3 + ', "unparsable"),
        (row("", 7), "unparsable"),
        ({"solution": "#### 3"}, "unparsable"),
        (row("What is 5 + 4 - 3?", 6) | {"prompt": {"text": 3}}, "unparsable"),
    ]
    return plain + planted


def _multiple_choice(rng: random.Random, row: Any) -> Row:
    chain = sample_chain(rng, 3)
    values = [chain.answer + d for d in rng.sample(range(-4, 5), 4)]
    values[rng.randrange(4)] = chain.answer
    letter = "ABCD"[values.index(chain.answer)]
    if rng.random() < 0.5:
        return row(f"What is {chain.expression}?", letter, choices=[str(v) for v in values])
    options = " ".join(f"({x}) {v}" for x, v in zip("ABCD", values))
    return row(f"Which is {chain.expression}? {options}", letter)


def _stories(rng: random.Random, sound: list[Chain]) -> list[tuple[Row, str | None]]:
    """Schema `body`, `ask`, `target` (a number)."""

    def row(chain: Chain, gold: int) -> Row:
        body, _, ask = story(chain, rng).rpartition(". ")
        return {"body": body + ".", "ask": ask, "target": float(gold)}

    wrong = [c for c in _distinct(rng, 20, (2, 2), set()) if c.answer][:12]
    return [
        *((row(c, c.answer), None) for c in sound),
        *((row(c, int(f"{c.answer}{rng.randint(10, 99)}")), "wrong_gold") for c in wrong),  # two digits too many
    ]


def _gym(count: int, seed: int) -> list[tuple[Row, str | None]]:
    """Rows of reasoning-gym's `chain_sum` in its own schema: sums of single digits, some easy, some in reach."""
    return [(dict(r), None) for r in _chain_sums(count, seed)]


def _chain_sums(count: int, seed: int) -> Iterator[Row]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        import reasoning_gym
    yield from reasoning_gym.create_dataset(
        "chain_sum", size=count, seed=seed, min_terms=2, max_terms=6, min_digits=1, max_digits=1
    )


def _write(path: Path, rows: list[Any]) -> None:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
