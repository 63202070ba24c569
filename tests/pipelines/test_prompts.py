"""Rendering a problem to token ids."""

from __future__ import annotations

import pytest

from assay.flows.reasoner import build_tokenizer
from assay.pipelines.errors import ModelError
from assay.pipelines.prompts import budget_of, opens_thinking, render


def test_think_and_direct_prompts() -> None:
    tokenizer = build_tokenizer()
    think = tokenizer.decode(render(tokenizer, "What is 1 + 2?", "think", "Box it."))
    assert think == "<|im_start|>user\nWhat is 1 + 2?\n\nBox it.<|im_end|><|im_start|>assistant\n"
    direct = tokenizer.decode(render(tokenizer, "What is 1 + 2?", "direct"))
    assert direct == "<|im_start|>user\nWhat is 1 + 2?<|im_end|><|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert render(tokenizer, "x", "budget=64") == render(tokenizer, "x", "think")
    assert render(tokenizer, "x", "budget=0") == render(tokenizer, "x", "direct")


def test_the_template_alone_places_the_turns() -> None:
    """One start of the user's and one of the assistant's turn; nothing is added by the tokeniser."""
    tokenizer = build_tokenizer()
    ids = render(tokenizer, "What is 1 + 2?")
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 2
    assert ids.count(tokenizer.eos_token_id) == 1
    assert tokenizer.bos_token_id is None


def test_no_chat_template_and_no_direct_mode() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    assert tokenizer.decode(render(tokenizer, "x")) == "x"
    with pytest.raises(ModelError, match="has no direct mode"):
        render(tokenizer, "x", "direct")
    tokenizer.chat_template = None
    with pytest.raises(ModelError, match="has no chat template; add `chat_template`"):
        render(tokenizer, "x")


@pytest.mark.parametrize(("mode", "budget"), [("think", None), ("direct", None), ("budget=0", 0), ("budget=512", 512)])
def test_budget_of(mode: str, budget: int | None) -> None:
    assert budget_of(mode) == budget


def test_an_unknown_mode() -> None:
    with pytest.raises(ValueError, match="mode 'budget': expected 'think', 'direct' or 'budget=N'"):
        budget_of("budget")


def test_whether_the_template_opens_the_thinking() -> None:
    """Not where the model writes the tag itself, and not where the prompt has closed the block already."""
    tokenizer = build_tokenizer()
    assert not opens_thinking(tokenizer)
    tokenizer.chat_template = (
        "{{ messages[0].content }}{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
    )
    assert [opens_thinking(tokenizer, mode) for mode in ("think", "budget=8", "direct", "budget=0")] == [
        True, True, False, False,
    ]  # fmt: skip
