"""The vLLM engine: seeds, log-probabilities, weight exchange, errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from assay.pipelines.engines import Completion, ReplayEngine, Request, Sampling, VllmEngine, model_fingerprint
from assay.pipelines.errors import EngineError, ModelError
from assay.pipelines.prompts import render
from assay.rl.batches import Example, completion_logprobs, micro_batches
from assay.rl.checkpoint import load_model


def requests(engine: VllmEngine, count: int = 48, **sampling: float) -> list[Request]:
    texts = [f"What is {i % 12 + 1} + {i % 7} - {i % 5}?" for i in range(count)]
    return [
        Request(f"r{i}", render(engine.tokenizer, t), Sampling(**{"max_tokens": 48, **sampling}), i)  # type: ignore[arg-type]
        for i, t in enumerate(texts)
    ]


def mismatch(engine: VllmEngine, model: object, temperature: float = 1.0) -> float:
    """Largest |log pi_trainer - log pi_sampler| over fresh samples."""
    asked = requests(engine, temperature=temperature)
    done = engine.generate(asked)
    worst = 0.0
    for batch in micro_batches([Example(r.prompt_ids, c.token_ids) for r, c in zip(asked, done)], 2048):
        with torch.no_grad():
            logp, _ = completion_logprobs(model, batch, temperature)
        for row, values, mask in zip(batch.rows, logp, batch.mask):
            worst = max(worst, float((values[mask] - torch.tensor(done[row].logprobs)).abs().max()))
    return worst


def test_a_completion_depends_on_its_request_alone(engine: VllmEngine) -> None:
    asked = requests(engine)
    together = {c.key: c.token_ids for c in engine.generate(asked)}
    reversed_halves = [*engine.generate(asked[::-1][:20]), *engine.generate(asked[::-1][20:])]
    assert {c.key: c.token_ids for c in reversed_halves} == together
    assert len({tuple(t) for t in together.values()}) > 20


def test_order_keys_and_finish_reasons(engine: VllmEngine) -> None:
    asked, seen = requests(engine, 12), []
    done = engine.generate(asked, seen.append)
    assert [c.key for c in done] == [r.key for r in asked]
    assert sorted(c.key for c in seen) == sorted(r.key for r in asked)
    end = engine.tokenizer.eos_token_id
    assert all((c.token_ids[-1] == end) == (c.finish_reason == "stop") for c in done)
    short = engine.generate(requests(engine, 4, max_tokens=3))
    assert [(len(c.token_ids), c.finish_reason) for c in short] == [(3, "length")] * 4
    assert all(len(c.token_ids) == len(c.logprobs) for c in done)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampler_and_trainer_agree_at_the_sampling_temperature(
    engine: VllmEngine, reasoner: Path, temperature: float
) -> None:
    assert mismatch(engine, load_model(reasoner), temperature) < 1e-4


@pytest.mark.parametrize("part", ["mlp", "self_attn", "norm", "embed_tokens"])
def test_new_weights_reach_the_engine_whole(engine: VllmEngine, reasoner: Path, part: str) -> None:
    """Also the tied output head, and no stale prefix: the same prompts were asked before the exchange."""
    model = load_model(reasoner)
    before = engine.generate(requests(engine, 8))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if part in name:
                parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    weights = [(k, v) for k, v in model.state_dict().items() if k != "lm_head.weight"]
    engine.load_weights(weights, "perturbed")
    assert engine.fingerprint == "perturbed"
    assert mismatch(engine, model) < 1e-4
    assert [c.logprobs for c in engine.generate(requests(engine, 8))] != [c.logprobs for c in before]


def test_another_checkpoint_of_the_same_architecture(engine: VllmEngine, reasoner: Path, tmp_path: Path) -> None:
    from assay.rl.checkpoint import save_model

    model = load_model(reasoner)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1.05)
    save_model(tmp_path / "other", model, engine.tokenizer)
    engine.switch(tmp_path / "other")
    assert engine.fingerprint == model_fingerprint(tmp_path / "other") != model_fingerprint(reasoner)
    assert mismatch(engine, model) < 1e-4


def test_a_prompt_too_long_is_named(engine: VllmEngine) -> None:
    with pytest.raises(EngineError, match=r"request long: the prompt has 600 tokens and max_model_len is 512"):
        engine.generate([Request("long", [5] * 600, Sampling(), 0)])


def test_the_samples_of_a_prompt_compute_it_once(engine: VllmEngine) -> None:
    prompt = [5 + i * i % 90 for i in range(400)]
    before = engine.shared_tokens
    engine.generate([Request(f"s{i}", prompt, Sampling(max_tokens=4), i) for i in range(8)])
    block = engine._llm.llm_engine.vllm_config.cache_config.block_size
    assert engine.shared_tokens - before == 7 * (400 // block * block) > 0


def test_an_interrupted_run_leaves_the_engine_empty(engine: VllmEngine) -> None:
    class Stop(Exception):
        pass

    def stop(_: Completion) -> None:
        raise Stop

    with pytest.raises(Stop):
        engine.generate(requests(engine, 32), stop)
    assert len(engine.generate(requests(engine, 4))) == 4


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config.json"):
        VllmEngine(tmp_path)
    with pytest.raises(ModelError, match=r"model smolm2-135m: no such folder .* did you mean 'smollm2-135m'"):
        VllmEngine("smolm2-135m")


def test_replay_gives_back_what_was_recorded(engine: VllmEngine) -> None:
    asked = requests(engine, 6)
    done = engine.generate(asked)
    replay = ReplayEngine(done, engine.tokenizer, engine.fingerprint)
    assert replay.generate(asked[::-1]) == done[::-1]
    with pytest.raises(EngineError, match="1 of 1 requests were never recorded, the first is other"):
        replay.generate([Request("other", [1], Sampling(), 0)])
