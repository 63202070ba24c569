"""pass@k over a million items, beside the plain product of a Python loop; maj@k beside Monte-Carlo.

    python tests/eval/bench_pass_at_k.py
"""

import time

import numpy as np

from assay.eval.pass_at_k import pass_at_k
from assay.eval.voting import majority_at_k

ITEMS, LOOPED = 1_000_000, 300


def seconds(run):
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def looped(n, c, k):
    return [1.0 if a - b < k else 1.0 - float(np.prod(1.0 - k / np.arange(a - b + 1, a + 1))) for a, b in zip(n, c)]


rng = np.random.default_rng(0)
for name, n in (("n = 10,000", np.full(ITEMS, 10_000)), ("n from 5,000 to 10,000", rng.integers(5_000, 10_001, ITEMS))):
    c = (rng.beta(0.3, 2, ITEMS) * n).astype(np.int64)
    for k in (1, 100, int(n.min())):
        fast = seconds(lambda n=n, c=c, k=k: pass_at_k(n, c, k))
        slow = seconds(lambda n=n, c=c, k=k: looped(n[:LOOPED], c[:LOOPED], k)) * ITEMS / LOOPED
        print(f"pass@{k:<6,} {name:<24} {ITEMS / fast / 1e6:5.2f} million items a second, "
              f"{slow / fast:5.0f} times a loop over items")

answers = [int(rng.integers(0, 12)) for _ in range(256)]
flags = [a == 0 for a in answers]
exact = seconds(lambda: majority_at_k(answers, flags, 64))
drawn = seconds(lambda: majority_at_k([*answers, 1], [*flags, False], 64))
print(f"maj@64 of 256 samples, 12 answers: exact {exact * 1e3:.0f} ms, 20,000 draws {drawn * 1e3:.0f} ms")
