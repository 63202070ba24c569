"""Several ranks as one trainer (`torchrun`): each takes its share of the sequences, and sums are over all of them.

Rank 0 samples, grades, logs and saves. What all ranks must run at once is a method marked `together`: rank 0 calls it,
the others are in `follow`. In a process that is alone, all of this does nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

__all__ = ["alone", "evened", "first", "follow", "gathered", "group", "release", "share", "together", "world"]

T = TypeVar("T")


def world() -> int:
    """Number of ranks; 1 where no process group exists."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def alone() -> bool:
    """Whether this is the only rank."""
    return world() == 1


def first() -> bool:
    """Whether this is rank 0."""
    return alone() or dist.get_rank() == 0


@contextmanager
def group() -> Iterator[None]:
    """The process group that `torchrun` asks for (NCCL on GPUs, else gloo), ended at the end; else, or within one,
    nothing."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not alone():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cuda:nccl,cpu:gloo" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def share(items: Sequence[T]) -> list[T]:
    """This rank's items: every `world`-th, so that a list sorted by length is spread evenly. None is dropped."""
    return list(items) if alone() else list(items[dist.get_rank() :: world()])


def gathered(mine: T) -> list[T]:
    """Everybody's object, by rank."""
    if alone():
        return [mine]
    found: list[Any] = [None] * world()
    dist.all_gather_object(found, mine)
    return found


def evened(items: list[T], blank: T) -> list[T]:
    """`items` filled up with `blank` to the longest list of any rank: a collective that one rank leaves out hangs."""
    return items + [blank] * (max(gathered(len(items))) - len(items))


def together(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that all ranks run at once with rank 0's arguments."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        if not alone() and first():
            _tell((method.__name__, arguments))
        return method(self, *arguments)

    return call


def follow(target: Any) -> None:
    """Run what rank 0 runs of `target`'s methods, until it calls `release`."""
    while (told := _tell(None)) is not None:
        name, arguments = told
        getattr(target, name)(*arguments)


def release() -> None:
    """Rank 0 has no more work for the others."""
    if not alone():
        _tell(None)


def _tell(message: Any) -> Any:
    """Rank 0's message, on every rank."""
    box = [message]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]
