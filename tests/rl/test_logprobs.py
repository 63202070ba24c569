import os
import subprocess
import sys

import pytest
import torch

from assay.rl import logprobs
from assay.rl.logprobs import hidden_logprobs, token_entropy, token_logprobs

SCRIPT = """
import torch
from assay.rl.logprobs import hidden_logprobs
torch.manual_seed(0)
hidden = torch.randn(1_024, 8, requires_grad=True)
weight = torch.randn(150_000, 8, requires_grad=True)
logp, entropy = hidden_logprobs(hidden, weight, torch.randint(0, 150_000, (1_024,)))
(logp.mean() + 0.01 * entropy.mean()).backward()
assert hidden.grad.isfinite().all() and weight.grad.isfinite().all()
with open("/proc/self/status") as status:  # ru_maxrss would count the parent's pages before exec
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 2**20)
"""


def case(vocabulary=31, dtype=torch.float32):
    torch.manual_seed(0)
    hidden = torch.randn(3, 5, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, 8, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(0, vocabulary, (3, 5))


def test_by_hand():
    logits = torch.tensor([[0.0, 0.0], [1.0, 3.0]])
    got = token_logprobs(logits, torch.tensor([0, 1]), temperature=2.0)
    assert got.tolist() == pytest.approx([-0.693147, -0.313262], abs=1e-5)  # log 1/2, log sigmoid(1)
    assert token_entropy(logits[:1]).item() == pytest.approx(0.693147, abs=1e-5)
    assert token_entropy(torch.tensor([100.0, 0.0])).item() == pytest.approx(0, abs=1e-6)


def test_temperature_is_that_of_the_sampler():
    logits = torch.randn(4, 11)
    want = torch.distributions.Categorical(logits=logits / 0.7)
    ids = want.sample()
    assert torch.allclose(token_logprobs(logits, ids, 0.7), want.log_prob(ids), atol=1e-6)
    assert torch.allclose(token_entropy(logits, 0.7), want.entropy(), atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 100, 2**24])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_chunks_equal_the_plain_version_in_value_and_gradient(monkeypatch, chunk, temperature):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
    hidden, weight, ids = case()
    up = torch.randn(2, 3, 5)
    chunked = hidden_logprobs(hidden, weight, ids, temperature)
    logits = hidden @ weight.T
    plain = token_logprobs(logits, ids, temperature), token_entropy(logits, temperature)
    for a, b in zip(chunked, plain):
        assert torch.allclose(a, b, atol=1e-5)
    got, want = (torch.autograd.grad((a * up[0] + b * up[1]).sum(), (hidden, weight)) for a, b in (chunked, plain))
    for a, b in zip(got, want):
        assert torch.allclose(a, b, atol=1e-4 * b.abs().max().item())


def test_gradient_reaches_only_what_asks_for_it():
    hidden, weight, ids = case()
    logp, _ = hidden_logprobs(hidden, weight.detach(), ids)
    logp.sum().backward()
    assert hidden.grad is not None
    with torch.no_grad():
        assert not hidden_logprobs(hidden, weight, ids)[0].requires_grad


def test_bfloat16_model_gives_float32_numbers():
    hidden, weight, ids = case(dtype=torch.bfloat16)
    logp, entropy = hidden_logprobs(hidden, weight, ids)
    assert logp.dtype == entropy.dtype == torch.float32
    assert torch.allclose(logp, token_logprobs(hidden @ weight.T, ids), atol=1e-5)
    logp.sum().backward()
    assert weight.grad.dtype == torch.bfloat16


def test_empty_and_faulty_inputs():
    hidden, weight, ids = case()
    assert hidden_logprobs(hidden[:0], weight, ids[:0])[0].shape == (0, 5)
    with pytest.raises(ValueError, match="do not fit"):
        hidden_logprobs(hidden, weight, ids[:2])
    with pytest.raises(ValueError, match="above 0"):
        token_logprobs(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), 0.0)


@pytest.mark.slow
def test_a_large_vocabulary_is_never_whole_in_memory():
    """1k tokens of a 150k vocabulary are 0.6 GiB of float32 logits, three times that with their probabilities and their
    gradient; the chunked version needs the interpreter, torch, the weight and a few chunks, however many the tokens."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=os.environ)
    assert float(run.stdout) < 1
