"""A refresh on a schedule: a Prefect deployment that this process serves, or a `prefect.yaml` for a team's work pool.

Both run the flow `assay.flows.deploy.scheduled_refresh` with the recipe's path, so that each run reads the recipe and
its sources as they are then.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import yaml
from prefect import flow
from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.deployments import run_deployment
from prefect.deployments.runner import EntrypointType
from prefect.events import DeploymentEventTrigger
from prefect.exceptions import TerminationSignal
from prefect.logging import get_logger, get_run_logger
from prefect.runner import Runner
from prefect.schedules import Cron, Interval, Schedule
from prefect.settings import PREFECT_API_URL
from rich.markup import render

from assay.flows.console import Console
from assay.flows.publish import slug
from assay.flows.refresh import run_refresh
from assay.flows.watch import Watch
from assay.pipelines.errors import RecipeError
from assay.pipelines.recipe import RefreshRecipe, read_refresh

__all__ = ["CHANGED", "Deployment", "scheduled_refresh", "serve", "write_yaml"]

CHANGED = "assay.sources.changed"
"""Event that starts a refresh deployed with `--on-change`; its resource is `assay.dataset.<slug of the name>`."""
ENTRYPOINT = "assay.flows.deploy.scheduled_refresh"
WAIT_SECONDS = 3600.0


class _Log(Console):
    """The console of a run that nobody watches: lines go to the run's log."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self._log = get_run_logger()

    def say(self, text: str) -> None:
        self._log.info(render(text).plain)


@flow(name="assay-refresh", flow_run_name="{recipe}", persist_result=False)
def scheduled_refresh(
    recipe: str, overrides: list[str] | None = None, no_model: bool = False, wait: float = WAIT_SECONDS
) -> str:
    """One scheduled run; returns the snapshot's id.

    Args:
        recipe: path of a refresh recipe.
        overrides: as after `--set`.
        no_model: only the filters that need no model.
        wait: seconds to wait while another refresh holds the store; the log says who does.
    """
    return str(run_refresh.fn(read_refresh(recipe, overrides or (), no_model), console=_Log(), wait=wait).id)


@dataclass(frozen=True)
class Deployment:
    """A refresh and when it runs: at a cron line, at an interval, or when a source's file changes."""

    recipe: Path
    overrides: tuple[str, ...] = ()
    no_model: bool = False
    cron: str | None = None
    interval: float | None = None
    """Seconds."""
    on_change: bool = False
    timezone: str = "UTC"
    """Of the cron line."""

    def __post_init__(self) -> None:
        if [self.cron is None, self.interval is None, not self.on_change].count(False) != 1:
            raise RecipeError(f"{self.recipe}: when is it to run? Give one of --cron, --interval and --on-change.")
        if self.interval is not None and self.interval <= 0:
            raise RecipeError(f"--interval {self.interval}: give seconds above 0.")
        try:
            _ = self.when, ZoneInfo(self.timezone)
        except (ValueError, KeyError) as error:
            found = f'--cron "{self.cron}" --timezone {self.timezone}'
            raise RecipeError(f'{found}: {error}. Such as --cron "0 3 * * *" --timezone Europe/Berlin.') from None

    def read(self) -> RefreshRecipe:
        """The recipe as a run will see it."""
        return read_refresh(self.recipe, self.overrides, self.no_model)

    @property
    def parameters(self) -> dict[str, Any]:
        """Of the flow `scheduled_refresh`."""
        return {"recipe": str(self.recipe.resolve()), "overrides": list(self.overrides), "no_model": self.no_model}

    @property
    def when(self) -> Schedule | None:
        """As Prefect serves it; None when a change starts the runs."""
        if self.cron is not None:
            return Cron(self.cron, timezone=self.timezone)
        return Interval(self.interval) if self.interval is not None else None

    @property
    def schedule(self) -> dict[str, Any]:
        """In the terms of `prefect.yaml`; empty when a change starts the runs."""
        if self.cron is not None:
            return {"cron": self.cron, "timezone": self.timezone}
        return {"interval": self.interval} if self.interval is not None else {}

    @property
    def title(self) -> str:
        """`pool.toml at 0 3 * * * UTC`."""
        every = f"every {self.interval} s" if self.interval else "when a source's file changes"
        return f"{self.recipe} {f'at {self.cron} {self.timezone}' if self.cron else every}"

    @property
    def limit(self) -> dict[str, Any]:
        """One run at a time. A scheduled one that comes too early is left out; a change waits for its turn."""
        return {"limit": 1, "collision_strategy": "ENQUEUE" if self.on_change else "CANCEL_NEW"}

    @property
    def trigger(self) -> dict[str, Any]:
        """Any job may emit the event: whoever writes the file, wherever it lies."""
        resource = f"assay.dataset.{slug(self.read().name)}"
        return {"expect": [CHANGED], "match": {"prefect.resource.id": resource}}


