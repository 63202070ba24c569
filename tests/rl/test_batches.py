"""Micro-batches and the log-probabilities of completions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from assay.rl.batches import Example, completion_logprobs, micro_batches
from assay.rl.checkpoint import load_model

EXAMPLES = [Example([2, 9, 8, 7][:p], list(range(10, 10 + c))) for p, c in ((4, 7), (2, 3), (3, 12), (4, 1), (1, 5))]


@pytest.mark.parametrize("budget", [1, 16, 32, 10_000])
def test_every_example_appears_once_within_the_budget(budget: int) -> None:
    batches = list(micro_batches(EXAMPLES, budget))
    assert sorted(r for b in batches for r in b.rows) == list(range(5))
    assert all(b.input_ids.numel() <= budget or len(b.rows) == 1 for b in batches)
    for batch in batches:
        for row, ids, mask, completion in zip(batch.rows, batch.input_ids, batch.mask, batch.completion_ids):
            example = EXAMPLES[row]
            assert ids[: len(example)].tolist() == [*example.prompt_ids, *example.completion_ids]
            assert completion[mask].tolist() == list(example.completion_ids)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_each_sequence_alone(reasoner: Path, temperature: float) -> None:
    """Padding, neighbours and the gathering of positions change nothing."""
    model = load_model(reasoner)
    for batch in micro_batches(EXAMPLES, 10_000):
        with torch.no_grad():
            logp, entropy = completion_logprobs(model, batch, temperature)
    for row, got, spread in zip(batch.rows, logp, entropy):
        example = EXAMPLES[row]
        ids = torch.tensor([[*example.prompt_ids, *example.completion_ids]])
        with torch.no_grad():
            plain = (model(ids).logits[0] / temperature).log_softmax(-1)
        predicting = plain[len(example.prompt_ids) - 1 : -1]
        want = predicting.gather(-1, torch.tensor(example.completion_ids)[:, None])[:, 0]
        count = len(example.completion_ids)
        torch.testing.assert_close(got[:count], want, atol=2e-5, rtol=0)
        torch.testing.assert_close(spread[:count], -(predicting.exp() * predicting).sum(-1), atol=2e-5, rtol=1e-4)
