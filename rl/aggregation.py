"""From per-token values to one scalar, the same whatever the micro-batch size, padding or number of ranks.

Every loss of an optimizer step is divided by counts taken once over the whole step (`Denominator`), so the
losses of its micro-batches add up to the loss of the full batch, and so do their gradients. A sequence with
no trained token (a truncated completion, say) is in no numerator and in no denominator. Where the backend
averages gradients over ranks (DDP, FSDP), count over all ranks and multiply the loss by the number of
ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.pipelines.errors import RecipeError

__all__ = ["AGGREGATIONS", "Denominator", "aggregate", "combine_metrics", "divisor", "sequence_mean"]

AGGREGATIONS = ("sequence", "token", "constant")


@dataclass(frozen=True, eq=False)
class Denominator:
    """What an optimizer step divides by: trained tokens, and sequences with at least one of them.

    Denominators of several ranks or micro-batches add with `+`.
    """

    tokens: Tensor | int
    sequences: Tensor | int

    @classmethod
    def count(cls, *masks: Tensor) -> Denominator:
        """Count over the completion masks [N, T] of all micro-batches of the step; widths may differ."""
        tokens = torch.stack([mask.bool().sum() for mask in masks]).sum()
        sequences = torch.stack([mask.bool().any(-1).sum() for mask in masks]).sum()
        return cls(tokens, sequences)

    def __add__(self, other: Denominator) -> Denominator:
        return Denominator(self.tokens + other.tokens, self.sequences + other.sequences)


def divisor(how: str, denominator: Denominator, max_length: int | None = None) -> Tensor:
    """What sums over the step are divided by, at least 1, so that a fully masked batch gives 0 and not
    NaN."""
    tokens, sequences = torch.as_tensor(denominator.tokens), torch.as_tensor(denominator.sequences)
    if how == "token":
        return tokens.clamp(min=1)
    if how == "sequence":
        return sequences.clamp(min=1)
    if how != "constant":
        raise RecipeError(f"aggregation: {how!r} is unknown; choose one of {', '.join(AGGREGATIONS)}.")
    if not max_length or max_length < 1:
        raise RecipeError(
            f"aggregation 'constant' divides by the maximum completion length: got max_length={max_length}; "
            "pass the length limit of sampling (never the padded width, which differs between micro-batches)."
        )
    return sequences.clamp(min=1) * max_length


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over each row's trained tokens, [N, T] -> [N]; 0 for a row that has none."""
    return torch.where(mask, values, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)


def aggregate(
    values: Tensor,
    mask: Tensor,
    how: str,
    denominator: Denominator | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Aggregate per-token `values` [N, T] under `mask` [N, T] (bool) to a scalar.

    `sequence`: mean over tokens, then over sequences. `token`: sum over all tokens / number of all tokens.
    `constant`: sum / (sequences x max_length), Dr. GRPO. With `denominator` (counted over the step) the
    result is this micro-batch's share, and the shares of a step add up; without, `values` are the whole
    step.
    """
    rows = sequence_mean(values, mask) if how == "sequence" else torch.where(mask, values, 0.0).sum(-1)
    return rows.sum() / divisor(how, denominator or Denominator.count(mask), max_length)


def combine_metrics(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A step's metrics from those of its micro-batches: maxima for names ending in `_max`, sums for all
    others."""
    combined: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = torch.stack([part[name].detach() for part in parts if name in part])
        combined[name] = values.max() if name.endswith("_max") else values.sum()
    return combined
