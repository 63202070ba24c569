"""A tiny model and groups as a sampler would have made them, for tests of the update without an engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from assay.flows.reasoner import build_model
from assay.rl.batches import Example, completion_logprobs, micro_batches
from assay.rl.clock import Clock
from assay.rl.recipe import TrainRecipe
from assay.rl.rollouts import Group, Sample
from assay.rl.update import Updater

VOCABULARY = 105


def tiny_model(seed: int = 0) -> Any:
    return build_model(VOCABULARY, seed, hidden=64, layers=2).eval()


def make_groups(model: Any, count: int = 4, size: int = 4, seed: int = 0, version: int = 0) -> list[Group]:
    """Groups of unequal lengths with the log-probabilities of `model`; every reward is that of its index's parity."""
    rng = random.Random(seed)
    groups = []
    for k in range(count):
        prompt = [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(2, 6))]
        completions = [[*(rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 11))), 1] for _ in range(size)]
        samples = []
        for j, ids in enumerate(completions):
            batch = next(micro_batches([Example(prompt, ids)], 1))
            with torch.no_grad():
                logp = completion_logprobs(model, batch)[0][0].tolist()
            reward = float((j + k) % size == 0)
            samples.append(Sample(ids, logp, "", False, "correct" if reward else "wrong", reward, {}))
        groups.append(Group(k, f"p{k}", prompt, samples, version))
    return groups


def make_recipe(**changes: Any) -> TrainRecipe:
    plain = {
        "name": "t",
        "model": "reasoner",
        "store": "s",
        "sampling": {"prompts": 4, "group_size": 4, "max_tokens": 16},
        "optimizer": {"learning_rate": 1e-3, "max_grad_norm": 1e9},
    }
    for key, value in changes.items():
        plain[key] = {**plain[key], **value} if isinstance(plain.get(key), dict) else value  # type: ignore[dict-item]
    return TrainRecipe.model_validate(plain)


def make_updater(model: Any, **changes: Any) -> Updater:
    recipe = make_recipe(**changes)
    return Updater(model, recipe, recipe.preset(), Clock())


def one_update(model: Any, groups: list[Group], **changes: Any) -> tuple[Updater, dict[str, float]]:
    updater = make_updater(model, **changes)
    return updater, updater.update(groups, updater.estimate(groups), 0)


def flat_gradient(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.fixture
def tiny() -> Any:
    return tiny_model()


@pytest.fixture
def groups_of() -> Callable[..., list[Group]]:
    return make_groups


@pytest.fixture
def updated() -> Callable[..., tuple[Updater, dict[str, float]]]:
    return one_update


@pytest.fixture
def updater_of() -> Callable[..., Updater]:
    return make_updater
