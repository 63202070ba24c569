"""Tokens and masks: checks 7 and 16 to 20 of trainer_checks.md, and 33."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from assay.flows.models import EnginePool
from assay.flows.reasoner import build_tokenizer
from assay.pipelines.engines import Completion, ReplayEngine
from assay.pipelines.prompts import render
from assay.pipelines.verify import Verifier
from assay.rl.batches import Example, completion_logprobs, micro_batches
from assay.rl.checkpoint import load_model
from assay.rl.recipe import TrainRecipe
from assay.rl.rollouts import RolloutMaker

PROBLEMS = pl.DataFrame({"id": ["a", "b"], "problem": ["What is 3 + 4?", "What is 9 - 5?"], "answer": ["7", "4"]})


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(workers=1) as verifier:
        yield verifier


def maker(engine: Any, verifier: Verifier, problems: pl.DataFrame = PROBLEMS, step_tokens: int | None = None,
          **more: Any) -> RolloutMaker:  # fmt: skip
    size = {"group_size": 3, "max_tokens": 48, "instruction": "", "step_tokens": step_tokens}
    recipe = TrainRecipe.model_validate({"name": "t", "model": "m", "store": "s", "sampling": size, **more})
    return RolloutMaker(engine, verifier, problems, recipe, recipe.preset(), lambda _: nullcontext())


def test_pad_equals_end_and_cut_completions(tiny: Any) -> None:
    """Check 16: pads behind the end are the end token too; one end is trained, and none is forced onto a cut text."""
    end = 1
    ended, cut = Example([5, 6], [7, 8, end]), Example([5, 6], [7, 8, 9, 10, 11])
    batch = next(micro_batches([ended, cut], 10**6, pad_id=end))
    rows = dict(zip(batch.rows, zip(batch.completion_ids, batch.mask)))
    assert rows[0][0].tolist() == [7, 8, end, end, end]
    assert rows[0][1].tolist() == [True, True, True, False, False]
    assert end not in rows[1][0].tolist()
    assert bool(rows[1][1].all())


def test_left_padding_right_padding_packing_or_none(tiny: Any) -> None:
    """Check 17: `transformers`' own left padding with its mask, and all of ours, give the same numbers."""
    examples = [Example([5, 6], [7, 8, 9, 1]), Example([30, 31, 32], [33, 1]), Example([40], [41, 42, 43, 44, 45, 1])]
    width = max(map(len, examples))
    padded = [[0] * (width - len(e)) + [*e.prompt_ids, *e.completion_ids] for e in examples]
    mask = torch.tensor([[0] * (width - len(e)) + [1] * len(e) for e in examples])
    with torch.no_grad():
        logits = tiny(torch.tensor(padded), attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
        for budget, packed in ((1, False), (10**6, False), (1, True), (12, True), (10**6, True)):
            seen = 0
            for batch in micro_batches(examples, budget, packed=packed):
                for row, got in zip(batch.rows, completion_logprobs(tiny, batch)[0]):
                    ids, n = torch.tensor(examples[row].completion_ids), len(examples[row].completion_ids)
                    left = logits[row, -n - 1 : -1].log_softmax(-1).gather(1, ids[:, None])[:, 0]
                    torch.testing.assert_close(got[:n], left, atol=2e-5, rtol=0)
                    seen += 1
            assert seen == 3


def test_a_template_that_writes_bos_has_it_once() -> None:
    """Check 18: the tokenizer that adds a BOS of its own is not asked to; one generation prompt."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = build_tokenizer()
    tokenizer.bos_token = "<|im_start|>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", tokenizer.bos_token_id)]
    )
    turn = "{{ messages[0].content }}{% if add_generation_prompt %}assistant{% endif %}"
    tokenizer.chat_template = "{{ bos_token }}" + turn
    assert tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id  # the double is possible
    ids = render(tokenizer, "x")
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids.count(tokenizer.convert_tokens_to_ids("assistant")) == 1


def test_trained_ids_are_the_sampled_ids_of_their_own_prompt(
    pool: EnginePool, reasoner: Path, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks 19 and 33: ids and log-probabilities as the engine gave them, groups whole and beside their prompt."""
    engine, seen = pool.get(str(reasoner)), []
    real = engine.generate
    monkeypatch.setattr(engine, "generate", lambda asked: seen.append((asked, real(asked))) or seen[-1][1])
    groups = maker(engine, verifier).groups([1, 0, 1], 0, 0)
    asked, done = seen[0]
    samples = [s for g in groups for s in g.samples]
    assert [s.token_ids for s in samples] == [c.token_ids for c in done]
    assert [s.logprobs for s in samples] == [c.logprobs for c in done]
    assert [r.prompt_ids for r in asked] == [g.prompt_ids for g in groups for _ in range(3)]
    assert [g.problem_id for g in groups] == ["b", "a", "b"]
    assert len({r.seed for r in asked}) == 9  # also of a problem that was drawn twice
    for group in groups:
        wanted = PROBLEMS["answer"][group.index]
        assert all(f"\\boxed{{{wanted}}}" in s.text for s in group.samples if s.status == "correct")


def test_an_id_beyond_the_tokenizer_has_no_verdict(verifier: Verifier) -> None:
    """Check 20: a vocabulary padded to 128; the right text with such an id in it is left out, not rewarded."""
    tokenizer = build_tokenizer()
    good = tokenizer.encode("\\boxed{7}<|im_end|>", add_special_tokens=False)
    replies = [good, [*good[:-1], len(tokenizer), good[-1]], good]
    done = [Completion(f"0.{j}", r, [-1.0] * len(r), "\\boxed{7}", "stop", 0.0) for j, r in enumerate(replies)]
    groups = maker(ReplayEngine(done, tokenizer, "recorded"), verifier).groups([0], 0, 0)
    assert [s.status for s in groups[0].samples] == ["correct", "unverifiable", "correct"]
    assert groups[0].samples[1].reward != groups[0].samples[1].reward


def test_a_cut_completion_goes_on_where_it_stopped(pool: EnginePool, reasoner: Path, verifier: Verifier) -> None:
    """Nine tokens a step: whole at the end, every token with the probability that the whole text before it gives."""
    engine, model = pool.get(str(reasoner)), load_model(reasoner)
    made = maker(engine, verifier, step_tokens=9)
    found = [made.groups([0, 1] if step == 0 else [], step, 0) for step in range(6)]
    assert found[0] == []  # no thought is so short
    groups = [g for step in found for g in step]
    assert sorted(g.index for g in groups) == [0, 1]
    assert made.drafts == []
    assert all(g.version == 0 for g in groups)
    samples = [s for g in groups for s in g.samples]
    assert sum(len(s.token_ids) for s in samples) == made.take_tokens()
    assert all(s.truncated == (s.token_ids[-1] != engine.tokenizer.eos_token_id) for s in samples)
    assert all(len(s.token_ids) == 48 for s in samples if s.truncated)
    for batch in micro_batches([e for g in groups for e in g.examples()], 10**6):
        with torch.no_grad():
            logp = completion_logprobs(model, batch)[0]
        for row, mine in zip(batch.rows, logp):
            assert mine[: len(samples[row].logprobs)].tolist() == pytest.approx(samples[row].logprobs, abs=1e-4)
            assert samples[row].text == engine.tokenizer.decode(samples[row].token_ids, skip_special_tokens=True)


def test_the_thought_is_rewarded_for_the_problems_language(verifier: Verifier) -> None:
    texts = ["<think>然后</think>\\boxed{7}", "<think>then</think>\\boxed{7}", "<think>然 then</think>\\boxed{7}"]
    done = [Completion(f"0.{j}", [5, 1], [-1.0] * 2, text, "stop", 0.0) for j, text in enumerate(texts)]
    problems, engine = PROBLEMS.with_columns(language=pl.lit("zh")), ReplayEngine(done, build_tokenizer(), "recorded")
    (group,) = maker(engine, verifier, problems, rewards={"language": 0.5}).groups([0], 0, 0)
    assert [s.reward for s in group.samples] == [1.5, 1.0, 1.25]
    (group,) = maker(engine, verifier, rewards={"language": 0.5}).groups([0], 0, 0)
    assert [s.reward for s in group.samples] == [1.0, 1.5, 1.25]  # English when nothing is said


def test_top_p_and_top_k_cannot_be_set() -> None:
    """Check 7: the trainer's probabilities are over the whole vocabulary, so the sampler's must be."""
    with pytest.raises(ValueError, match="top_p"):
        TrainRecipe.model_validate({"name": "t", "model": "m", "store": "s", "sampling": {"top_p": 0.9}})


def test_a_tower_of_powers_is_refused_without_evaluation(verifier: Verifier) -> None:
    """Check 25, and 23: an answer that would never end costs at most its deadline, and is not right."""
    began = time.perf_counter()
    verdicts = verifier.grade_many([("7", f"\\boxed{{{t}}}") for t in ("9**9**9", "9^{9^{9}}", "10^{10^{10}}!")])
    assert all(v.status != "correct" for v in verdicts)
    assert time.perf_counter() - began < 20
