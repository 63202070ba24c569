"""One engine for several models in turn: weights are exchanged where the architecture allows, else it starts anew."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from assay.pipelines.engines import VllmEngine, architecture, model_fingerprint
from assay.pipelines.models import resolve

__all__ = ["EnginePool"]


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

    def close(self) -> None:
        """End the running engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> EnginePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
