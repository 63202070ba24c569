"""What a training run will take, from its recipe and a small sample of it; and what it took.

Bytes follow from shapes: float32 weights, gradients and two moments of AdamW for what is trained. Activations are what
autograd saves for a sample's forward pass, a token, times the tokens of a micro-batch. Seconds are those of two small
samples, laid on a line: a sampler has a fixed cost and a cost a completion. Groups that dynamic sampling will drop are
drawn too.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from assay.rl.logprobs import CHUNK_ELEMENTS
from assay.rl.rollouts import Group, RolloutMaker
from assay.rl.update import Updater

__all__ = ["Plan", "compared", "kv_bytes_a_token", "make_plan", "measured", "saved_bytes", "static_bytes"]

UNITS = {"seconds_per_step": "s", "tokens_per_step": "tokens"}


@dataclass(frozen=True)
class Plan:
    """Bytes, seconds and tokens; `kv_cache` is that of the completions in flight at their mean length."""

    weights: float
    gradients: float
    optimizer: float
    reference: float
    critic: float
    kv_cache: float
    logits_peak: float
    activations: float
    tokens_per_step: float
    seconds_per_step: float

    def __str__(self) -> str:
        return "\n".join(f"  {name:<17} {_text(name, value)}" for name, value in asdict(self).items() if value)


def make_plan(updater: Updater, maker: RolloutMaker) -> Plan:
    """Sample an eighth of a step twice and half of one once with the present weights, take the gradients, and reckon.

    The first sample warms up what is slow once and shows the activations; the others are timed. A line through an
    eighth and a quarter would make six times of their noise. Changes no weight; seeds are of a step that never comes.
    The engine's prefix cache must be emptied after it.
    """
    s = maker.recipe.sampling
    sizes = [max(1, s.prompts // 8), max(1, s.prompts // 8), max(2, s.prompts // 2)]
    with saved_bytes(updater.model) as saved:
        groups, _ = _sampled(updater, maker, sizes[0], 0)
    activations = saved.most * _filled(updater, groups, s.prompts / sizes[0])
    timed = [_sampled(updater, maker, size, round_) for round_, size in enumerate(sizes[1:], 1)]
    groups, drawn = timed[-1][0], s.prompts / _kept(updater, [g for part, _ in timed for g in part])
    sampling, updating = zip(*(seconds for _, seconds in timed))
    return Plan(
        **static_bytes(updater),
        kv_cache=_kv_cache(updater.model.config, groups, maker),
        logits_peak=_logits(updater),
        activations=activations,
        tokens_per_step=sum(g.tokens for g in groups) / sizes[-1] * drawn,
        seconds_per_step=_at(drawn, sizes[1:], sampling) + _at(s.prompts, sizes[1:], updating),
    )


def _sampled(updater: Updater, maker: RolloutMaker, size: int, round_: int) -> tuple[list[Group], tuple[float, float]]:
    """Groups, and the seconds of sampling them and of their gradient."""
    began = time.perf_counter()
    groups = maker.groups([i % len(maker.ids) for i in range(size)], -1, round_)
    sampled = time.perf_counter()
    updater.gradient(groups)
    return groups, (sampled - began, time.perf_counter() - sampled)


def _kept(updater: Updater, groups: list[Group]) -> float:
    """The share of drawn groups that a step trains on."""
    if not updater.preset.dynamic_sampling:
        return 1.0
    return max(0.25, sum(len({s.reward for s in g.samples}) > 1 for g in groups) / len(groups))


def _at(size: float, sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Seconds for `size` groups on the line through two measurements."""
    rate = max(0.0, (seconds[1] - seconds[0]) / max(1, sizes[1] - sizes[0]))
    return seconds[1] + rate * (size - sizes[1])


