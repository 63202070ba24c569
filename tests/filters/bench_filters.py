"""The filters' speed and memory, side by side in one run with what is usually done.

    python tests/filters/bench_filters.py [ROWS]     100,000 rows when not given; 1000000 for the full size

Made-up rows of 20 to 120 words against 2,000 benchmark items. Each part runs in a process of its own, with the rows
made in spans of which one is in memory at a time, so that its peak is its own; what makes the rows is not timed. The
usual way is a plain-Python set of word 8-grams over lower-cased text without extra white space, on a sample.
"""

import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

ITEMS, SPAN, SAMPLE, GRAM = 2_000, 50_000, 20_000, 8
COMMON = "the of a is and to in that for if with are each how many find what number all by"
Result = dict[str, float]


def vocabulary(rng: np.random.Generator) -> pl.Series:
    """Five thousand words, a few hundred numbers and some mathematics; the commonest words of problems come first."""
    common = re.findall(r"\w+", COMMON)
    pairs = [f"{c}{v}" for c in "bcdfghklmnprst" for v in "aeiou"]
    made = ["".join(rng.choice(pairs, size)) for size in rng.integers(1, 5, 5_000)]
    mathematics = ["$x^2+1$", "\\frac{1}{2}", "$n$", "(a+b)^2", "\\sqrt{3}", "$f(x)=2x$", "=", "why?", "so,", "done."]
    return pl.Series(common + mathematics * 3 + [str(n) for n in rng.integers(1, 2_000, 400)] + made)


def texts(rows: int, seed: int) -> pl.Series:
    """Rows of 20 to 120 words, drawn by Zipf's law."""
    words = vocabulary(np.random.default_rng(0))
    rng = np.random.default_rng(seed)
    share = np.cumsum(1 / np.arange(1, len(words) + 1) ** 0.8)
    length = rng.integers(20, 121, rows)
    drawn = words.gather(np.searchsorted(share / share[-1], rng.random(length.sum())))
    table = pl.DataFrame({"row": np.repeat(np.arange(rows), length), "word": drawn})
    return table.group_by("row", maintain_order=True).agg(pl.col("word").str.join(" "))["word"]


def spans(rows: int) -> Iterator[pl.DataFrame]:
    """The pool in parts, as the ladder gets it."""
    for start in range(0, rows, SPAN):
        size = min(SPAN, rows - start)
        yield pl.DataFrame({"problem": texts(size, 1 + start)}).select(
            id=pl.format("r{}", pl.int_range(start, start + size)),
            problem="problem",
            answer=(pl.int_range(start, start + size) * 7 % 4_001).cast(pl.String),
            options=pl.lit(None, pl.List(pl.String)),
            kind=pl.lit("math"),
        )


def timed(work: Callable[[pl.DataFrame], object], rows: int) -> float:
    """Seconds that `work` takes on all spans."""
    seconds = 0.0
    for part in spans(rows):
        start = time.perf_counter()
        work(part)
        seconds += time.perf_counter() - start
    return seconds


def usual(rows: int) -> Result:
    """The plain-Python set; one process, which is how it is run."""
    grams = {gram for text in texts(ITEMS, 0) for gram in word_grams(text)}
    sample = texts(min(rows, SAMPLE), 1).to_list()
    start = time.perf_counter()
    found = sum(any(gram in grams for gram in word_grams(text)) for text in sample)
    return {"seconds": time.perf_counter() - start, "rows": len(sample), "found": found}


def word_grams(text: str) -> list[str]:
    words = re.sub(r"\s+", " ", text.lower().strip()).split(" ")
    return [" ".join(words[i : i + GRAM]) for i in range(len(words) - GRAM + 1)]


def stages(rows: int) -> Result:
    """The contamination filter's exact, n-gram, number-variant and near stages."""
    from assay.filters.contamination import BenchmarkIndex

    index = BenchmarkIndex.build({"benchmark": texts(ITEMS, 0).to_list()})
    index.hits(texts(2_000, 99))
    return {"seconds": timed(lambda part: index.hits(part["problem"]), rows), "rows": rows}


def copies(rows: int) -> Result:
    """The duplicates filter on all rows at once."""
    from assay.filters import duplicates

    duplicates.decide(next(spans(2_000)))
    pool = pl.concat([part.select("id", "problem") for part in spans(rows)])
    start = time.perf_counter()
    duplicates.decide(pool)
    return {"seconds": time.perf_counter() - start, "rows": rows}


