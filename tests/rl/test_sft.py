"""Supervised fine-tuning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from assay.rl.batches import Example
from assay.rl.checkpoint import load_model
from assay.rl.sft import fine_tune, learning_rate_at

EXAMPLES = [Example([2, 9, 8], [20 + i, 30 + i, 1]) for i in range(6)]


def test_learning_rate_schedule() -> None:
    """By hand: 2 of 4 warm-up steps give half; then 1, and at the last but one step near a tenth."""
    assert learning_rate_at(1, 104, 1.0, 4) == 0.5
    assert learning_rate_at(4, 104, 1.0, 4) == pytest.approx(1.0)
    assert learning_rate_at(54, 104, 1.0, 4) == pytest.approx(0.55)
    assert learning_rate_at(104, 104, 1.0, 4) == pytest.approx(0.1)


def test_the_loss_is_the_mean_over_completion_tokens_and_falls(reasoner: Path) -> None:
    model = load_model(reasoner)
    nll = 0.0
    for e in EXAMPLES:
        ids = torch.tensor([[*e.prompt_ids, *e.completion_ids]])
        with torch.no_grad():
            logp = model(ids).logits[0].log_softmax(-1)[len(e.prompt_ids) - 1 : -1]
        nll -= float(logp.gather(-1, torch.tensor(e.completion_ids)[:, None]).sum())
    losses = fine_tune(model, EXAMPLES, steps=8, batch_size=6, learning_rate=1e-3, warmup=1)
    assert losses[0] == pytest.approx(nll / 18, rel=1e-4)
    assert losses[-1] < losses[0] / 1.5


@pytest.mark.parametrize("max_tokens", [6, 13, 10_000])
def test_the_micro_batch_size_does_not_change_the_gradient(reasoner: Path, max_tokens: int) -> None:
    grads = []
    for budget in (max_tokens, 40):
        model = load_model(reasoner)
        fine_tune(model, EXAMPLES, steps=1, batch_size=6, learning_rate=1e-9, max_tokens=budget, max_grad_norm=1e9)
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert float((grads[0] - grads[1]).norm() / grads[1].norm()) < 1e-5


def test_epochs_visit_every_example_equally_often() -> None:
    from assay.rl.sft import _epochs

    draw = _epochs(EXAMPLES, 4, seed=3)
    seen = [EXAMPLES.index(e) for step in range(3) for e in draw(step)]
    assert sorted(seen[:6]) == sorted(seen[6:]) == list(range(6))
    assert [EXAMPLES.index(e) for e in draw(1)] == seen[4:8]
