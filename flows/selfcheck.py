"""`assay selfcheck MODEL`: what must hold before a model is trained, tried on the user's own model and machine.

Samples a few completions with the engine, and compares: sampler and trainer, micro-batches and packing, the weights
that were sent and those that answer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from assay.pipelines.engines import Request, Sampling
from assay.pipelines.errors import AssayError
from assay.pipelines.prompts import render
from assay.rl.recipe import TrainRecipe

if TYPE_CHECKING:
    import torch

    from assay.rl.rollouts import Group

__all__ = ["CHECKS", "Finding", "Subject", "selfcheck"]

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}
QUESTIONS = ("What is 3 + 4?", "Compute 12 - 5 + 9.", "What is 7 - 2 + 6 - 1?", "Find the value of 10 + 11.")


@dataclass(frozen=True)
class Finding:
    """`holds` is None where the model has nothing to check; `seen` is the figure, `advice` what to do about it."""

    name: str
    holds: bool | None
    seen: str
    advice: str = ""

    def __str__(self) -> str:
        mark = {True: "holds", False: "FAILS", None: "-"}[self.holds]
        return f"  {mark:<6} {self.name:<22} {self.seen}" + (f"\n         {self.advice}" if self.holds is False else "")


class Subject:
    """A model with a running engine of the same weights, and a few groups sampled from it."""

    def __init__(self, recipe: TrainRecipe, model: Any, engine: Any) -> None:
        self.recipe, self.model, self.engine, self.tokenizer = recipe, model, engine, engine.tokenizer
        self.tolerance = TOLERANCE[recipe.dtype]

    def sample(self, max_tokens: int | None = None) -> list[Group]:
        """One group of completions a question, under the engine's weights now; rewards by the index's parity."""
        from assay.rl.rollouts import Group, Sample

        size = self.recipe.sampling.group_size
        sampling = Sampling(max_tokens=max_tokens or self.recipe.sampling.max_tokens)
        prompts = [render(self.tokenizer, q) for q in QUESTIONS]
        asked = [Request(f"{i}.{j}", p, sampling, 100 * i + j) for i, p in enumerate(prompts) for j in range(size)]
        done = self.engine.generate(asked)
        samples = [
            Sample(c.token_ids, c.logprobs, c.text, c.finish_reason == "length", "wrong", float(i % 2), {})
            for i, c in enumerate(done)
        ]
        return [Group(i, f"q{i}", p, samples[i * size : (i + 1) * size], 0) for i, p in enumerate(prompts)]

    @cached_property
    def groups(self) -> list[Group]:
        """Sampled once."""
        return self.sample()

    def gradient(self, budget: int, packing: bool = False) -> torch.Tensor:
        """Of one Dr. GRPO update on the groups, micro-batches of at most `budget` tokens."""
        import torch

        from assay.rl.clock import Clock
        from assay.rl.update import Updater

        recipe = self.recipe.model_copy(
            update={
                "optimizer": self.recipe.optimizer.model_copy(update={"micro_batch_tokens": budget}),
                "memory": self.recipe.memory.model_copy(update={"packing": packing}),
            }
        )
        updater = Updater(self.model, recipe, recipe.preset(), Clock())
        return torch.cat([g.flatten() for g in updater.gradient(self.groups)])

    def ratio_error(self, groups: list[Group], model: Any = None) -> float:
        """max |exp(log pi_trainer - log pi_sampler) - 1| over the groups' tokens."""
        import torch

        from assay.rl.batches import completion_logprobs, micro_batches

        model, worst = model or self.model, 0.0
        logprobs = [s.logprobs for g in groups for s in g.samples]
        device = next(model.parameters()).device
        for batch in micro_batches([e for g in groups for e in g.examples()], 4096, device):
            with torch.no_grad(), self._autocast(device):
                logp, _ = completion_logprobs(model, batch)
            for row, values, mask in zip(batch.rows, logp.cpu(), batch.mask.cpu()):
                worst = max(worst, float((values[mask] - torch.tensor(logprobs[row])).expm1().abs().max()))
        return worst

    def _autocast(self, device: Any) -> Any:
        import torch

        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.recipe.dtype == "bfloat16")

    @contextmanager
    def perturbed(self, part: str) -> Iterator[Any]:
        """A copy of the model whose weights named `part` are moved, sent to the engine; the old ones afterwards."""
        import torch

        moved = copy.deepcopy(self.model)
        with torch.no_grad():
            for name, p in moved.named_parameters():
                if part in name:
                    noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(1)).to(p)
                    p += 0.1 * p.abs().mean() * noise
        self.engine.load_weights(moved.state_dict().items(), "selfcheck@1")
        try:
            yield moved
        finally:
            self.engine.load_weights(self.model.state_dict().items(), "selfcheck@0")


