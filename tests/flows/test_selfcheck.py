"""`assay selfcheck` on the packaged reasoner, and on models that fail it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from assay.flows import selfcheck as module
from assay.flows.models import EnginePool
from assay.flows.selfcheck import CHECKS, Subject, selfcheck
from assay.pipelines.engines import VllmEngine
from assay.rl.checkpoint import load_model
from assay.rl.recipe import TrainRecipe


def subject(pool: EnginePool, reasoner: Path) -> Subject:
    recipe = TrainRecipe.model_validate(
        {"name": "t", "model": str(reasoner), "store": ".", "sampling": {"group_size": 4, "max_tokens": 48},
         "changes": {"mask_truncated": False}})  # fmt: skip
    return Subject(recipe, load_model(reasoner), pool.get(str(reasoner)))


def test_the_reasoner_passes(pool: EnginePool, reasoner: Path) -> None:
    said: list[str] = []
    findings = selfcheck(str(reasoner), max_tokens=48, say=said.append, pool=pool)
    assert [f.holds for f in findings] == [True] * len(CHECKS), "\n".join(said)
    assert {"ratio 1", "micro-batch", "packing", "weight sync", "prefix cache reset", "tied embeddings", "EOS masking",
            "template", "memory plan"} <= {f.name for f in findings}  # fmt: skip


def test_another_model_in_the_engine_and_weights_that_do_not_arrive_are_found(
    pool: EnginePool, reasoner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = subject(pool, reasoner)
    with torch.no_grad():
        s.model.model.layers[0].mlp.up_proj.weight *= 1.2
    assert module.ratio(s).holds is False
    s = subject(pool, reasoner)
    monkeypatch.setattr(VllmEngine, "load_weights", lambda self, _, name: setattr(self, "fingerprint", name))
    for check in (module.weight_sync, module.prefix_cache, module.tied_embeddings):
        assert check(s).holds is False


def test_an_end_token_that_is_not_the_tokenizers_is_found(pool: EnginePool, reasoner: Path) -> None:
    s = subject(pool, reasoner)
    s.tokenizer.eos_token, kept = "<|im_start|>", s.tokenizer.eos_token
    s.model.generation_config.eos_token_id = None
    try:
        assert module.end_token(s).holds is False
    finally:
        s.tokenizer.eos_token = kept
