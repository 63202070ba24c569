"""Micro-batches by token budget, and the log-probabilities of their completions.

Sequences are right-padded: with causal attention a real token never sees a pad behind it, so no attention mask is
needed and padding cannot change a log-probability. Sequences are sorted by length first, so that little is padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.rl.logprobs import hidden_logprobs

__all__ = ["Example", "MicroBatch", "completion_logprobs", "micro_batches"]


@dataclass(frozen=True)
class Example:
    """A prompt and the completion to learn from, as token ids; `completion_ids` end with the end token or are cut."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class MicroBatch:
    """`n` right-padded sequences.

    Attributes:
        rows: position of each sequence in the batch it was cut from, length n.
        input_ids: [n, L].
        completion_ids: [n, T], right-padded.
        mask: true on completion tokens, [n, T].
        first: index of the token before the completion, [n].
    """

    rows: list[int]
    input_ids: Tensor
    completion_ids: Tensor
    mask: Tensor
    first: Tensor


def micro_batches(
    examples: Sequence[Example], max_tokens: int, device: str | torch.device = "cpu", pad_id: int = 0
) -> Iterator[MicroBatch]:
    """Cut `examples` into micro-batches of at most `max_tokens` padded tokens (a longer example goes alone).

    Every example appears exactly once; none is dropped. Longest first, so that a batch too large fails at once.
    """
    order = sorted(range(len(examples)), key=lambda i: (-len(examples[i]), i))
    start = 0
    while start < len(order):
        size = max(1, max_tokens // max(1, len(examples[order[start]])))
        rows = order[start : start + size]
        yield _collate(rows, [examples[i] for i in rows], device, pad_id)
        start += size


def _collate(rows: list[int], examples: list[Example], device: str | torch.device, pad_id: int) -> MicroBatch:
    width = max(len(e) for e in examples)
    tail = max(len(e.completion_ids) for e in examples)
    ids = [[*e.prompt_ids, *e.completion_ids] + [pad_id] * (width - len(e)) for e in examples]
    completions = [[*e.completion_ids] + [pad_id] * (tail - len(e.completion_ids)) for e in examples]
    lengths = torch.tensor([len(e.completion_ids) for e in examples])
    return MicroBatch(
        rows,
        torch.tensor(ids, device=device),
        torch.tensor(completions, device=device),
        (torch.arange(tail)[None] < lengths[:, None]).to(device),
        torch.tensor([len(e.prompt_ids) - 1 for e in examples], device=device),
    )


def completion_logprobs(model: Any, batch: MicroBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of every completion token and the entropy of its distribution, nats, [n, T] each.

    Only the positions that predict completion tokens go through the output head. Values outside `batch.mask` are
    meaningless.
    """
    hidden = model.get_decoder()(input_ids=batch.input_ids, use_cache=False).last_hidden_state
    steps = torch.arange(batch.mask.shape[1], device=hidden.device)
    index = (batch.first[:, None] + steps[None]).clamp(max=hidden.shape[1] - 1)
    hidden = hidden.gather(1, index[..., None].expand(-1, -1, hidden.shape[-1]))
    return hidden_logprobs(hidden, model.get_output_embeddings().weight, batch.completion_ids, temperature)