def static_bytes(updater: Updater) -> dict[str, float]:
    """Weights and what is kept beside them for as long as the run lasts."""
    policy, critic = updater.policy, updater.critic
    trained = sum(p.numel() for p in updater.model.parameters() if p.requires_grad)
    values = sum(p.numel() for p in critic.network.parameters()) if critic is not None else 0
    return {
        "weights": _bytes(updater.model.parameters()),
        "gradients": 4.0 * trained,
        "optimizer": 8.0 * trained,
        "reference": _bytes(policy.frozen.parameters()) if policy.frozen is not None else 0.0,
        "critic": 16.0 * values,
    }


def measured(updater: Updater, groups: list[Group], maker: RolloutMaker, seconds: float, tokens: float) -> Plan:
    """The same after a step: what is allocated now, the step's own lengths and time."""
    state = [v for s in updater.optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    grads = [p.grad for p in updater.model.parameters() if p.grad is not None]
    found = {"gradients": _bytes(grads), "optimizer": _bytes(state)}
    return Plan(
        **{**static_bytes(updater), **found},
        kv_cache=_kv_cache(updater.model.config, groups, maker),
        logits_peak=_logits(updater),
        activations=0.0,
        tokens_per_step=tokens,
        seconds_per_step=seconds,
    )


def compared(plan: Plan, actual: Plan) -> str:
    """Planned, measured and the error of every figure that was measured, a line each, and the process's peak."""
    lines = []
    for name, value in asdict(plan).items():
        if seen := getattr(actual, name):
            lines.append(f"  {name:<17} {_text(name, value):>16}  was {_text(name, seen):>16}  {value / seen - 1:+.1%}")
    return "\n".join([*lines, f"  {'process peak':<17} {_text('', _peak()):>16}"])


def kv_bytes_a_token(config: Any, dtype_bytes: int) -> int:
    """Keys and values of one token in all layers."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * size * dtype_bytes


def _kv_cache(config: Any, groups: list[Group], maker: RolloutMaker) -> float:
    """A prompt is in the cache once for its whole group."""
    e, s = maker.recipe.engine, maker.recipe.sampling
    prompt = sum(len(g.prompt_ids) for g in groups) / max(1, len(groups))
    length = sum(g.tokens for g in groups) / max(1, sum(len(g.samples) for g in groups))
    flying = min(e.max_num_seqs, s.prompts * s.group_size)
    dtype_bytes = 4 if maker.recipe.dtype == "float32" else 2
    return kv_bytes_a_token(config, dtype_bytes) * flying * (length + prompt / s.group_size)


def _logits(updater: Updater) -> float:
    """Four float32 buffers of a chunk (`logprobs.hidden_logprobs`)."""
    return 16.0 * min(CHUNK_ELEMENTS, updater.recipe.optimizer.micro_batch_tokens * updater.model.config.vocab_size)


def _bytes(tensors: Any) -> float:
    return float(sum(t.numel() * t.element_size() for t in tensors))


def _filled(updater: Updater, groups: list[Group], times: float) -> float:
    """How much fuller a step's largest micro-batch is than the sample's."""
    budget = updater.recipe.optimizer.micro_batch_tokens
    sampled = sum(len(e) for g in groups for e in g.examples())
    return min(budget, sampled * times) / max(1, min(budget, sampled))


class _Saved:
    """Bytes of the distinct storages that autograd holds, and the most it held before a backward pass."""

    def __init__(self, model: Any) -> None:
        self.ignored = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.held: set[int] = set()
        self.now, self.most = 0.0, 0.0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.held | self.ignored:
            self.held.add(storage.data_ptr())
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
        return tensor

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.held.clear()
        self.now = 0.0
        return tensor


@contextmanager
def saved_bytes(model: Any) -> Iterator[_Saved]:
    """Watch what autograd saves inside the block, the parameters of `model` left out; read `most` after it."""
    saved = _Saved(model)
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        yield saved


def _peak() -> float:
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _text(name: str, value: float) -> str:
    unit = UNITS.get(name)
    return f"{value:,.2f} {unit}" if unit == "s" else f"{value:,.0f} {unit}" if unit else f"{value / 2**20:,.1f} MiB"
