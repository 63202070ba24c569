"""The plan of a run: bytes by hand; what a real step took stands beside it in test_trainer.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from assay.rl.plan import Plan, compared, kv_bytes_a_token, measured, saved_bytes, static_bytes

PLAN = Plan(**dict.fromkeys(Plan.__dataclass_fields__, 2.0**20))


def test_keys_and_values_of_a_token() -> None:
    config = SimpleNamespace(num_hidden_layers=4, num_key_value_heads=2, head_dim=32, num_attention_heads=4)
    assert kv_bytes_a_token(config, 4) == 2 * 4 * 2 * 32 * 4
    plain = SimpleNamespace(num_hidden_layers=2, num_attention_heads=4, hidden_size=64)
    assert kv_bytes_a_token(plain, 2) == 2 * 2 * 64 * 2


def test_what_autograd_holds_without_parameters_and_only_until_it_is_used() -> None:
    layer, x = torch.nn.Linear(8, 8, bias=False), torch.randn(16, 8, requires_grad=True)
    with saved_bytes(layer) as saved:
        for _ in range(3):
            layer(x).sum().backward()
    assert saved.most == 16 * 8 * 4


@pytest.mark.parametrize("lora", [0, 4])
def test_static_bytes_are_what_is_allocated(tiny: Any, groups_of: Any, updated: Any, lora: int) -> None:
    """Planned and allocated agree but for AdamW's step counters."""
    groups = groups_of(tiny)
    changes = {"kl_place": "loss", "beta": 0.1}
    updater, _ = updated(tiny, groups, algorithm="grpo", changes=changes, lora={"rank": lora})
    planned = static_bytes(updater)
    whole = sum(p.numel() for p in tiny.parameters())
    trained = sum(p.numel() for p in tiny.parameters() if p.requires_grad)
    assert (trained < whole / 2) == bool(lora)
    assert planned["weights"] == 4 * whole
    assert planned["reference"] == (0 if lora else 4 * whole)
    maker = SimpleNamespace(recipe=updater.recipe)
    actual = measured(updater, groups, maker, 2.0, 50)  # type: ignore[arg-type]
    assert actual.optimizer == pytest.approx(planned["optimizer"], rel=0.01)
    assert actual.gradients == planned["gradients"]


def test_planned_and_measured_side_by_side() -> None:
    lines = compared(PLAN, replace(PLAN, optimizer=2.0**21, activations=0.0, seconds_per_step=2.0)).splitlines()
    told = {line.split()[0]: line for line in lines}
    assert "1.0 MiB" in told["weights"]
    assert told["weights"].endswith("+0.0%")
    assert told["optimizer"].endswith("-50.0%")
    assert "activations" not in told  # not measured
    assert "2.00 s" in told["seconds_per_step"]
