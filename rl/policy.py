"""The network that is trained: all of its weights or LoRA's, whole or sharded, with its reference.

LoRA's matrices are added in float32 to the float32 weights they belong to: a bfloat16 copy of the sum is rounded once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from assay.rl.batches import MicroBatch, completion_logprobs
from assay.rl.recipe import Lora, Memory, Reference
from assay.rl.sharding import full_state, load, shard

__all__ = ["Policy"]

ADAPTER = "default"


class Policy:
    """Prepares `model` in place.

    `frozen` is the reference where it is a model of its own.

    Args:
        reference: None where no KL term needs one. With LoRA it is the model without its adapters and takes no memory.
    """

    def __init__(self, model: Any, lora: Lora, memory: Memory, reference: Reference | None) -> None:
        self.model, self.lora = model, lora
        self.frozen = None
        if reference is not None and not lora.rank:
            self.frozen = _frozen_copy(model, getattr(torch, reference.dtype))
        self.has_reference = reference is not None
        if lora.rank:
            _inject(model, lora)
        if memory.gradient_checkpointing:
            _checkpoint_layers(model)
        shard(model, "completion_logprobs", completion_logprobs)

    def logprobs(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """As `completion_logprobs`, with gradient."""
        return self.model.completion_logprobs(batch, temperature)

    @torch.no_grad()
    def reference_logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """Log-probabilities under the reference, [n, T]."""
        if self.frozen is not None:
            return self.frozen.completion_logprobs(batch, temperature)[0]
        with self._without_adapters():
            return self.model.completion_logprobs(batch, temperature)[0]

    def reset_reference(self) -> None:
        """The reference becomes the present policy."""
        assert self.frozen is not None
        for mine, now in zip(self.frozen.parameters(), self.model.parameters()):
            mine.detach().copy_(now.detach())

    def weights(self) -> dict[str, Tensor]:
        """The whole model's weights by their Hugging Face names, adapters merged; needed by engine and checkpoint."""
        state = full_state(self.model)
        merged = {k.replace(".base_layer.", "."): v for k, v in state.items() if ".lora_" not in k}
        for name, a in state.items():
            if name.endswith(f".lora_A.{ADAPTER}.weight"):
                target = name.removesuffix(f".lora_A.{ADAPTER}.weight")
                b = state[f"{target}.lora_B.{ADAPTER}.weight"]
                merged[f"{target}.weight"] = merged[f"{target}.weight"] + self.lora.scale * (b @ a)
        return merged

    def state(self) -> dict[str, Any]:
        """For a checkpoint: what `weights` does not hold."""
        adapters = {k: v for k, v in full_state(self.model).items() if ".lora_" in k} if self.lora.rank else {}
        return {"adapters": adapters, "reference": full_state(self.frozen) if self.frozen is not None else None}

    def load(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Go on from `state` and the checkpoint's `weights`, which LoRA's base does not need."""
        load(self.model, state["adapters"] if self.lora.rank else weights)
        if self.frozen is not None:
            load(self.frozen, state["reference"])

    @contextmanager
    def _without_adapters(self) -> Iterator[None]:
        from peft.tuners.lora import LoraLayer

        layers = [m for m in self.model.modules() if isinstance(m, LoraLayer)]
        for layer in layers:
            layer._disable_adapters = True
        try:
            yield
        finally:
            for layer in layers:
                layer._disable_adapters = False


def _frozen_copy(model: Any, dtype: torch.dtype) -> Any:
    frozen = copy.deepcopy(model).eval().requires_grad_(False).to(dtype)
    shard(frozen, "completion_logprobs", completion_logprobs)
    return frozen


def _inject(model: nn.Module, lora: Lora) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=lora.targets, lora_dropout=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # so that every rank, and a resumed run before it loads, begins alike
        inject_adapter_in_model(config, model, ADAPTER)


def _checkpoint_layers(model: Any) -> None:
    """Recompute each layer in the backward pass. `transformers` does so in training mode only: the layers alone are put
    into it, and what is inside them (dropout) is not."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True
