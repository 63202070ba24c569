"""What a refresh tells Prefect: artifacts for the people who look, an event for the automations that listen."""

from __future__ import annotations

import re
from typing import Any

import polars as pl
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.events import emit_event

from assay.filters import difficulty
from assay.pipelines import drift, ledger
from assay.pipelines import snapshot as snapshots
from assay.pipelines.recipe import Drift
from assay.pipelines.snapshot import Snapshot, folder_of, markdown
from assay.pipelines.store import Store

__all__ = ["DRIFT", "publish", "slug"]

DRIFT = "assay.refresh.drift"
"""The event's name; its resource is `assay.dataset.<slug of the recipe's name>`."""
SHOWN = 100
"""Most rows of the difference in an artifact; `assay diff` has them all."""


def slug(name: str) -> str:
    """A recipe's name as Prefect takes it in keys: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "pool"


def publish(store: Store, snapshot: Snapshot, limits: Drift) -> list[dict[str, Any]]:
    """Artifacts of a recorded snapshot, also of one of which nothing was left; returns what drifted.

    Their keys begin with the slug of the recipe's name: `-funnel` (table), `-difference`, `-pass-rates`, `-card`
    (markdown) and `-snapshot` (link).
    """
    key, last = slug(str(snapshot.recipe["name"])), snapshots.previous(store, snapshot)
    folder = folder_of(store, snapshot.id)
    about = f"snapshot {snapshot.id}"
    create_table_artifact(
        snapshots.told(snapshot), key=f"{key}-funnel", description=f"Rows through the ladder, {about}"
    )
    create_markdown_artifact(_difference(store, last, snapshot), key=f"{key}-difference", description=about)
    create_markdown_artifact(_histogram(ledger.pass_rates(store, snapshot.id)), key=f"{key}-pass-rates")
    if folder.is_dir():
        card = (folder / "README.md").read_text(encoding="utf-8")
        create_markdown_artifact(card.split("---\n", 2)[-1], key=f"{key}-card", description=about)
        create_link_artifact(folder.resolve().as_uri(), link_text=about, key=f"{key}-snapshot")
    return _alarm(store, last, snapshot, limits) if last else []


def _alarm(store: Store, last: str, snapshot: Snapshot, limits: Drift) -> list[dict[str, Any]]:
    """Emits the event when something drifted beyond its limit."""
    before, after = drift.measure(store, snapshots.load(store, last)), drift.measure(store, snapshot)
    found = drift.compare(before, after, limits)
    if found:
        name = str(snapshot.recipe["name"])
        emit_event(
            DRIFT,
            resource={"prefect.resource.id": f"assay.dataset.{slug(name)}", "prefect.resource.name": name},
            payload={"snapshot": snapshot.id, "previous": last, "store": str(store.path), "drift": found},
        )
    return found


def _difference(store: Store, last: str | None, snapshot: Snapshot) -> str:
    """Counts by way, then single problems."""
    if last is None:
        return "The first snapshot of this recipe."
    found = ledger.diff(store, last, snapshot.id)
    counts = "\n\n".join(markdown(frame) for frame in (ledger.changes(found), found.head(SHOWN)) if len(frame))
    return f"From {last} to {snapshot.id}: {len(found):,} problems changed.\n\n{counts}"


def _histogram(rates: pl.DataFrame) -> str:
    """Problems by difficulty bucket, with a bar of at most 40 squares."""
    if rates.is_empty():
        return "No pass rates: the ladder has no difficulty filter, or nothing reached it."
    buckets = rates.join(difficulty.buckets(rates), on="problem_id").group_by("bucket").agg(
        problems=pl.len(), kept=pl.col("kept").sum()
    )  # fmt: skip
    rows = pl.DataFrame({"bucket": difficulty.BUCKETS}).join(buckets, on="bucket", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("problems", "kept").fill_null(0))
    width = (pl.col("problems") * 40 / pl.col("problems").max()).ceil().cast(pl.Int64)
    return markdown(rows.with_columns(share=pl.lit("█").repeat_by(width).list.join("")))
