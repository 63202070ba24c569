"""Which engine a recipe's model gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from assay.eval.recipe import EvaluateRecipe
from assay.flows.models import EnginePool, verifier_of
from assay.pipelines.engines import Request, Sampling, model_fingerprint
from assay.pipelines.errors import EngineError
from assay.pipelines.recipe import Model

SERVER = "http://127.0.0.1:9"  # nobody listens there


def evaluation(path: Path, **more: object) -> EvaluateRecipe:
    models = [{"name": "a", "path": str(path), "engine": "openai", "urls": [SERVER]},
              {"name": "b", "path": str(path), "engine": "replay"}]  # fmt: skip
    exam = {"name": "exam", "path": "exam.jsonl", "problem": "q", "answer": "a"}
    return EvaluateRecipe.model_validate({"name": "e", "store": "s", "models": models, "benchmarks": [exam], **more})


def test_every_model_of_an_evaluation_names_its_engine(reasoner: Path) -> None:
    served, replayed = evaluation(reasoner).models
    with EnginePool(max_model_len=64, dtype="float32") as pool:
        with pytest.raises(EngineError, match=r"no server answers.*127.0.0.1:9"):
            pool.of(served)
        engine = pool.of(replayed)
        assert (engine.fingerprint, engine.max_model_len) == (model_fingerprint(reasoner), 64)
        assert engine.generate([]) == []
        with pytest.raises(EngineError, match="not all of the samples are recorded"):
            engine.generate([Request("k", [1], Sampling(), 0)])
    with pytest.raises(ValidationError, match="needs engine = 'vllm'"):
        evaluation(reasoner, budgets={"procedure": "vllm"})


def test_a_judge_is_named_by_its_weights_and_starts_with_its_first_word(reasoner: Path) -> None:
    with verifier_of(Model(path=str(reasoner))) as verifier:
        assert verifier._judge.fingerprint == model_fingerprint(reasoner)
        assert verifier._judge.busy_seconds == 0
