"""The refresh as a Prefect flow: a task for every step of the ladder, artifacts at the end.

The work is `pipelines.curation.Refresh`; this is its shell. A step's task is retried when a server or a disk fails it;
what was sampled before stays in the store and is not paid for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from rich.markup import escape

from assay.flows.console import Console
from assay.flows.models import engine_of, verifier_of
from assay.flows.publish import publish
from assay.pipelines import snapshot as snapshots
from assay.pipelines.curation import Refresh
from assay.pipelines.deferred import DeferredEngine
from assay.pipelines.engines import Engine
from assay.pipelines.errors import AssayError, SourceError
from assay.pipelines.recipe import RefreshRecipe
from assay.pipelines.snapshot import Snapshot
from assay.pipelines.store import Store

Make = Callable[[], Engine]

__all__ = ["run_refresh"]


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
def run_refresh(
    recipe: RefreshRecipe, engine: Make | None = None, console: Console | None = None, wait: float = 0.0
) -> Snapshot:
    """Refresh the recipe's store; returns the new snapshot. A flow against `PREFECT_API_URL` or a temporary server.

    Args:
        engine: makes the engine to use instead of the recipe's own, which is then left open. Either starts only when
            something must be sampled that the store does not hold.
        wait: seconds to wait for another refresh of the same store.

    Raises:
        SourceError: nothing is left; what the ladder saw is published first.
        StoreError: another refresh still holds the store.
    """
    store, console = Store.open(recipe.store, create=True), console or Console()
    lock = store.lock("refresh", wait, console.say)
    with lock, verifier_of(recipe.judge) as verifier, _engines(recipe, engine) as make:
        run = Refresh(store, recipe, engine=make, verifier=verifier)
        try:
            snapshot = _climb(run, console)
        except SourceError:
            if run.id in store.scan("snapshots").select("id").collect()["id"]:
                publish(store, snapshots.load(store, run.id), recipe.drift)
            raise
        finally:
            for remark in run.remarks:
                console.say(f"  [yellow]note[/yellow]             {escape(remark)}")
    for found in publish(store, snapshot, recipe.drift):
        console.say("  [yellow]drift[/yellow]            {measure} {before:.3f} -> {after:.3f}".format(**found))
    return snapshot


def _climb(run: Refresh, console: Console) -> Snapshot:
    with console.progress() as bar:
        run.scoring.progress = bar.update
        for name in run.steps:
            bar.start(name)
            bar.done(_step(run, name))
        return run.finish()


@contextmanager
def _engines(recipe: RefreshRecipe, given: Make | None) -> Iterator[Make | None]:
    """A maker of the engine, or None without a model; what was started here is closed here."""
    model = recipe.model
    made: list[Any] = []

    def make() -> Any:
        assert model is not None
        start = given or (lambda: engine_of(model))
        made.append(DeferredEngine(model.path, model.max_model_len, start) if model.engine == "vllm" else start())
        return made[-1]

    try:
        yield make if model and (given or model.engine != "replay") else None
    finally:
        for engine in made if given is None else ():
            engine.close()