def template(s: Subject) -> Finding:
    """One start of the answer, at most one BOS, and an end token that is no pad."""
    ids, t = render(s.tokenizer, QUESTIONS[0]), s.tokenizer
    begins = 0 if t.bos_token_id is None else ids.count(t.bos_token_id)
    bare = t.apply_chat_template([{"role": "user", "content": QUESTIONS[0]}], tokenize=False)
    text = t.decode(ids)
    opens = text != bare and len(text) > len(str(bare))
    return Finding(
        "template",
        begins <= 1 and opens,
        f"{len(ids)} tokens, {begins} BOS, ends with {text[-24:]!r}",
        "The chat template must add a generation prompt and write BOS at most once.",
    )


def end_token(s: Subject) -> Finding:
    """The end token is sampled, kept and trained where a completion ends, and never put behind a cut one."""
    samples = [x for g in s.groups for x in g.samples] + [x for g in s.sample(max_tokens=2) for x in g.samples]
    ended, cut = ([x for x in samples if x.truncated is t] for t in (False, True))
    ends = {x.token_ids[-1] for x in ended}
    known = ends <= {s.tokenizer.eos_token_id, *_generation_ends(s.model)}
    clean = not any(x.token_ids[-1] in ends for x in cut)
    return Finding(
        "EOS masking",
        known and clean if ended else None,
        f"{len(ended)} ended with {sorted(ends)}, {len(cut)} cut without; pad {s.tokenizer.pad_token_id}",
        "The completions end with a token that is not the tokenizer's or the generation config's: mend its eos_token.",
    )


def vocabulary(s: Subject) -> Finding:
    """No sampled id is beyond the tokenizer."""
    largest = max(i for g in s.groups for x in g.samples for i in x.token_ids)
    return Finding(
        "vocabulary",
        largest < len(s.tokenizer),
        f"largest sampled id {largest}, tokenizer {len(s.tokenizer)}, model {s.model.config.vocab_size}",
        "The model samples ids of its padding; such completions get no verdict in training.",
    )


def ratio(s: Subject) -> Finding:
    """Sampler and trainer give the sampled tokens the same probability."""
    error = s.ratio_error(s.groups)
    return Finding(
        "ratio 1",
        error < s.tolerance,
        f"max |ratio - 1| = {error:.1e} over {sum(g.tokens for g in s.groups)} tokens",
        "Train with dtype float32, or keep the preset's correction; a large error is another model or template.",
    )


def micro_batch(s: Subject) -> Finding:
    """The gradient does not depend on the micro-batch size."""
    whole, alone = s.gradient(10**6), s.gradient(1)
    error = float((alone - whole).norm() / whole.norm())
    return Finding("micro-batch", error < _gradient_tolerance(s), f"row by row and at once differ by {error:.1e}")


def packing(s: Subject) -> Finding:
    """Packed sequences do not see each other."""
    whole, packed = s.gradient(10**6), s.gradient(10**6, packing=True)
    error = float((packed - whole).norm() / whole.norm())
    advice = "This architecture's attention looks across packed sequences: leave memory.packing off."
    return Finding("packing", error < _gradient_tolerance(s), f"packed and padded differ by {error:.1e}", advice)


def weight_sync(s: Subject) -> Finding:
    """New weights answer after they were sent, under their own fingerprint."""
    with s.perturbed("proj") as moved:
        groups, fingerprint = s.sample(), s.engine.fingerprint
        error, old = s.ratio_error(groups, moved), s.ratio_error(groups)
    back = s.ratio_error(s.sample())
    return Finding(
        "weight sync",
        error < s.tolerance and back < s.tolerance and old > error and fingerprint == "selfcheck@1",
        f"fingerprint {fingerprint}, ratio error {error:.1e} (against the old weights {old:.1e}), restored {back:.1e}",
        "A tensor does not reach the engine: its name there is another than in the trainer's state.",
    )


