"""PPO's critic: a copy of the policy's decoder with a linear head, and an optimizer of its own.

V(s_t) is read where the policy predicts token t, so it knows the prompt and the tokens before t. The head begins at
zero, so the first advantages are those without a baseline. As network and optimizer are its own, the usual coefficient
of the value loss in the policy's loss has no counterpart: Adam would cancel it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from assay.rl.advantages import gae, whiten
from assay.rl.aggregation import Denominator, combine_metrics
from assay.rl.batches import Example, MicroBatch, completion_hidden
from assay.rl.kl import token_rewards
from assay.rl.losses import value_loss
from assay.rl.ranks import gathered, world
from assay.rl.recipe import Critic as Settings
from assay.rl.rows import Batcher, Rows, take
from assay.rl.sharding import full_state, load, load_optimizer, optimizer_state, shard

__all__ = ["Critic", "token_advantages"]


class _ValueNetwork(nn.Module):
    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = copy.deepcopy(decoder)
        weight = next(decoder.parameters())
        self.head = nn.Linear(decoder.config.hidden_size, 1, device=weight.device, dtype=weight.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def get_decoder(self) -> Any:
        return self.decoder


def _values(network: _ValueNetwork, batch: MicroBatch) -> Tensor:
    return network.head(completion_hidden(network.decoder, batch).to(network.head.weight.dtype)).squeeze(-1).float()


class Critic:
    """Estimates values of `model`'s states and learns them."""

    def __init__(self, model: Any, settings: Settings, batcher: Batcher, max_grad_norm: float) -> None:
        self.settings, self.batcher, self.max_grad_norm = settings, batcher, max_grad_norm
        self.network: Any = _ValueNetwork(model.get_decoder())
        shard(self.network, "values", _values)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=settings.learning_rate, weight_decay=0.0)

    def values(self, examples: list[Example]) -> Tensor:
        """V before every completion token, [N, T], 0 behind the end; no gradient."""
        return self.batcher.tokenwise(examples, self.network.values)

    def step(self, rows: Rows, batches: list[MicroBatch], denominator: Denominator) -> dict[str, float]:
        """One optimizer step towards the returns on the trained tokens of `batches`; metrics of `value_loss`."""
        assert rows.values is not None
        assert rows.returns is not None
        self.optimizer.zero_grad(set_to_none=True)
        parts = []
        for batch in batches:
            old, returns, mask = take(rows.values, batch), take(rows.returns, batch), rows.mask(batch)
            loss = value_loss(
                self.network.values(batch), old, returns, mask, self.settings.value_clip, denominator=denominator
            )
            (loss.value * world()).backward()
            parts.append(loss.metrics)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.max_grad_norm)
        self.optimizer.step()
        return {k: float(v) for k, v in combine_metrics([m for part in gathered(parts) for m in part]).items()}

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"network": full_state(self.network), "optimizer": optimizer_state(self.network, self.optimizer)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        load(self.network, state["network"])
        load_optimizer(self.network, self.optimizer, state["optimizer"])


def token_advantages(
    rewards: Tensor, values: Tensor, logp: Tensor, logp_ref: Tensor, mask: Tensor, beta: float, settings: Settings
) -> tuple[Tensor, Tensor]:
    """GAE's advantages and returns, [N, T] each, 0 outside `mask`.

    The reward [N] stands on the last token, beta times the k1 to the reference on every token (`kl.token_rewards`).
    Whitened where the settings say so; the returns are not.

    Args: values, log-probabilities under sampler and reference, and the completion mask, [N, T].
    """
    per_token = token_rewards(rewards, logp, logp_ref, mask, beta)
    advantage, returns = gae(per_token, values, mask, settings.gamma, settings.lam)
    return whiten(advantage, mask) if settings.whiten else advantage, returns
