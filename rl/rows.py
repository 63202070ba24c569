"""A step's samples as rows, and the micro-batches that each rank makes of its share of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.rl import ranks
from assay.rl.aggregation import Denominator
from assay.rl.batches import Example, MicroBatch, micro_batches
from assay.rl.rollouts import Group

__all__ = ["Batcher", "Estimate", "Rows", "padded", "take", "with_blank"]

BLANK = Example([0], [0])


@dataclass(frozen=True, eq=False)
class Estimate:
    """What the rewards of N completions amount to.

    Attributes:
        advantage: [N] a completion, or [N, T] a token where a critic estimates it.
        completion: [N], the advantage or its mean over the completion's tokens.
        live: [N], whether the rewards of its group differ.
        values, returns: [N, T], the critic's, where there is one.
        kl: the KL to the reference, nats a token, where it is in the reward.
    """

    advantage: Tensor
    completion: Tensor
    live: Tensor
    values: Tensor | None = None
    returns: Tensor | None = None
    kl: float | None = None


@dataclass(frozen=True)
class Batcher:
    """Cuts rows into this rank's micro-batches, equally many on every rank."""

    max_tokens: int
    device: torch.device
    packed: bool = False

    def cut(self, examples: Sequence[Example], own: Sequence[int]) -> list[MicroBatch]:
        """Micro-batches of this rank's share of the rows `own`; their `rows` are positions in `examples`.

        A rank with fewer than another adds batches of one blank row, position len(examples), which trains nothing.
        """
        mine = ranks.share(sorted(own, key=lambda i: (-len(examples[i]), i)))
        cut = micro_batches([examples[i] for i in mine], self.max_tokens, self.device, packed=self.packed)
        batches = [replace(batch, rows=[mine[i] for i in batch.rows]) for batch in cut]
        if ranks.alone():
            return batches
        blank = replace(next(micro_batches([BLANK], 1, self.device)), rows=[len(examples)])
        return ranks.evened(batches, blank)

    @torch.no_grad()
    def tokenwise(self, examples: Sequence[Example], run: Callable[[MicroBatch], Tensor]) -> Tensor:
        """`run` [n, T] of every completion token, put together: [N, longest], float32 on the CPU, 0 behind the end."""
        found: dict[int, list[float]] = {}
        for batch in self.cut(examples, range(len(examples))):
            values = run(batch).float().cpu()
            found |= {row: v[m].tolist() for row, v, m in zip(batch.rows, values, batch.mask.cpu())}
        everyone = {row: v for part in ranks.gathered(found) for row, v in part.items()}
        return padded([everyone[i] for i in range(len(examples))])


class Rows:
    """The samples of a step in order, and the blank row behind them."""

    def __init__(self, groups: list[Group], estimate: Estimate, mask_truncated: bool, step: int) -> None:
        samples = [s for g in groups for s in g.samples]
        self.examples = [e for g in groups for e in g.examples()]
        self.logprobs = padded([*(s.logprobs for s in samples), [0.0]])
        kept = [not (mask_truncated and s.truncated) and s.reward == s.reward for s in samples]
        self.trained = torch.tensor([*kept, False])
        self.fresh = torch.tensor([*(g.version == step for g in groups for _ in g.samples), False])
        self.advantage, self.live = with_blank(estimate.advantage), with_blank(estimate.live)
        self.values = None if estimate.values is None else with_blank(estimate.values)
        self.returns = None if estimate.returns is None else with_blank(estimate.returns)

    def denominator(self, own: Sequence[int]) -> Denominator:
        """Trained tokens and sequences of one optimizer step, over all ranks."""
        lengths = torch.tensor([len(self.examples[i].completion_ids) for i in own]) * self.trained[list(own)]
        return Denominator(int(lengths.sum()), int((lengths > 0).sum()))

    def mask(self, batch: MicroBatch) -> Tensor:
        """The trained tokens of `batch`, [n, T]."""
        return batch.mask & self.trained[batch.rows].to(batch.mask.device)[:, None]


def take(values: Tensor, batch: MicroBatch) -> Tensor:
    """The rows of `values` [N, ...] that are in `batch`, cut to its width where they are of tokens."""
    own = values[batch.rows].to(batch.mask.device)
    return own[:, : batch.mask.shape[1]] if own.ndim == 2 else own


def padded(rows: Sequence[Sequence[float]]) -> Tensor:
    """Rows of unequal length as one float32 tensor, zeros behind their ends."""
    width = max((len(row) for row in rows), default=0)
    return torch.tensor([[*row] + [0.0] * (width - len(row)) for row in rows]).reshape(len(rows), width)


def with_blank(values: Tensor) -> Tensor:
    """`values` [N, ...] and the blank row's zeros behind them."""
    return torch.cat([values, values.new_zeros((1, *values.shape[1:]))])
