"""A snapshot: one version of a curated set, as a folder that `datasets.load_dataset` opens.

    STORE/snapshots_data/ID/README.md               the card: counts, sources, benchmarks, recipe, funnel
    STORE/snapshots_data/ID/data/train.parquet      config `default`: the rows that were kept
    STORE/snapshots_data/ID/rejected/train.parquet  config `rejected`: every other row, with filter and reason

The card's counts are taken from the frames that are written beside it. Deleting the folder deletes no
evidence: generations, verdicts and decisions stay in the store.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from assay.pipelines.errors import StoreError
from assay.pipelines.store import SCHEMAS, Store

__all__ = ["FUNNEL", "Snapshot", "card", "find", "folder_of", "latest", "load", "markdown", "new_id", "previous",
           "record", "told", "write"]  # fmt: skip

FUNNEL = pl.Schema({"filter": pl.String, "rows_in": pl.Int64, "rows_out": pl.Int64, "reasons": pl.String})
"""One row per filter; `reasons` is a JSON map from reason to rows."""


@dataclass(frozen=True)
class Snapshot:
    """What one refresh made; `folder` is null for a refresh of which nothing was left."""

    id: str
    parent: str | None
    recipe_hash: str
    recipe: dict[str, Any]
    benchmarks: list[dict[str, Any]]
    """Each: name, revision, hash of its texts, rows; of its rows those `without_gold` and `unread`, and `faults`."""
    funnel: pl.DataFrame
    """Schema `FUNNEL`, in the ladder's order."""
    time: datetime
    """UTC without a zone."""


def new_id(recipe_hash: str, time: datetime) -> str:
    """`20260314-030000-1f0c2a`: sorts by time; the end tells recipes and quick successions apart."""
    digest = hashlib.sha256(f"{recipe_hash} {time.isoformat()}".encode()).hexdigest()
    return f"{time:%Y%m%d-%H%M%S}-{digest[:6]}"


def folder_of(store: Store, snapshot_id: str) -> Path:
    """Where the snapshot's rows lie, whether they were written or not."""
    return store.path / "snapshots_data" / snapshot_id


def record(store: Store, snapshot: Snapshot) -> None:
    """Adds the snapshot's row to the table `snapshots`."""
    row = {
        "id": snapshot.id,
        "parent": snapshot.parent,
        "recipe_hash": snapshot.recipe_hash,
        "recipe": json.dumps(snapshot.recipe, ensure_ascii=False),
        "benchmarks": json.dumps(snapshot.benchmarks, ensure_ascii=False),
        "funnel": json.dumps([row | {"reasons": json.loads(row["reasons"])} for row in snapshot.funnel.to_dicts()]),
        "time": snapshot.time,
    }
    store.append("snapshots", pl.DataFrame([row], schema=SCHEMAS["snapshots"]))


def find(store: Store, prefix: str = "latest") -> str:
    """The id that starts with `prefix`; `latest` is the newest whose rows are on the disk.

    Raises:
        StoreError: no snapshot starts so, or several do.
    """
    ids: list[str] = store.scan("snapshots").select("id").collect()["id"].to_list()
    if prefix == "latest":
        newest = latest(store)
        if newest is None:
            raise StoreError(f"{store.path}: holds no snapshot yet; `assay refresh RECIPE` makes one.")
        return newest
    found = [name for name in ids if name.startswith(prefix)]
    if len(found) == 1 or prefix in found:
        return prefix if prefix in found else found[0]
    some = ", ".join((found or ids)[-5:]) or "none"
    kind = "several snapshots start" if found else "no snapshot starts"
    raise StoreError(f"{store.path}: {kind} with '{prefix}'; give more of the id. Snapshots: {some}.")


def latest(store: Store) -> str | None:
    """The newest snapshot whose rows are on the disk."""
    ids = store.scan("snapshots").sort("time", maintain_order=True).select("id").collect()["id"]
    written = [name for name in ids if folder_of(store, name).is_dir()]
    return written[-1] if written else None


def previous(store: Store, snapshot: Snapshot) -> str | None:
    """The newest snapshot before this one whose recipe had the same name and whose rows are on the disk."""
    same = pl.col("recipe").str.json_path_match("$.name") == str(snapshot.recipe.get("name"))
    rows = store.scan("snapshots").filter(pl.col("time") < snapshot.time, same)
    ids = rows.sort("time", maintain_order=True).select("id").collect()["id"]
    return next((name for name in reversed(ids.to_list()) if folder_of(store, name).is_dir()), None)


def load(store: Store, prefix: str = "latest") -> Snapshot:
    """The snapshot's record; its rows are in `folder_of(store, snapshot.id) / "data/train.parquet"`."""
    snapshot_id = find(store, prefix)
    row = store.scan("snapshots").filter(pl.col("id") == snapshot_id).collect().row(0, named=True)
    funnel = [step | {"reasons": json.dumps(step["reasons"])} for step in json.loads(row["funnel"])]
    return Snapshot(
        id=row["id"],
        parent=row["parent"],
        recipe_hash=row["recipe_hash"],
        recipe=json.loads(row["recipe"]),
        benchmarks=json.loads(row["benchmarks"]),
        funnel=pl.DataFrame(funnel, schema=FUNNEL),
        time=row["time"],
    )


