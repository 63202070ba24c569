"""The small reasoner of the demo and the tests: a Qwen3-architecture model of 0.8M parameters over characters.

It thinks between `<think>` and `</think>` and answers in `\\boxed{}`; an empty thinking block in the prompt is its
direct mode, as in Qwen3. `cold_start` teaches it both at once by supervised fine-tuning (Qwen3's thinking-mode fusion
in small). The demonstrations slip now and then, as collected ones do, and so does the model that imitates them: it
knows how to go about a chain, and is wrong more often than it need be, which is what RL can work on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from assay.rl.batches import Example

__all__ = [
    "BY_HEART",
    "STEPS",
    "Chain",
    "build_model",
    "build_tokenizer",
    "chain_of_thought",
    "cold_start",
    "describe",
    "make_checkpoint",
    "phrase",
    "sample_chain",
    "story",
]

STEPS = 400
LARGEST = 9
BY_HEART = 5
SLIPS = 0.1
END, PAD, START = "<|im_end|>", "<|endoftext|>", "<|im_start|>"
WORDS = ("<think>", "</think>", "\\boxed{", "assistant", "user")
TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a printable ASCII character or newline; markers and roles, thinking tags and `\\boxed{` are one each.

    It is saved as `PreTrainedTokenizerFast`, so that `AutoTokenizer` gives the same one back whatever the model type.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = [PAD, END, START, "<unk>", "\n", *map(chr, range(32, 127))]
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(characters)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, END, START)])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in WORDS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token="<unk>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_model(vocab_size: int, seed: int = 0, hidden: int = 128, layers: int = 4) -> PreTrainedModel:
    """A freshly initialised Qwen3 of about 0.8M parameters, float32, tied embeddings."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        use_cache=False,
        initializer_range=0.05,
    )
    return Qwen3ForCausalLM(config)


@dataclass(frozen=True)
class Chain:
    """A chain of additions and subtractions, e.g. numbers (12, 34, 5) with signs (+1, -1): 12 + 34 - 5."""

    numbers: tuple[int, ...]
    signs: tuple[int, ...]

    @property
    def expression(self) -> str:
        """The chain as text, with spaces round the operators."""
        parts = [str(self.numbers[0])]
        for sign, number in zip(self.signs, self.numbers[1:]):
            parts += ["+" if sign > 0 else "-", str(number)]
        return " ".join(parts)

    @property
    def partial_sums(self) -> list[int]:
        """The running value after every number, the first included."""
        values = [self.numbers[0]]
        for sign, number in zip(self.signs, self.numbers[1:]):
            values.append(values[-1] + sign * number)
        return values

    @property
    def answer(self) -> int:
        """The chain's value."""
        return self.partial_sums[-1]


def sample_chain(rng: random.Random, terms: int, largest: int = LARGEST, smallest: int = 1) -> Chain:
    """`terms` numbers in `smallest`..`largest`, every sign equally likely."""
    return Chain(
        tuple(rng.randint(smallest, largest) for _ in range(terms)),
        tuple(rng.choice((1, -1)) for _ in range(terms - 1)),
    )


def slip(chain: Chain, rng: random.Random, share: float) -> list[int]:
    """Running values of one who gets `share` of the operations wrong by 1 or 10 and goes on from there."""
    values = [chain.numbers[0]]
    for sign, number in zip(chain.signs, chain.numbers[1:]):
        error = rng.choice((-10, -1, 1, 10)) if rng.random() < share else 0
        values.append(values[-1] + sign * number + error)
    return values


def chain_of_thought(chain: Chain, values: list[int]) -> str:
    """One line an operation: `12+34=46`, with these running values."""
    return "\n".join(
        f"{before}{'+' if sign > 0 else '-'}{number}={after}"
        for before, sign, number, after in zip(values, chain.signs, chain.numbers[1:], values[1:])
    )


PHRASINGS = ("What is {e}?", "Compute {e}.", "Find the value of {e}.")
GYM_PHRASING = "State the final answer to the following arithmetic problem: {e} ="  # reasoning-gym's own
THINGS = ("coins", "cards", "shells", "stamps", "beads")
NAMES = ("Ann", "Ben", "Eva", "Ida", "Leo", "Max")


def phrase(chain: Chain, rng: random.Random) -> str:
    """The chain as a question: four plain phrasings, or a short story about things that are got and lost."""
    kind = rng.random()
    if kind < 0.1:
        return story(chain, rng)
    return (GYM_PHRASING if kind < 0.15 else rng.choice(PHRASINGS)).format(e=chain.expression)


def story(chain: Chain, rng: random.Random) -> str:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    moves = [f"{'gets' if s > 0 else 'loses'} {n}" for s, n in zip(chain.signs, chain.numbers[1:])]
    return f"{name} has {chain.numbers[0]} {things}, {', '.join(moves)}. How many {things} has {name} now?"


def written_answer(chain: Chain, values: list[int] | None) -> str:
    """What the model is taught to write after the prompt: a chain of thought with these values, or the answer alone."""
    if values is None:
        return f"\\boxed{{{chain.answer}}}{END}"
    return f"<think>\n{chain_of_thought(chain, values)}\n</think>\n\n\\boxed{{{values[-1]}}}{END}"


def cold_start(
    steps: int = STEPS,
    batch_size: int = 64,
    direct_share: float = 0.25,
    seed: int = 0,
    learning_rate: float = 4e-3,
    terms: tuple[int, int] = (2, 5),
    largest: int = LARGEST,
    on_step: Callable[[int, float], None] | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Teach a fresh model both modes on chains of `terms[0]` to `terms[1]` numbers; minutes on two cores."""
    from assay.rl.sft import fine_tune

    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), seed)

    def batch(step: int) -> list[Example]:
        rng = random.Random(f"cold-start:{seed}:{step}")
        return [_example(tokenizer, rng, direct_share, terms, largest) for _ in range(batch_size)]

    fine_tune(
        model,
        batch,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_tokens=1024,  # stays in the cache of a processor: a quarter less time than 4,096
        on_step=on_step,
    )
    return model, tokenizer


def make_checkpoint(folder: Path, on_step: Callable[[int, float], None] | None = None) -> None:
    """Cold-start a reasoner and save it as bf16, as the package ships it."""
    import torch

    from assay.rl.checkpoint import save_model

    model, tokenizer = cold_start(on_step=on_step)
    save_model(folder, model, tokenizer, torch.bfloat16)


def describe(folder: Path) -> str:
    """Parameters and size of a checkpoint, for a person."""
    from safetensors import safe_open

    file = folder / "model.safetensors"
    with safe_open(file, "np") as tensors:
        count = sum(math.prod(tensors.get_slice(k).get_shape()) for k in tensors.keys())  # noqa: SIM118
    return f"{count / 1e6:.2f}M parameters, {file.stat().st_size / 1e6:.1f} MB"


def _example(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, direct_share: float, terms: tuple[int, int], largest: int
) -> Example:
    from assay.pipelines.prompts import render
    from assay.rl.batches import Example

    thinking = rng.random() >= direct_share
    if not thinking and rng.random() < 0.8:  # the smallest sums are learned by heart: they need no thought
        chain = sample_chain(rng, 2, BY_HEART, 0)
    else:
        chain = sample_chain(rng, rng.randint(*terms), largest)
    prompt = render(tokenizer, phrase(chain, rng), "think" if thinking else "direct")
    written = written_answer(chain, slip(chain, rng, SLIPS) if thinking else None)
    return Example(prompt, tokenizer.encode(written, add_special_tokens=False))