def prefix_cache(s: Subject) -> Finding:
    """The same prompts under new weights have new log-probabilities at their first token: no stale prefix."""
    before = [x.logprobs[0] for g in s.sample() for x in g.samples]
    with s.perturbed("proj"):
        after = [x.logprobs[0] for g in s.sample() for x in g.samples]
    same = sum(a == b for a, b in zip(before, after))
    return Finding(
        "prefix cache reset",
        same < len(before) / 2,
        f"{len(before) - same} of {len(before)} first tokens changed with the weights",
        "The engine answers from prefixes of the old weights.",
    )


def tied_embeddings(s: Subject) -> Finding:
    """Where input and output share a matrix, a change of it reaches both."""
    if not s.model.config.tie_word_embeddings:
        return Finding("tied embeddings", None, "input and output have matrices of their own")
    with s.perturbed("embed_tokens") as moved:
        error = s.ratio_error(s.sample(), moved)
    advice = "The engine keeps an old copy of the output head."
    return Finding("tied embeddings", error < s.tolerance, f"ratio error after moving them {error:.1e}", advice)


def memory_plan(s: Subject) -> Finding:
    """What full training takes, against what the machine has."""
    import os

    import torch

    from assay.rl.plan import kv_bytes_a_token

    weights = sum(p.numel() for p in s.model.parameters()) * 4
    size = 4 if s.recipe.dtype == "float32" else 2
    sampling, length = s.recipe.sampling, s.recipe.engine.max_model_len
    cache = kv_bytes_a_token(s.model.config, size) * length * min(s.recipe.engine.max_num_seqs, 8 * sampling.group_size)
    need = 4 * weights + weights * size / 4 + cache
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if torch.cuda.is_available():
        have = torch.cuda.get_device_properties(0).total_memory
    gib = 2**30
    return Finding(
        "memory plan",
        need < have,
        f"weights {weights / gib:.2f}, gradients and AdamW {3 * weights / gib:.2f}, "
        f"engine {weights * size / 4 / gib:.2f}, KV {cache / gib:.2f} of {have / gib:.1f} GiB",
        "Use [lora], a smaller engine.max_num_seqs, or several ranks (torchrun).",
    )


CHECKS: tuple[Callable[[Subject], Finding], ...] = (
    template, end_token, vocabulary, ratio, micro_batch, packing, weight_sync, prefix_cache, tied_embeddings,
    memory_plan,
)  # fmt: skip


def selfcheck(
    model: str, dtype: str = "float32", max_tokens: int = 64, say: Callable[[str], None] = print, pool: Any = None
) -> list[Finding]:
    """Try every check on `model` (a folder, or a name), telling each finding as it comes.

    Args:
        pool: an `EnginePool` to use; by default one of its own, closed at the end.
    """
    from assay.flows.models import EnginePool
    from assay.rl.checkpoint import load_model

    recipe = TrainRecipe.model_validate(
        {"name": "selfcheck", "model": model, "store": ".", "dtype": dtype, "changes": {"mask_truncated": False},
         "sampling": {"group_size": 4, "max_tokens": max_tokens}, "engine": {"max_model_len": 1024}}
    )  # fmt: skip
    own = pool or EnginePool(max_model_len=1024, dtype=dtype, max_num_seqs=64)
    try:
        subject = Subject(recipe, load_model(model).to(_device()), own.get(model))
        return [_tried(check, subject, say) for check in CHECKS]
    finally:
        if pool is None:
            own.close()


def _tried(check: Callable[[Subject], Finding], subject: Subject, say: Callable[[str], None]) -> Finding:
    try:
        finding = check(subject)
    except AssayError as error:
        finding = Finding(check.__name__.replace("_", " "), False, str(error))
    say(str(finding))
    return finding


def _generation_ends(model: Any) -> list[int]:
    ends = getattr(model.generation_config, "eos_token_id", None)
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def _gradient_tolerance(s: Subject) -> float:
    return 1e-4 if s.recipe.dtype == "float32" else 5e-2


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
