"""Prompts: a problem and a mode become token ids, once; nothing is ever re-tokenised from text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from assay.pipelines.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["budget_of", "opens_thinking", "render", "render_messages"]


def render(
    tokenizer: PreTrainedTokenizerBase, problem: str, mode: str = "think", instruction: str | None = None
) -> list[int]:
    """Token ids of the prompt that asks `problem`, up to where the model begins to write.

    Args:
        tokenizer: must carry a chat template.
        problem: the user's turn.
        mode: `think`, `direct` (the template puts an empty thinking block into the prompt), or `budget=N`
            (the same prompt as `think`; `budget=0` is `direct`).
        instruction: appended to the problem after a blank line, e.g. "Put the answer in \\boxed{}."

    Raises:
        ModelError: the tokenizer has no chat template, or the template has no direct mode.
    """
    content = f"{problem}\n\n{instruction}" if instruction else problem
    return render_messages(tokenizer, [{"role": "user", "content": content}], _thinks(mode))


def render_messages(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], thinking: bool = True
) -> list[int]:
    """Chat template to ids with the generation prompt; the template alone places BOS and the turn's markers."""
    return list(tokenizer.encode(_templated(tokenizer, messages, thinking), add_special_tokens=False))


def _templated(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], thinking: bool) -> str:
    if not tokenizer.chat_template:
        raise ModelError(
            f"{tokenizer.name_or_path}: the tokenizer has no chat template; add `chat_template` to "
            "its tokenizer_config.json, or use the model's instruct version."
        )
    if not thinking and "enable_thinking" not in str(tokenizer.chat_template):
        raise ModelError(
            f"{tokenizer.name_or_path}: the chat template has no direct mode (no `enable_thinking`); leave "
            "out the shortcut filter and budget 0, or use a model that can answer without thinking."
        )
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking)
    assert isinstance(text, str)
    return text


def opens_thinking(tokenizer: PreTrainedTokenizerBase, mode: str = "think") -> bool:
    """Whether the prompt ends inside a thinking block, as DeepSeek-R1's and Qwen3-Thinking's templates have it.

    A completion without `</think>` is then all thinking. Raises as `render` does.
    """
    text = _templated(tokenizer, [{"role": "user", "content": "?"}], _thinks(mode))
    return text.rstrip().endswith("<think>")


def _thinks(mode: str) -> bool:
    return mode != "direct" and budget_of(mode) != 0


def budget_of(mode: str) -> int | None:
    """The N of `budget=N`; None for `think` and `direct`.

    Raises:
        ValueError: the mode is none of the three.
    """
    if mode in ("think", "direct"):
        return None
    found = re.fullmatch(r"budget=(\d+)", mode)
    if found is None:
        raise ValueError(f"mode {mode!r}: expected 'think', 'direct' or 'budget=N'")
    return int(found.group(1))
