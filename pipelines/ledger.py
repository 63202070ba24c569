"""The ledger read back: a problem's whole way, a snapshot's funnel, what changed between two snapshots."""

import json
from typing import Any

import polars as pl

from assay.pipelines import snapshot as snapshots
from assay.pipelines.errors import StoreError
from assay.pipelines.store import Store

__all__ = ["BACK_SCAN", "back_scanned", "changes", "diff", "find_problem", "funnel", "pass_rates", "standing", "why"]

BACK_SCAN = "back_scan"
"""Filter name of decisions made about an old snapshot later, against benchmarks that it did not know."""


def back_scanned(store: Store) -> pl.DataFrame:
    """What was ever found in snapshots later: `snapshot, problem_id, reason, evidence`."""
    rows = store.scan("decisions").filter(pl.col("filter") == BACK_SCAN)
    return rows.select("snapshot", "problem_id", "reason", "evidence").unique(maintain_order=True).collect()


def funnel(store: Store, snapshot: str = "latest") -> pl.DataFrame:
    """Rows in and out of every filter: `filter, rows_in, rows_out, reasons` (JSON), in the ladder's order.

    Args:
        snapshot: an id, the beginning of one, or `latest`.
    """
    return snapshots.load(store, snapshot).funnel


def standing(store: Store, snapshot: str) -> pl.DataFrame:
    """Where every problem of a snapshot ended: `problem_id, kept, filter, reason, evidence, rate`.

    Filter, reason and evidence are those of the first rejection, null for a kept problem; `rate` is what the
    difficulty filter saw, null where it did not look.
    """
    rows = store.scan("decisions").filter(pl.col("snapshot") == snapshot, pl.col("filter") != BACK_SCAN)
    seen = (
        rows.filter(pl.col("filter") == "difficulty")
        .unique("problem_id", keep="first", maintain_order=True)
        .select("problem_id", rate="evidence")
    )
    ended = rows.group_by("problem_id", maintain_order=True).agg(
        kept=pl.col("keep").all(),
        **{name: pl.col(name).filter(~pl.col("keep")).first() for name in ("filter", "reason", "evidence")},
    )
    return ended.join(seen, on="problem_id", how="left", maintain_order="left").collect()


def diff(store: Store, a: str, b: str) -> pl.DataFrame:
    """What changed from snapshot `a` to snapshot `b`: `problem_id, change, before, after`.

    `change` is `in` (kept in b only), `out` (kept in a only) or `moved` (kept in both at another pass rate,
    or rejected in both by another filter or reason); `before` and `after` say why, in words.
    """
    before, after = (_in_words(standing(store, snapshots.find(store, name))) for name in (a, b))
    both = before.join(after, on="problem_id", how="full", suffix="_after", coalesce=True, maintain_order="left_right")
    was, now = pl.col("kept").fill_null(False), pl.col("kept_after").fill_null(False)
    change = (
        pl.when(now & ~was).then(pl.lit("in"))
        .when(was & ~now).then(pl.lit("out"))
        .when(pl.col("place") != pl.col("place_after")).then(pl.lit("moved"))
    )  # fmt: skip
    words = {name: pl.col(column).fill_null("not in the pool") for name, column in
             (("before", "words"), ("after", "words_after"))}  # fmt: skip
    return both.select("problem_id", change=change, **words).filter(pl.col("change").is_not_null())


def changes(diff: pl.DataFrame) -> pl.DataFrame:
    """A `diff` counted: `change, before, after, problems`, without the evidence, the most frequent first."""
    place = [pl.col(name).str.split(", ").list.first() for name in ("before", "after")]
    counts = diff.group_by("change", *place, maintain_order=True).agg(problems=pl.len())
    return counts.sort("problems", descending=True, maintain_order=True)


def pass_rates(store: Store, snapshot: str) -> pl.DataFrame:
    """Of every problem that the snapshot's difficulty filter saw with a rate: `problem_id, pass_rate, kept`."""
    seen = standing(store, snapshots.find(store, snapshot))
    counts = pl.col("rate").str.extract_groups(r"^(\d+)/(\d+) correct").struct.unnest().cast(pl.Float64)
    rates = seen.with_columns(counts).drop_nulls("1")
    return rates.select("problem_id", pass_rate=pl.col("1") / pl.col("2"), kept="kept")


def _in_words(standing: pl.DataFrame) -> pl.DataFrame:
    """`place` is what must differ for a problem to have moved; `words` adds the evidence of a rejection."""
    kept = pl.concat_str(pl.lit("kept"), pl.format(", {}", "rate").fill_null(""))
    place = pl.when("kept").then(kept).otherwise(pl.format("{}: {}", "filter", "reason"))
    evidence = pl.when("kept").then(pl.lit("")).otherwise(pl.format(", {}", "evidence").fill_null(""))
    return standing.select("problem_id", "kept", place=place, words=pl.concat_str(place, evidence))


def find_problem(store: Store, prefix: str) -> str:
    """The problem id that starts with `prefix`; rows that could not be parsed have ids in the decisions only.

    Raises:
        StoreError: no id starts so, or several do.
    """
    for table, column in (("problems", "id"), ("decisions", "problem_id")):
        starts = pl.col(column).str.starts_with(prefix)
        ids = store.scan(table).filter(starts).select(column).unique().collect()[column].sort().to_list()
        if prefix in ids or len(ids) == 1:
            return prefix if prefix in ids else str(ids[0])
        if ids:
            some = ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
            found = f"{len(ids)} problems start with '{prefix}'"
            raise StoreError(f"{store.path}: {found}; give more of the id: {some}.")
    hint = '`assay sql "select id from problems"` lists them'
    raise StoreError(f"{store.path}: no problem starts with '{prefix}'; {hint}.")