def write(
    store: Store, snapshot: Snapshot, kept: pl.DataFrame, rejected: pl.DataFrame, back_scan: pl.DataFrame
) -> Path:
    """Writes the snapshot's folder whole or not at all, and returns it.

    Args:
        kept: columns of `problems`, `sources` (of the row and its copies), pass rate, interval and bucket.
        rejected: the same problem columns with `filter, reason, evidence`.
        back_scan: `snapshot, problem_id, reason`: rows of older snapshots that were later found to be benchmark items.
    """
    folder = folder_of(store, snapshot.id)
    temporary = folder.with_name(f".{snapshot.id}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        for name, rows in (("data", kept), ("rejected", rejected)):
            (temporary / name).mkdir(parents=True)
            rows.write_parquet(temporary / name / "train.parquet", compression_level=1)
        (temporary / "README.md").write_text(card(snapshot, kept, rejected, back_scan), encoding="utf-8")
        temporary.rename(folder)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written: {error}. The decisions are in the store.") from error
    return folder


def card(snapshot: Snapshot, kept: pl.DataFrame, rejected: pl.DataFrame, back_scan: pl.DataFrame) -> str:
    """The README.md: YAML front matter that declares the two configs, and what a reader must know."""
    name = str(snapshot.recipe.get("name") or "curated problems")
    tables = [
        ("Rows", pl.DataFrame({"config": ["default", "rejected"], "rows": [kept.height, rejected.height]})),
        ("Funnel", pl.DataFrame(told(snapshot)).rename({"rows_in": "in", "rows_out": "out"})),
        ("Sources", _sources(kept, rejected)),
        ("Benchmarks", _benchmarks(snapshot)),
        (
            "Older snapshots with benchmark items",
            _counted(back_scan, "snapshot", pl.col("reason").alias("stage")),
        ),
        (
            "Difficulty",
            _counted(kept, pl.col("bucket").fill_null("not scored")) if "bucket" in kept.columns else kept.clear(),
        ),
    ]
    sections = [
        f"---\n{_front_matter(name, kept, rejected)}\n---\n\n# {name}, snapshot {snapshot.id}",
        f"Made {snapshot.time:%Y-%m-%d %H:%M} UTC by `assay` from recipe {snapshot.recipe_hash[:12]}"
        + (f", after snapshot {snapshot.parent}." if snapshot.parent else "."),
        *(f"## {title}\n\n{markdown(rows)}" for title, rows in tables if len(rows)),
        f"## Recipe\n\n```json\n{json.dumps(_said(snapshot.recipe), indent=1, ensure_ascii=False)}\n```",
    ]
    return "\n\n".join(sections) + "\n"


def _said(value: Any) -> Any:
    """A recipe as others can use it: without nulls, and without the folders of the machine that ran it."""
    if isinstance(value, dict):
        items = {name: item for name, item in value.items() if item not in (None, {}, [])}
        local = {"path": lambda path: Path(path).name if Path(path).is_absolute() else path}
        return {n: local.get(n, _said)(item) for n, item in items.items() if n not in ("store", "variables")}
    return [_said(item) for item in value] if isinstance(value, list) else value


def _front_matter(name: str, kept: pl.DataFrame, rejected: pl.DataFrame) -> str:
    """YAML; each value is JSON, which is YAML too and needs no quoting rules."""
    licenses = kept["license"].drop_nulls().unique().to_list()
    configs = [("default", "data", kept), ("rejected", "rejected", rejected)]
    configs = [config for config in configs if config[2].height]  # the loader refuses a split without rows
    fields = {
        "pretty_name": name,
        "license": licenses[0].lower() if len(licenses) == 1 and not kept["license"].has_nulls() else "other",
        "configs": [
            {"config_name": config, "data_files": [{"split": "train", "path": f"{folder}/train.parquet"}]}
            for config, folder, _ in configs
        ],
        "dataset_info": [
            {"config_name": config, "splits": [{"name": "train", "num_examples": rows.height}]}
            for config, _, rows in configs
        ],
    }
    return "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items())


def markdown(frame: pl.DataFrame) -> str:
    """The frame as a table; a null is an empty cell."""
    lines = (frame.columns, ["---"] * frame.width, *frame.rows())
    cells = (["" if v is None else " ".join(str(v).replace("|", "\\|").split()) for v in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def told(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The funnel's rows with their reasons in words."""
    reasons = (json.loads(row).items() for row in snapshot.funnel["reasons"])
    words = [", ".join(f"{reason} {rows}" for reason, rows in found) for found in reasons]
    return snapshot.funnel.with_columns(reasons=pl.Series(words, dtype=pl.String)).to_dicts()


def _sources(kept: pl.DataFrame, rejected: pl.DataFrame) -> pl.DataFrame:
    by = pl.col("source"), pl.col("license").fill_null("not stated").alias("licence")
    rows = pl.concat([kept.select(*by, kept=True), rejected.select(*by, kept=False)])
    counts = rows.group_by("source", "licence").agg(pl.col("kept").sum(), rejected=(~pl.col("kept")).sum())
    return counts.sort("source", "licence")


def _benchmarks(snapshot: Snapshot) -> pl.DataFrame:
    faults = ("without_gold", "unread")
    rows = [
        (b["name"], b.get("revision") or "local file", b["hash"], b["rows"], *(b.get(fault, 0) for fault in faults))
        for b in snapshot.benchmarks
    ]
    schema = ["name", "revision", "sha256", "rows", "without a gold that fits", "unparsable, not looked for"]
    return pl.DataFrame(rows, schema=schema, orient="row")


def _counted(frame: pl.DataFrame, *by: str | pl.Expr) -> pl.DataFrame:
    counts = frame.group_by(*by).agg(rows=pl.len())
    return counts.sort("rows", *counts.columns[:-1], descending=[True] + [False] * len(by))


def now() -> datetime:
    """UTC without a zone, as the store keeps times."""
    return datetime.now(UTC).replace(tzinfo=None)
