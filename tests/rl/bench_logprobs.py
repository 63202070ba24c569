"""Peak memory of the log-probabilities of 16k tokens over a 150k vocabulary, forward and backward (`make bench`)."""

from __future__ import annotations

import resource
import time

import torch

from assay.rl.logprobs import hidden_logprobs

TOKENS, VOCABULARY, HIDDEN = 16_384, 150_000, 8


def main() -> None:
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, requires_grad=True)
    began = time.perf_counter()
    logp, entropy = hidden_logprobs(hidden, weight, torch.randint(0, VOCABULARY, (TOKENS,)))
    (logp.mean() + 0.01 * entropy.mean()).backward()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    whole = TOKENS * VOCABULARY * 4 / 2**30
    print(f"{TOKENS:,} tokens x {VOCABULARY:,}: peak {peak:.2f} GiB of the process, the logits alone {whole:.1f} GiB, "
          f"{time.perf_counter() - began:.1f} s")  # fmt: skip
    assert peak < 2


if __name__ == "__main__":
    main()
