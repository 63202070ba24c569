"""Shards over the ranks with torch's FSDP2, and whole states from them and back; for a lone process the plain thing."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from assay.pipelines.errors import ModelError
from assay.rl import ranks

__all__ = ["full_state", "load", "load_optimizer", "optimizer_state", "shard"]


def shard(module: Any, method: str, function: Callable[..., Any]) -> None:
    """Bind `function` to `module` as `method`, its way in, and shard the module where there are several ranks.

    Each layer of `module.get_decoder()` is a unit. Gradients are averaged over the ranks, so a loss whose denominator
    is of all ranks must be multiplied by their number.
    """
    setattr(module, method, types.MethodType(function if ranks.alone() else _copied(function), module))
    if ranks.alone():
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(next(module.parameters()).device.type, (ranks.world(),))
    for layer in module.get_decoder().layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    register_fsdp_forward_method(module, method)


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """FSDP2 hooks what comes out, and a hook on a view is lost with it."""
    from torch.utils._pytree import tree_map

    return lambda *arguments: tree_map(torch.clone, function(*arguments))


def full_state(module: Any) -> dict[str, Tensor]:
    """All weights by name; of several ranks, rank 0's answer alone is filled."""
    if ranks.alone():
        return {k: v.detach() for k, v in module.state_dict().items()}
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    return get_model_state_dict(module, options=_options(cpu_offload=True))


def load(module: Any, state: dict[str, Tensor]) -> None:
    """Weights by name, the same `state` on every rank; what it does not name stays.

    Raises:
        ModelError: a name that is not the module's.
    """
    if unknown := set(state) - set(module.state_dict()):
        raise ModelError(f"the checkpoint's {min(unknown)} is no weight of this model; resume with the run's recipe.")
    if ranks.alone():
        module.load_state_dict(state, strict=False)
        return
    from torch.distributed.checkpoint.state_dict import set_model_state_dict

    set_model_state_dict(module, state, options=_options(strict=False))


def optimizer_state(module: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's whole state; of several ranks, rank 0's answer alone is filled."""
    if ranks.alone():
        return optimizer.state_dict()
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    return get_optimizer_state_dict(module, optimizer, options=_options(cpu_offload=True))


def load_optimizer(module: Any, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Go on from `state`, which as many ranks wrote (one, or several)."""
    if ranks.alone():
        optimizer.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

    set_optimizer_state_dict(module, optimizer, state, options=_options())


def _options(**more: bool) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, **more)