def why(store: Store, problem_id: str) -> str:
    """One problem's whole way in plain words: origin, every snapshot's decisions, samples, and its training.

    Args:
        problem_id: the id or a beginning of it that no other has.
    """
    name = find_problem(store, problem_id)
    parts = [_origin(store, name), *_decisions(store, name), _samples(store, name), _training(store, name)]
    return "\n".join(part for part in parts if part)


def _origin(store: Store, name: str) -> str:
    rows = store.scan("problems").filter(pl.col("id") == name).collect().to_dicts()
    if not rows:
        return f"problem {name}\n  never became a problem: see the decision below"
    row = rows[-1]
    row_key = f", row {row['source_key']}" if row["source_key"] else ""
    text = f"problem {name}\n  from {row['source']}{row_key}, licence {row['license'] or 'not stated'}"
    options = f"\n  options: {' | '.join(row['options'])}" if row["options"] else ""
    return f"{text}\n  {_short(row['problem'])}{options}\n  gold: {_short(row['answer'])}"


def _decisions(store: Store, name: str) -> list[str]:
    """The steps of every snapshot; those in a row that decided the same are told once."""
    rows = store.scan("decisions").filter(pl.col("problem_id") == name).collect()
    finished = set(store.scan("snapshots").select("id").collect()["id"])
    told: list[tuple[list[str], str]] = []
    for (snapshot,), steps in rows.group_by("snapshot", maintain_order=True):
        own = steps.filter(pl.col("filter") != BACK_SCAN)
        verdict = f": {'kept' if own['keep'].all() else 'rejected'}" + (
            "" if snapshot in finished else ", in a refresh that did not finish"
        )
        text = "\n".join([verdict, *map(_step, steps.to_dicts())])
        if not told or told[-1][1] != text:
            told.append(([], text))
        told[-1][0].append(str(snapshot))
    return [f"snapshot {_span(ids)}{text}" for ids, text in told]


def _span(ids: list[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]} ({len(ids)} refreshes)"


def _step(step: dict[str, str]) -> str:
    verdict = "kept" if step["keep"] else f"rejected as {step['reason']}"
    evidence = f": {_short(_plain(step), 600)}" if step["evidence"] else ""
    return f"  {step['filter']:<14}{verdict}{evidence}"


def _plain(step: dict[str, str]) -> str:
    """A step's evidence; what duplicates and contamination wrote as JSON, in words."""
    try:
        found = json.loads(step["evidence"])
        if "kept" in found:
            return f"a copy of {found['kept']}, similarity {found['similarity']:.0%}"
        said = " and ".join(_hit(hit) for hit in (found, *found.get("also", [])))
        judge = f"; the judge says {found['judge']}" if "judge" in found else ""
        verb = "resembles" if step["keep"] or found["stage"] in ("near", "embedding") else "is"
        return f"{verb} {said}{judge}; the first reads: {_short(found['text'], 200)}"
    except (ValueError, TypeError, KeyError, AttributeError):
        return step["evidence"]


def _hit(hit: dict[str, Any]) -> str:
    measure = "alike" if hit["stage"] in ("near", "embedding") else "of its windows"
    share = "" if hit["stage"] == "exact" else f", {hit['score']:.0%} {measure}"
    return f"item {hit['index'] + 1} of {hit['benchmark']} ({hit['stage']}{share})"


def _samples(store: Store, name: str) -> str:
    generations = store.scan("generations").filter(pl.col("problem_id") == name).select("key", "model", "mode")
    latest = store.scan("verdicts").unique("key", keep="last", maintain_order=True)
    verdicts = latest.select("key", "status", "extracted")
    rows = generations.join(verdicts, on="key", how="left", maintain_order="left").collect()
    lines = []
    for (model, mode), group in rows.group_by("model", "mode", maintain_order=True):
        counts = group["status"].fill_null("not graded").value_counts(sort=True).rows()
        said = ", ".join(f"{number} {status}" for status, number in counts)
        answers = group["extracted"].drop_nulls().value_counts(sort=True).head(3).rows()
        most = "; answers " + ", ".join(f"{_short(a, 40)} x{n}" for a, n in answers) if answers else ""
        lines.append(f"samples of {model}, {mode}: {len(group)}: {said}{most}")
    return "\n".join(lines)


def _training(store: Store, name: str) -> str:
    rows = store.scan("rollouts").filter(pl.col("problem_id") == name)
    runs = rows.group_by("run", maintain_order=True).agg(
        steps=pl.col("step").n_unique(), samples=pl.len(), reward=pl.col("reward").mean()
    )
    lines = [
        f"trained in run {run['run']}: {run['samples']} samples in {run['steps']} steps, mean reward "
        + ("unknown" if run["reward"] is None else f"{run['reward']:.2f}")
        for run in runs.collect().to_dicts()
    ]
    return "\n".join(lines)


def _short(text: str | None, limit: int = 300) -> str:
    flat = " ".join(str(text if text is not None else "none").split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."
