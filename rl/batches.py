"""Micro-batches by token budget, and the log-probabilities of their completions.

Padded: with causal attention a real token never sees a pad behind it, so no attention mask is needed and padding cannot
change a log-probability; sequences are sorted by length first, so that little is padded. Packed: the sequences stand in
one row, and positions that begin anew tell `transformers` not to look across.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.rl.logprobs import hidden_logprobs

__all__ = ["Example", "MicroBatch", "completion_hidden", "completion_logprobs", "micro_batches"]


@dataclass(frozen=True)
class Example:
    """A prompt and the completion to learn from, as token ids; `completion_ids` end with the end token or are cut."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class MicroBatch:
    """`n` sequences, right-padded, or packed into one row.

    Attributes:
        rows: position of each sequence in the batch it was cut from, length n.
        input_ids: [n, L], or [1, sum of lengths].
        position_ids: None, or the position of every token in its own sequence, [1, sum of lengths].
        completion_ids: [n, T], right-padded.
        mask: true on completion tokens, [n, T].
        index: where in the flattened `input_ids` the token before each completion token stands, [n, T].
    """

    rows: list[int]
    input_ids: Tensor
    position_ids: Tensor | None
    completion_ids: Tensor
    mask: Tensor
    index: Tensor


def micro_batches(
    examples: Sequence[Example],
    max_tokens: int,
    device: str | torch.device = "cpu",
    pad_id: int = 0,
    packed: bool = False,
) -> Iterator[MicroBatch]:
    """Cut `examples` into micro-batches of at most `max_tokens` tokens, pads included (a longer one goes alone).

    Every example appears exactly once; none is dropped. Longest first, so that a batch too large fails at once.
    """
    order, start = sorted(range(len(examples)), key=lambda i: (-len(examples[i]), i)), 0
    while start < len(order):
        rows = order[start : start + _fitting([len(examples[i]) for i in order[start:]], max_tokens, packed)]
        yield _collate(rows, [examples[i] for i in rows], device, pad_id, packed)
        start += len(rows)


def _fitting(lengths: list[int], max_tokens: int, packed: bool) -> int:
    """How many of `lengths`, longest first, go into one micro-batch; at least one."""
    if not packed:
        return max(1, max_tokens // max(1, lengths[0]))
    return max(1, sum(total <= max_tokens for total in itertools.accumulate(lengths)))


def _collate(
    rows: list[int], examples: list[Example], device: str | torch.device, pad_id: int, packed: bool
) -> MicroBatch:
    tail = max(len(e.completion_ids) for e in examples)
    lengths = torch.tensor([len(e.completion_ids) for e in examples])
    ids, position_ids, starts = (_packed if packed else _padded)(examples, pad_id)
    before = starts + torch.tensor([len(e.prompt_ids) - 1 for e in examples])
    last = before + lengths.clamp(min=1) - 1
    return MicroBatch(
        rows,
        ids.to(device),
        position_ids if position_ids is None else position_ids.to(device),
        torch.tensor([_right_padded(e.completion_ids, tail, pad_id) for e in examples], device=device),
        (torch.arange(tail)[None] < lengths[:, None]).to(device),
        torch.minimum(before[:, None] + torch.arange(tail)[None], last[:, None]).to(device),
    )


def _padded(examples: list[Example], pad_id: int) -> tuple[Tensor, None, Tensor]:
    """Ids [n, L], no positions, and where each sequence begins in the flattened ids [n]."""
    width = max(len(e) for e in examples)
    ids = [_right_padded([*e.prompt_ids, *e.completion_ids], width, pad_id) for e in examples]
    return torch.tensor(ids), None, torch.arange(len(examples)) * width


def _packed(examples: list[Example], _: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and positions [1, sum of lengths], and where each sequence begins [n]."""
    lengths = torch.tensor([len(e) for e in examples])
    ids = [i for e in examples for i in (*e.prompt_ids, *e.completion_ids)]
    return torch.tensor([ids]), torch.cat([torch.arange(n) for n in lengths])[None], lengths.cumsum(0) - lengths


def _right_padded(ids: Sequence[int], width: int, pad_id: int) -> list[int]:
    return [*ids] + [pad_id] * (width - len(ids))


def completion_hidden(decoder: Any, batch: MicroBatch) -> Tensor:
    """The last hidden state where each completion token is predicted, [n, T, H]."""
    hidden = decoder(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1)[batch.index]


def completion_logprobs(model: Any, batch: MicroBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of every completion token and the entropy of its distribution, nats, [n, T] each.

    Only the positions that predict completion tokens go through the output head. Values outside `batch.mask` are
    meaningless.
    """
    hidden = completion_hidden(model.get_decoder(), batch)
    return hidden_logprobs(hidden, model.get_output_embeddings().weight, batch.completion_ids, temperature)
