import dataclasses
import re
from pathlib import Path

import pytest
import torch

from assay.pipelines.errors import AssayWarning, RecipeError
from assay.rl.advantages import advantages
from assay.rl.correction import correct
from assay.rl.losses import policy_loss
from assay.rl.presets import PRESETS, preset

NAMES = ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "topr", "rloo", "reinforce", "reinforce++", "ppo", "kimi"]
PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"


def test_names():
    assert list(PRESETS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_trains(name):
    """A preset's parts fit together: descending its loss raises good completions and lowers bad ones."""
    one = preset(name)
    torch.manual_seed(0)
    logp = torch.full((4, 3), -1.0, requires_grad=True)
    old, mask = logp.detach() + 0.01, torch.ones(4, 3, dtype=torch.bool)
    kind = "dr_grpo" if one.advantage == "gae" else one.advantage
    adv = advantages(torch.tensor([1.0, 0, 0, 1]), 4, kind, one.ddof)
    weights = None
    if one.correction != "none":
        how = {"level": one.correction, "mode": one.correction_mode, "cap": one.correction_cap}
        weights = correct(old, old, mask, **how).weights
    loss = policy_loss(one.loss, logp, old, adv, mask, clip_low=one.clip_low, clip_high=one.clip_high,
                       aggregation=one.aggregation, max_length=3, dual_clip=one.dual_clip, tau=one.tau,
                       weights=weights)  # fmt: skip
    loss.value.backward()
    good = torch.tensor([True, False, False, True])
    assert (logp.grad[good] < 0).all()
    clipped = name == "gspo"  # a ratio of 0.99 lies below 1 - 3e-4: bad completions are clipped already
    assert ((logp.grad[~good] == 0) if clipped else (logp.grad[~good] > 0)).all()


def test_presets_are_frozen_and_changes_are_checked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["grpo"].beta = 1.0
    assert preset("grpo", kl_place="loss", beta=0.04).beta == 0.04
    assert PRESETS["grpo"].beta == 0


@pytest.mark.parametrize(("name", "changes", "said"), [
    ("grop", {}, "did you mean 'grpo'"),
    ("grpo", {"clip_hihg": 0.3}, "did you mean 'clip_high'"),
    ("grpo", {"aggregation": "tokens"}, "did you mean 'token'"),
    ("grpo", {"beta": 0.1}, "set kl_place"),
    ("grpo", {"kl_place": "loss", "kl": "k1"}, "no gradient on average"),
    ("ppo", {"kl": "k3"}, "the estimate there is 'k1'"),
    ("gspo", {"correction": "token"}, "'sequence' or 'none'"),
    ("kimi", {"advantage": "gae"}, "not 'gae'"),
    ("cispo", {"clip_high": -0.1}, "caps every weight"),
    ("kimi", {"tau": -1}, "tau = -1; give a number above 0"),
    ("kimi", {"tau": "x"}, "tau = 'x'; give a number above 0"),
    ("grpo", {"ddof": 5}, "ddof = 5; give 0 or 1"),
    ("grpo", {"correction_cap": 0.5}, "correction_cap = 0.5; give a number above 1"),
    ("grpo", {"kl_place": "loss", "beta": -1}, "beta = -1; give a number from 0 up"),
    ("ppo", {"dual_clip": 0.5}, "dual_clip = 0.5; give a number above 1, or nothing"),
    ("grpo", {"clip_low": "a"}, "clip_low = 'a'; give a number, or nothing"),
    ("grpo", {"mask_truncated": "no"}, "mask_truncated = 'no'; give true or false"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(name, changes, said):
    with pytest.raises(RecipeError, match=re.escape(said)):
        preset(name, **changes)


def test_gspo_with_a_grpo_clip_warns():
    with pytest.warns(AssayWarning, match="never acts"):
        preset("gspo", clip_high=0.2)


def test_the_page_states_what_the_presets_set():
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    assert list(rows) == NAMES
    for name, row in rows.items():
        one = PRESETS[name]
        clip = "-" if one.clip_low is None else f"{one.clip_low:g} / {one.clip_high:g}"
        kl = "none" if one.kl_place == "none" else f"{one.kl} in the {one.kl_place}, {one.beta:g}"
        words = {"dynamic_sampling": "dynamic sampling", "overlong_reward": "overlong reward",
                 "length_reward": "length reward", "reset_optimizer": "optimizer reset"}  # fmt: skip
        also = [said for key, said in words.items() if getattr(one, key)]
        also += [] if one.mask_truncated else ["truncated trained on"]
        want = [one.advantage, one.loss, one.aggregation, clip, kl, one.correction, ", ".join(also) or "-"]
        assert row.split(" | ") == want, name
