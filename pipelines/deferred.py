"""An engine that starts when something must be sampled: what is recorded is found by the model's files alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from assay.pipelines.engines import BaseEngine, Engine, Request, Stream, model_fingerprint
from assay.pipelines.errors import EngineError, ModelError
from assay.pipelines.models import resolve

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

__all__ = ["DeferredEngine"]


class DeferredEngine(BaseEngine):
    """Stands for the engine that `start` makes: same fingerprint, same tokenizer, started at the first request.

    Args:
        model: a folder or a Hub id.
        max_model_len: prompt and completion together, tokens.
        start: makes the engine; called once, or never when all samples are recorded.

    Raises:
        EngineError: the started engine has other weights than `model` (from `generate`).
    """

    name = "vllm"

    def __init__(self, model: str, max_model_len: int, start: Callable[[], Engine]) -> None:
        self.model, self.max_model_len, self._start = resolve(model), max_model_len, start
        self.fingerprint = model_fingerprint(self.model) if Path(self.model).is_dir() else self.model

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Of the model's folder.

        Raises:
            ModelError: the folder has none.
        """
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.model)
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.model}: no tokenizer: {error} Give a folder in the Hugging Face layout.") from None

    @cached_property
    def _engine(self) -> Engine:
        engine = self._start()
        if engine.fingerprint != self.fingerprint:
            raise EngineError(f"{self.model}: the engine that was started has other weights; give the recipe's model.")
        return engine

    @property
    def busy_seconds(self) -> float:
        """As the protocol says."""
        return self._engine.busy_seconds if self._started else 0.0

    @property
    def sampled_tokens(self) -> int:
        """As the protocol says."""
        return self._engine.sampled_tokens if self._started else 0

    @property
    def _started(self) -> bool:
        return "_engine" in self.__dict__

    def stream(self, requests: Sequence[Request]) -> Stream:
        """As the protocol says; no request starts nothing."""
        if requests:
            yield from self._engine.stream(requests)

    def memory(self) -> str:
        """As the protocol says; starts the engine."""
        return self._engine.memory()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], fingerprint: str) -> None:
        """As the protocol says."""
        self._engine.load_weights(weights, fingerprint)
        self.fingerprint = fingerprint

    def close(self) -> None:
        """Close the engine if it was started."""
        if self._started:
            self._engine.close()