def serve(deployment: Deployment, every: float = 5.0) -> None:
    """Registers the deployment with the server of `PREFECT_API_URL` and runs what is due until interrupted.

    Args:
        every: seconds between looks at the sources' files.

    Raises:
        RecipeError: the recipe is not valid, or there is no server.
    """
    name, stop = slug(deployment.read().name), threading.Event()
    if not PREFECT_API_URL.value():
        hint = "`prefect server start`, then `prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api`"
        raise RecipeError(f"{deployment.recipe}: a schedule needs a Prefect server, and none is set: {hint}.")
    runner = Runner(name=name)
    runner.add_deployment(_registered(deployment, name))
    if deployment.on_change:
        threading.Thread(target=_watch, args=(deployment, name, every, stop), daemon=True).start()
    try:
        asyncio.run(runner.start())
    except (KeyboardInterrupt, TerminationSignal):
        pass
    finally:
        stop.set()


def _registered(deployment: Deployment, name: str) -> Any:
    return scheduled_refresh.to_deployment(
        name,
        parameters=deployment.parameters,
        triggers=[DeploymentEventTrigger(**deployment.trigger)] if deployment.on_change else None,
        concurrency_limit=ConcurrencyLimitConfig(**deployment.limit),
        entrypoint_type=EntrypointType.MODULE_PATH,
        schedule=deployment.when,
    )


def _watch(deployment: Deployment, name: str, every: float, stop: threading.Event) -> None:
    def start() -> None:
        run_deployment(f"{scheduled_refresh.name}/{name}", timeout=0, as_subflow=False)

    def failed(error: Exception) -> None:
        log.warning("%s: a change could not start a refresh: %s. Trying again.", deployment.recipe, error)

    log = get_logger("assay.watch")
    Watch(deployment.recipe, deployment.read, start).forever(every, stop, failed)


HEADER = """\
# A scheduled refresh for a work pool: `prefect deploy --all`, and `prefect worker start --pool {pool}` where assay is
# installed and the recipe's files are. `pull` says where the recipe lies; `git_clone` in its place fetches it.
"""


def write_yaml(deployment: Deployment, file: Path, pool: str) -> None:
    """Writes a `prefect.yaml` with this deployment for a work pool.

    Raises:
        RecipeError: the file is there already, or the recipe is not valid.
    """
    if file.exists():
        raise RecipeError(f"{file}: is there already, and may hold your own changes; give --yaml another name.")
    folder, recipe = file.resolve().parent, deployment.recipe.resolve()
    inside = recipe.relative_to(folder) if recipe.is_relative_to(folder) else recipe
    entry = {
        "name": slug(deployment.read().name),
        "entrypoint": ENTRYPOINT,
        "parameters": deployment.parameters | {"recipe": str(inside)},
        "schedules": [deployment.schedule] if deployment.schedule else [],
        "triggers": [{"enabled": True, **deployment.trigger}] if deployment.on_change else [],
        "concurrency_limit": deployment.limit,
        "work_pool": {"name": pool},
    }
    pull = {"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}
    text = yaml.safe_dump({"name": "assay", "pull": [pull], "deployments": [entry]}, sort_keys=False, width=110)
    file.write_text(HEADER.format(pool=pool) + text, encoding="utf-8")
