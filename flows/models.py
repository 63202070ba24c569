"""Engines by recipe, and one engine for several models in turn: weights are exchanged where the architecture allows."""

from __future__ import annotations

from functools import partial
from typing import Any

from assay.pipelines.deferred import DeferredEngine
from assay.pipelines.engines import Engine, VllmEngine, architecture, model_fingerprint
from assay.pipelines.errors import EngineError
from assay.pipelines.models import resolve
from assay.pipelines.openai_engine import OpenAIEngine
from assay.pipelines.recipe import Cluster, Model, Served
from assay.pipelines.verify import Verifier

__all__ = ["EnginePool", "deferred", "engine_of", "verifier_of"]


def engine_of(model: Model) -> Engine:
    """The engine that a recipe's [model] names; started. `replay` has what is recorded and nothing else."""
    if model.cluster:
        return _on_cluster(model, model.cluster)
    if model.engine == "replay":
        return DeferredEngine(model.path, model.max_model_len, _refuse)
    if model.engine == "vllm":
        return VllmEngine(model.path, max_model_len=model.max_model_len, dtype=model.dtype)
    return OpenAIEngine(
        model.path,
        model.urls,
        max_model_len=model.max_model_len,
        concurrency=model.concurrency,
        timeout_s=model.timeout_s,
        key=model.key,
    )


def _refuse() -> Engine:
    raise EngineError("replay: not all of the samples are recorded; sample them with engine = 'vllm' or 'openai'.")


def deferred(model: Model) -> Engine:
    """The same, of which `vllm` starts with its first request."""
    if model.engine != "vllm" or model.cluster:
        return engine_of(model)
    return DeferredEngine(model.path, model.max_model_len, lambda: engine_of(model))


def verifier_of(judge: Model | None) -> Verifier:
    """The verifier of a recipe, with its [judge]."""
    return Verifier(judge=partial(deferred, judge) if judge else None)


def _on_cluster(model: Model, cluster: Cluster) -> Engine:
    from assay.flows.cluster import ClusterEngine

    start = partial(engine_of, model.model_copy(update={"cluster": None}))
    resources = {"num_gpus": cluster.gpus} if cluster.gpus else {}
    return ClusterEngine(
        model.path, model.max_model_len, start, workers=cluster.workers, address=cluster.address, resources=resources
    )


class EnginePool:
    """Hands out a running engine for a model folder; a context manager that closes what it started.

    Args:
        settings: those of `VllmEngine`.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings, self._engine = settings, None

    _engine: VllmEngine | None

    def get(self, model: str) -> VllmEngine:
        """The engine with the weights of `model`; the one handed out before serves them from now on."""
        model = resolve(model)
        if self._engine is not None and self._engine.architecture == architecture(model) != {}:
            if self._engine.fingerprint != model_fingerprint(model):
                self._engine.switch(model)
            return self._engine
        self.close()
        self._engine = VllmEngine(model, **self._settings)
        return self._engine

    def of(self, model: Served) -> Engine:
        """The engine that a recipe's model names: the pool's own for `vllm` in this process."""
        if model.engine == "vllm" and not model.cluster:
            return self.get(model.path)
        settings = {name: self._settings[name] for name in ("max_model_len", "dtype") if name in self._settings}
        return engine_of(Model(**{name: getattr(model, name) for name in Served.model_fields}, **settings))

    def close(self) -> None:
        """End the running engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> EnginePool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