def ladder(rows: int) -> Result:
    """Format, answer and contamination span by span, then duplicates with MinHash on what is left."""
    from assay.filters import answer_format, answers, contamination, duplicates

    index = contamination.BenchmarkIndex.build({"benchmark": texts(ITEMS, 0).to_list()})
    kept: list[pl.DataFrame] = []

    def climb(part: pl.DataFrame) -> None:
        for decide in (
            lambda pool: answer_format.decide(pool, {"multiple_choice": "drop", "proof": "drop"}),
            answers.decide,
            lambda pool: contamination.decide(pool, index),
        ):
            part = part.filter(decide(part)["keep"])
        kept.append(part.select("id", "problem"))

    duplicates.decide(next(spans(2_000)))
    climb(next(spans(2_000)))
    kept.clear()
    seconds = timed(climb, rows)
    start = time.perf_counter()
    left = duplicates.decide(pl.concat(kept))["keep"].sum()
    return {"seconds": seconds + time.perf_counter() - start, "rows": rows, "left": left}


def rebanding(rows: int) -> Result:
    """A refresh with a new band over recorded samples: eight of each row, no engine, no verifier."""
    from assay.pipelines.curation import refresh
    from assay.pipelines.recipe import RefreshRecipe
    from assay.pipelines.store import SCHEMAS, Store

    with tempfile.TemporaryDirectory() as folder:
        source, store = Path(folder) / "pool.jsonl", Store.open(Path(folder) / "store", create=True)
        pl.concat([part.select("problem", "answer") for part in spans(rows)]).write_ndjson(source)
        recipe = RefreshRecipe.model_validate({
            "name": "band", "store": store.path, "ladder": ("difficulty",), "model": {"path": "m", "engine": "replay"},
            "sources": ({"name": "pool", "path": source, "problem": "problem", "answer": "answer"},),
            "difficulty": {"band": (0.2, 0.8), "unknown": "keep"},
        })  # fmt: skip
        refresh(store, recipe)
        ids = store.scan("problems").select("id").collect()["id"]
        key = pl.format("k{}", pl.int_range(8 * rows))
        samples = pl.DataFrame({"problem_id": pl.Series(np.repeat(ids.to_numpy(), 8))}).with_columns(
            key=key, sample=pl.int_range(8 * rows, dtype=pl.Int32) % 8, model=pl.lit("m"), mode=pl.lit("think"),
            token_ids=pl.lit([1] * 50, pl.List(pl.Int32)), text=pl.lit("so it is \\boxed{1}"),
        )  # fmt: skip
        status = pl.when(key.hash(1) % 100 < 40).then(pl.lit("correct")).otherwise(pl.lit("wrong"))
        for table, frame in (
            ("generations", samples),
            ("verdicts", samples.select("key", status=status, verifier=pl.lit("v"))),
        ):
            wanted = SCHEMAS[table].items()
            store.append(
                table,
                frame.select(pl.col(n) if n in frame.columns else pl.lit(None, d).alias(n) for n, d in wanted),
            )
        narrow = recipe.model_copy(
            update={"difficulty": recipe.difficulty.model_copy(update={"band": (0.3, 0.6)})}
        )
        start, used = time.perf_counter(), time.process_time()
        made = refresh(store, narrow)
        seconds, used = time.perf_counter() - start, time.process_time() - used
        return {"seconds": seconds, "processor": used, "rows": rows, "left": made.funnel["rows_out"][-1]}


PARTS = {part.__name__: part for part in (usual, stages, ladder, copies, rebanding)}


def run(part: str, rows: int) -> Result:
    done = subprocess.run([sys.executable, __file__, str(rows), part], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(rows: int) -> None:
    speeds = {}
    for part in ("usual", "stages", "ladder", "copies", "usual"):
        found = run(part, rows)
        speed = found["rows"] / found["seconds"]
        speeds[part] = max(speed, speeds.get(part, 0.0))
        size, peak = found["rows"], found["peak"] / 1024
        print(f"{part:<10}{size:>10,.0f} rows {speed:>12,.0f} rows/s   peak {peak:.2f} GiB", flush=True)
    for part, least in (("stages", 10), ("ladder", 2)):
        print(f"{part} / usual: {speeds[part] / speeds['usual']:.1f} (must be {least})")
    for part in ("stages", "copies"):
        for size in (10_000, 100_000, 1_000_000):
            if size <= rows:
                speed = speeds[part] if size == rows else size / run(part, size)["seconds"]
                print(f"{part} at {size:>9,}: {1e6 / speed:.2f} us a row", flush=True)
    scored = min(rows, 100_000)
    found = run("rebanding", scored)
    times = f"{found['seconds']:.1f} s, {found['processor']:.1f} s of processor time"
    print(f"a new band over {scored:,} rows of 8 recorded samples: {times} (100,000 must be under 5)")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    if len(sys.argv) > 2:
        measured = PARTS[sys.argv[2]](count)
        print(json.dumps(measured | {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
    else:
        main(count)
