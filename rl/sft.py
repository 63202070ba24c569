"""Supervised fine-tuning on token ids: the cold start, rejection-sampling fine-tuning and distillation.

The loss is the mean negative log-likelihood over all completion tokens of the optimizer step; the prompt is masked.
Micro-batches are divided by the step's own token count, so their size does not change the gradient.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from assay.rl.batches import Example, completion_logprobs, micro_batches
from assay.rl.memory import keep_large_blocks

__all__ = ["fine_tune", "learning_rate_at"]


def learning_rate_at(step: int, steps: int, peak: float, warmup: int) -> float:
    """Linear warm-up to `peak`, then a half cosine to a tenth of it; `step` counts from 0."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def fine_tune(
    model: Any,
    examples: Sequence[Example] | Callable[[int], list[Example]],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    warmup: int = 20,
    max_tokens: int = 4096,
    seed: int = 0,
    weight_decay: float = 0.01,
    max_grad_norm: float = 1.0,
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Fine-tune `model` in place; returns the loss of every step, nats a token.

    Args:
        examples: a fixed set, sampled without replacement epoch by epoch, or a function of the step that makes the
            step's batch.
        on_step: called with (step, loss), for progress.
    """
    keep_large_blocks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay)
    draw = examples if callable(examples) else _epochs(examples, batch_size, seed)
    losses = []
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, steps, learning_rate, warmup)
        losses.append(_step(model, optimizer, draw(step), max_tokens, max_grad_norm))
        if on_step:
            on_step(step, losses[-1])
    model.eval()
    return losses


def _step(
    model: Any, optimizer: torch.optim.Optimizer, batch: list[Example], max_tokens: int, max_grad_norm: float
) -> float:
    device = next(model.parameters()).device
    tokens = sum(len(e.completion_ids) for e in batch)
    total = 0.0
    optimizer.zero_grad(set_to_none=True)
    for micro in micro_batches(batch, max_tokens, device):
        logp, _ = completion_logprobs(model, micro)
        loss = -(logp * micro.mask).sum() / tokens
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    return total


def _epochs(examples: Sequence[Example], batch_size: int, seed: int) -> Callable[[int], list[Example]]:
    """A function of the step that walks through shuffled epochs; the same step always gives the same batch."""
    size, count = min(batch_size, len(examples)), len(examples)

    def draw(step: int) -> list[Example]:
        positions = range(step * size, (step + 1) * size)
        orders = {p // count: None for p in positions}
        for epoch in orders:
            orders[epoch] = random.Random(f"{seed}:{epoch}").sample(range(count), count)  # type: ignore[assignment]
        return [examples[orders[p // count][p % count]] for p in positions]  # type: ignore[index]

    return draw
