"""The refresh as a Prefect flow: a task for every step of the ladder, artifacts at the end.

The work is `pipelines.curation.Refresh`; this is its shell. A step's task is retried when a server or a disk fails it;
what was sampled before stays in the store and is not paid for again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from assay.flows.console import Console
from assay.pipelines.curation import Refresh
from assay.pipelines.engines import Engine, VllmEngine
from assay.pipelines.errors import AssayError, RecipeError
from assay.pipelines.recipe import RefreshRecipe
from assay.pipelines.snapshot import Snapshot, folder_of
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier

Make = Callable[[], Engine]

__all__ = ["engine_of", "refresh_flow", "run_refresh"]


def _may_help(task: Any, run: Any, state: Any) -> bool:
    """Whether doing a step again may help: never for what only the user can mend."""
    return not isinstance(state.result(raise_on_failure=False), AssayError)


@task(
    name="step",
    task_run_name="{name}",
    retries=1,
    retry_condition_fn=_may_help,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def _step(run: Refresh, name: str) -> dict[str, Any]:
    return run.run(name)


@flow(name="refresh", flow_run_name="{recipe.name}", validate_parameters=False, persist_result=False)
def refresh_flow(recipe: RefreshRecipe, engine: Make | None = None, console: Console | None = None) -> Snapshot:
    """Refresh the recipe's store; returns the new snapshot.

    Args:
        engine: makes the engine to use instead of the recipe's own, which is then left open.
    """
    store, console = Store.open(recipe.store, create=True), console or Console()
    with store.lock("refresh"), Verifier() as verifier, _engines(recipe, engine) as make, console.progress() as bar:
        run = Refresh(store, recipe, engine=make, verifier=verifier, progress=bar.update)
        for name in run.steps:
            bar.start(name)
            bar.done(_step(run, name))
        snapshot = run.finish()
    _publish(store, snapshot)
    return snapshot


@contextmanager
def _engines(recipe: RefreshRecipe, given: Make | None) -> Iterator[Make | None]:
    """A maker of the recipe's engine, or None without a model; what was made here is closed here."""
    made: list[Engine] = []

    def make() -> Engine:
        made.append(engine_of(recipe))
        return made[-1]

    try:
        yield given or (make if recipe.model else None)
    finally:
        for engine in made:
            engine.close()


def engine_of(recipe: RefreshRecipe) -> Engine:
    """The engine that the recipe's [model] names."""
    model = recipe.model
    assert model is not None
    if model.engine != "vllm":
        raise RecipeError(f"[model] engine = '{model.engine}' is not available yet; use 'vllm'.")
    return VllmEngine(model.path, max_model_len=model.max_model_len, dtype=model.dtype)


def _publish(store: Store, snapshot: Snapshot) -> None:
    """The funnel as a table, the card, and a link to the snapshot's folder."""
    rows = [
        {**r, "reasons": ", ".join(f"{k} {v}" for k, v in json.loads(r["reasons"]).items())}
        for r in snapshot.funnel.to_dicts()
    ]
    folder = folder_of(store, snapshot.id)
    create_table_artifact(rows, key="funnel", description=f"Rows through the ladder, snapshot {snapshot.id}")
    create_markdown_artifact((folder / "README.md").read_text(encoding="utf-8"), key="card")
    create_link_artifact(folder.as_uri(), link_text=f"snapshot {snapshot.id}", key="snapshot")


def run_refresh(recipe: RefreshRecipe, engine: Make | None = None, console: Console | None = None) -> Snapshot:
    """`refresh_flow` against the server of `PREFECT_API_URL`, or a temporary one where there is none."""
    return refresh_flow(recipe, engine, console)
