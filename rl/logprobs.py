"""Log-probabilities of sampled tokens at the sampling temperature, and entropies, in float32.

The trainer's and the sampler's numbers agree only when both divide the logits by the same temperature and
use the whole vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["CHUNK_ELEMENTS", "hidden_logprobs", "token_entropy", "token_logprobs"]

CHUNK_ELEMENTS = 2**24  # logits alive at once: 64 MiB in float32, in up to four buffers


def token_logprobs(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """log softmax(logits / temperature) at `ids`: [..., V], [...] -> [...], nats; carries gradient.

    Materialises [..., V] in float32; `hidden_logprobs` does not.
    """
    scaled = _scaled(logits, temperature)
    return scaled.gather(-1, ids[..., None]).squeeze(-1) - scaled.logsumexp(-1)


def token_entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy of softmax(logits / temperature), [..., V] -> [...], nats."""
    logp = _scaled(logits, temperature).log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def hidden_logprobs(hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies from the last hidden state, the logits never whole.

    Equal to `token_logprobs` and `token_entropy` of `hidden @ weight.T`, in chunks of rows, recomputed in the
    backward pass; the weight's gradient is accumulated in float32. A model that changes its logits after the
    output head (soft-capping, scaling, bias) needs `token_logprobs`.

    Args: hidden [..., H], weight of the output head [V, H], ids [...]. Returns two [...] float32, nats,
    both with gradient to `hidden` and `weight`.
    """
    if hidden.shape[:-1] != ids.shape or hidden.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)}, ids {tuple(ids.shape)}: do not fit."
        )
    flat = hidden.reshape(-1, hidden.shape[-1])
    logp, entropy = _HeadLogprobs.apply(flat, weight, ids.reshape(-1), _checked(temperature))
    return logp.reshape(ids.shape), entropy.reshape(ids.shape)


def _checked(temperature: float) -> float:
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0 to have log-probabilities, got {temperature}.")
    return temperature


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    return logits.float() / _checked(temperature)


class _HeadLogprobs(torch.autograd.Function):
    """With z = logits/T, p = softmax(z): d logp/dz = onehot - p, d entropy/dz = -p (log p + entropy)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logp, entropy = (torch.empty(len(ids), dtype=torch.float32, device=ids.device) for _ in range(2))
        for rows in _chunks(len(ids), len(weight)):
            z = _logits(hidden[rows], weight, temperature)
            norm = z.logsumexp(-1)
            logp[rows] = z.gather(-1, ids[rows, None]).squeeze(-1) - norm
            log_p = z.sub_(norm[:, None])
            entropy[rows] = -(log_p.exp() * log_p).sum(-1)
        ctx.save_for_backward(hidden, weight, ids, entropy)
        ctx.temperature = temperature
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, ids, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for rows in _chunks(len(ids), len(weight)):
            logits = _logits(hidden[rows], weight, ctx.temperature)
            grad = _logit_grad(logits, ids[rows], entropy[rows], *(g[rows, None] for g in grads))
            grad = (grad / ctx.temperature).to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = (grad @ weight).to(hidden.dtype)
            if grad_weight is not None:
                grad_weight += grad.T @ hidden[rows]
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None


def _logit_grad(z: Tensor, ids: Tensor, entropy: Tensor, grad_logp: Tensor, grad_entropy: Tensor) -> Tensor:
    """Gradient with respect to z; overwrites it. [rows, V]."""
    log_p = z.sub_(z.logsumexp(-1, keepdim=True))
    factor = (log_p + entropy[:, None]).mul_(grad_entropy).add_(grad_logp)
    grad = log_p.exp_().mul_(factor).neg_()
    return grad.scatter_add_(-1, ids[:, None], grad_logp)


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """In the model's own precision, as its head computes them, then float32."""
    return (hidden.to(weight.dtype) @ weight.T).float() / temperature


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(start, start + size) for start in range(0, rows, size)]
