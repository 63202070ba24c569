"""Checkpoints: a model folder that `transformers` and vLLM load, with the trainer's state beside it.

A checkpoint is written under a temporary name and renamed, so it is whole or not there.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from assay.pipelines.errors import ModelError
from assay.pipelines.models import resolve

__all__ = ["latest_checkpoint", "load_model", "load_state", "save_checkpoint", "save_model"]

STATE = "trainer_state.pt"


def load_model(folder: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """A causal language model in eval mode.

    Raises:
        ModelError: the folder holds no model that `transformers` can load, or one whose logits are more than its output
            head on its last hidden state, which is what is trained on.
    """
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(resolve(folder), dtype=dtype).eval()
        if not _plain_head(model):
            raise ModelError(
                f"{folder}: {type(model).__name__} changes its logits behind the output head (a cap, a scale or a "
                "bias), and training would go by other log-probabilities than its own; take a model that does not."
            )
        return model
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{folder}: not a model that transformers can load ({error}); give a folder with config.json, "
            "tokenizer and safetensors weights, or a Hub id."
        ) from error


@torch.no_grad()
def _plain_head(model: Any) -> bool:
    """Whether logits are hidden states times the output head; a cap is too flat to be seen in small ones."""
    ids = torch.arange(4)[None]
    hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    plain, real = hidden @ model.get_output_embeddings().weight.T, model(input_ids=ids, use_cache=False).logits
    near = torch.allclose(plain.float(), real.float(), rtol=0.05, atol=1e-3 * float(real.abs().max()))
    return near and not getattr(model.config.get_text_config(), "final_logit_softcapping", None)


def save_model(
    folder: Path,
    model: Any,
    tokenizer: Any,
    dtype: torch.dtype | None = None,
    weights: dict[str, torch.Tensor] | None = None,
) -> None:
    """Weights (as `dtype`, by default as they are), configuration and tokenizer, in the Hugging Face layout.

    `weights` by name, where the model itself does not hold them so (adapters, shards).
    """
    state = model.state_dict() if weights is None else weights
    state = {k: v.detach().cpu().to(dtype or v.dtype).contiguous() for k, v in state.items()}
    model.save_pretrained(folder, state_dict=_without_ties(model, state))
    config = copy.deepcopy(model.config)
    config.dtype = dtype or model.dtype
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _without_ties(model: Any, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    tied = getattr(model, "_tied_weights_keys", None) or {}
    names = tied if model.config.tie_word_embeddings else {}
    return {k: v for k, v in state.items() if k not in names}


def save_checkpoint(
    folder: Path, model: Any, tokenizer: Any, state: dict[str, Any], weights: dict[str, torch.Tensor] | None = None
) -> Path:
    """Write `folder` whole: model (with `weights`, as `save_model`), tokenizer and `state`."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_model(temporary, model, tokenizer, weights=weights)
    torch.save(state, temporary / STATE)
    for file in temporary.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
    return folder


def load_state(folder: Path) -> dict[str, Any]:
    """The `state` of a checkpoint that this project wrote."""
    return torch.load(folder / STATE, weights_only=False)


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the highest step under `folder`, named `step-N`; None when there is none."""
    found = [(int(m.group(1)), p) for p in folder.glob("step-*") if (m := re.fullmatch(r"step-(\d+)", p.name))]
    return max(found)[1] if found else None
