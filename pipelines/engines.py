"""Generation engines: token ids in; token ids with the sampler's own log-probabilities out.

Sources: vLLM's offline API (`LLM`, `LLMEngine.step`). Every request carries its own seed, so that a completion depends
on its request alone, never on the batch it happened to share.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from assay.pipelines.errors import EngineError, ModelError
from assay.pipelines.models import resolve

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

__all__ = ["BaseEngine", "Completion", "Engine", "OnDone", "ReplayEngine", "Request", "Sampling", "Stream",
           "VllmEngine", "architecture", "check_lengths", "model_fingerprint"]  # fmt: skip


@dataclass(frozen=True)
class Sampling:
    """How to sample: `top_p` 1 and `top_k` 0 mean the whole distribution; `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 1024
    thinking_budget: int | None = None
    """vLLM's own: tokens after the opening of the thinking, then the engine's `stop_text`; None is no budget."""

    @cache  # noqa: B019  (a run has a handful, and asks once a sample)
    def json(self) -> str:
        """Canonical text, part of a generation's key."""
        return json.dumps({k: v for k, v in asdict(self).items() if v is not None}, sort_keys=True)


@dataclass(frozen=True)
class Request:
    """One completion to sample; `key` names it in the answer, `seed` alone decides its random numbers."""

    key: str
    prompt_ids: list[int]
    sampling: Sampling
    seed: int


@dataclass(frozen=True)
class Completion:
    """One sampled completion.

    `token_ids` and `logprobs` have one entry a sampled token, the end token included; `logprobs` are nats under the
    distribution that was sampled from (after temperature). `finish_reason` is `stop` or `length`. `seconds` is the
    time from submission to the last token.
    """

    key: str
    token_ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: str
    seconds: float


OnDone = Callable[[Completion], None]
Stream = Generator[Completion, None, None]


class Engine(Protocol):
    """What every engine offers; `fingerprint` changes whenever its weights do."""

    name: str
    fingerprint: str
    max_model_len: int

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's own."""

    @property
    def busy_seconds(self) -> float:
        """Spent inside the engine so far, this project's own work round it not counted."""

    @property
    def sampled_tokens(self) -> int:
        """So far, the end tokens included."""

    def stream(self, requests: Sequence[Request]) -> Stream:
        """Completions as they finish; keeps none. Closing it takes what is in flight out of the engine.

        Each request has a key of its own; those of one prompt stand together, so that its prefix is computed once.
        """

    def generate(self, requests: Sequence[Request], on_done: OnDone | None = None) -> list[Completion]:
        """Completions in the order of `requests`; `on_done` sees each as it finishes."""

    def memory(self) -> str:
        """What the engine holds, in words."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], fingerprint: str) -> None:
        """Replace the weights and empty the prefix cache."""

    def close(self) -> None:
        """Free the model."""


class BaseEngine:
    """What most engines share: `generate` by `stream`, weights that stay, and nothing to free."""

    name: str
    stream: Any

    def generate(self, requests: Sequence[Request], on_done: OnDone | None = None) -> list[Completion]:
        """As the protocol says; raises as `stream` does."""
        done = {}
        with closing(self.stream(requests)) as stream:
            for completion in stream:
                if on_done:
                    on_done(completion)
                done[completion.key] = completion
        return [done[r.key] for r in requests]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], fingerprint: str) -> None:
        """Raises EngineError: its weights are what they are."""
        raise EngineError(f"{self.name}: this engine cannot follow new weights; train with the vllm engine.")

    def close(self) -> None:
        """Nothing to free."""


def model_fingerprint(folder: str | Path) -> str:
    """Hash of a model folder: configuration, tokenizer and weights (whole files to 1 GB, else size and both ends)."""
    digest = hashlib.sha256()
    names = ["config.json", "tokenizer.json", "chat_template.jinja", "tokenizer_config.json"]
    files = [Path(folder) / n for n in names] + sorted(Path(folder).glob("*.safetensors"))
    for path in files:
        if path.is_file():
            digest.update(path.name.encode() + _file_digest(path))
    return digest.hexdigest()[:16]


def architecture(folder: str | Path) -> dict[str, Any]:
    """The model's configuration without what differs between checkpoints of one architecture; {} for a Hub id."""
    file = Path(folder) / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {
        k: v
        for k, v in config.items()
        if k not in ("dtype", "torch_dtype", "transformers_version", "_name_or_path", "use_cache")
    }


def _file_digest(path: Path, whole: int = 10**9, end: int = 2**20) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= whole:
            return hashlib.file_digest(file, "sha256").digest()
        head = file.read(end)
        file.seek(-end, os.SEEK_END)
        return hashlib.sha256(head + file.read() + str(size).encode()).digest()


class VllmEngine(BaseEngine):
    """vLLM in this process, so that a trainer can replace its weights without a copy on disk.

    Args:
        model: a folder in the Hugging Face layout, or a Hub id.
        max_model_len: prompt and completion together, tokens.
        dtype: `float32`, `bfloat16` or `auto`.
        max_num_seqs: completions in flight.
        gpu_memory_utilization: share of the GPU for weights and KV cache; unused without a GPU.
        kv_cache_gib: KV cache without a GPU, GiB.
        stop_text: ends a thinking (`<think>` to `</think>`) beyond a request's `thinking_budget`.

    Raises:
        ModelError: the folder is missing or is no model.
        EngineError: vLLM did not start.
    """

    name = "vllm"
    busy_seconds, sampled_tokens = 0.0, 0

    def __init__(
        self,
        model: str | Path,
        *,
        max_model_len: int = 2048,
        dtype: str = "auto",
        max_num_seqs: int = 256,
        gpu_memory_utilization: float = 0.6,
        kv_cache_gib: int = 1,
        seed: int = 0,
        stop_text: str | None = None,
    ) -> None:
        model = resolve(model)
        if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
            raise ModelError(f"{model}: no config.json; give a folder in the Hugging Face layout.")
        _prepare_environment(kv_cache_gib)
        from vllm import LLM

        arguments: dict[str, Any] = {
            "model": str(model),
            "max_model_len": max_model_len,
            "dtype": dtype,
            "max_num_seqs": max_num_seqs,
            "seed": seed,
            "logprobs_mode": "processed_logprobs",
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            "gpu_memory_utilization": gpu_memory_utilization,
        }
        if stop_text is not None:
            arguments["reasoning_config"] = {"reasoning_parser": "qwen3", "reasoning_end_str": stop_text}
        try:
            self._llm = LLM(**arguments, **_device_arguments(max_model_len))
        except Exception as error:
            raise EngineError(f"vLLM could not start with {model}: {error}") from error
        self.tokenizer = self._llm.get_tokenizer()
        self.max_model_len, self._window = max_model_len, 2 * max_num_seqs
        self.fingerprint = model_fingerprint(model) if Path(model).is_dir() else str(model)
        self.architecture = architecture(model)
        self.shared_tokens = 0
        """Of the prompts, those that the prefix cache had."""
        self._warm_up()

    def _warm_up(self) -> None:
        """The first request takes seconds, which no forecast should take for the engine's speed."""
        self.generate([Request("warm-up", [0], Sampling(max_tokens=2), 0)])
        self._llm.reset_prefix_cache()
        self.busy_seconds, self.sampled_tokens, self.shared_tokens = 0.0, 0, 0

    def stream(self, requests: Sequence[Request]) -> Stream:
        """As the protocol says.

        Raises:
            EngineError: a prompt leaves no room for a single token; says which key and how long it is.
        """
        check_lengths(requests, self.max_model_len)
        run = _VllmRun(self._llm.llm_engine, requests, self.tokenizer, self._window, self.max_model_len)
        try:
            for completion in run:
                self.sampled_tokens += len(completion.token_ids)
                yield completion
        finally:
            run.abort()
            self.busy_seconds += run.busy_seconds
            self.shared_tokens += run.shared_tokens

    def memory(self) -> str:
        """The process's memory, the GPU's where there is one, and what the KV cache holds."""
        import torch

        cache = self._llm.llm_engine.vllm_config.cache_config
        tokens = (cache.num_gpu_blocks or 0) * cache.block_size
        held = torch.cuda.memory_reserved() if torch.cuda.is_available() else _resident()
        return f"{held / 2**30:.1f} GiB held, a KV cache of {tokens:,} tokens"

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], fingerprint: str) -> None:
        """As the protocol says; names are those of the Hugging Face state.

        A tied output head is sent by its own name too: vLLM keeps a packed copy of it without a GPU, and one that is
        not sent goes on with the old weights (a mismatch of 0.3 in the ratio after a step on the embeddings alone).
        """
        began = time.perf_counter()
        sent = list(weights)
        if self.architecture.get("tie_word_embeddings") and "lm_head.weight" not in dict(sent):
            sent += [("lm_head.weight", w) for name, w in sent if name.endswith("embed_tokens.weight")]
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(sent)})
        self._llm.reset_prefix_cache()
        self.fingerprint = fingerprint
        self.busy_seconds += time.perf_counter() - began

    def switch(self, folder: str | Path) -> None:
        """Serve the weights of another model folder of the same architecture, without a new start.

        Raises:
            EngineError: its configuration differs from the running model's.
        """
        from safetensors.torch import load_file

        if architecture(folder) != self.architecture:
            raise EngineError(f"{folder}: another architecture than the running model's; start an engine for it.")
        self.load_weights(
            [w for f in sorted(Path(folder).glob("*.safetensors")) for w in load_file(f).items()],
            model_fingerprint(folder),
        )

    def close(self) -> None:
        """Free the model and its KV cache."""
        import gc

        del self._llm
        gc.collect()


class _VllmRun:
    """One batch through vLLM's engine: a window of requests is kept in flight, completions come as they finish."""

    def __init__(
        self,
        engine: Any,
        requests: Sequence[Request],
        tokenizer: PreTrainedTokenizerBase,
        window: int,
        max_model_len: int,
    ) -> None:
        self.engine, self.requests, self.tokenizer, self.window = engine, requests, tokenizer, window
        self.max_model_len = max_model_len
        self.flying: dict[str, tuple[str, float]] = {}
        self.submitted = self.shared_tokens = 0
        self.busy_seconds = 0.0

    def __iter__(self) -> Iterator[Completion]:
        while self.flying or self.submitted < len(self.requests):
            began = time.perf_counter()
            self._top_up()
            outputs = self.engine.step()
            self.busy_seconds += time.perf_counter() - began
            yield from (self._finish(output) for output in outputs if output.finished)

    def _top_up(self) -> None:
        while self.submitted < len(self.requests) and len(self.flying) < self.window:
            request, name = self.requests[self.submitted], str(self.submitted)
            room = self.max_model_len - len(request.prompt_ids)
            internal = self.engine.add_request(
                name, {"prompt_token_ids": list(request.prompt_ids)}, _sampling_params(request, room)
            )
            self.flying[name] = (internal, time.perf_counter())
            self.submitted += 1

    def _finish(self, output: Any) -> Completion:
        request, sampled = self.requests[int(output.request_id)], output.outputs[0]
        self.shared_tokens += output.num_cached_tokens or 0
        _, began = self.flying.pop(output.request_id)
        ids = list(sampled.token_ids)
        logprobs = [step[token].logprob for step, token in zip(sampled.logprobs, ids)]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Completion(request.key, ids, logprobs, text, sampled.finish_reason, time.perf_counter() - began)

    def abort(self) -> None:
        """Take what is still in flight out of the engine."""
        if self.flying:
            self.engine.abort_request([internal for internal, _ in self.flying.values()], internal=True)


def _sampling_params(request: Request, room: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    s = request.sampling
    return SamplingParams(
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=s.top_k,
        thinking_token_budget=s.thinking_budget,
        max_tokens=min(s.max_tokens, room),
        seed=request.seed % 2**63,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def check_lengths(requests: Sequence[Request], max_model_len: int) -> None:
    """Raises EngineError for the first prompt that leaves no room for a token."""
    for request in requests:
        if len(request.prompt_ids) >= max_model_len:
            raise EngineError(
                f"request {request.key}: the prompt has {len(request.prompt_ids)} tokens and "
                f"max_model_len is {max_model_len}; raise it, or drop problems of that length."
            )


def _resident() -> int:
    """Bytes of this process in memory (proc(5), statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _prepare_environment(kv_cache_gib: int) -> None:
    """Set what vLLM reads at import; a user's own setting wins."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(kv_cache_gib))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])  # it speaks before it reads its own setting
    warnings.filterwarnings("ignore", "`torch.distributed.reduce_op`", FutureWarning)  # vLLM looks at every name
    if "llvmlite.binding.ffi" in sys.modules:
        # vLLM's kernel registry looks into the `__dict__` of every loaded module's attributes, and llvmlite's library
        # object wraps even that one as if it were a C function: give it a plain one. (vllm-cpu 0.32, llvmlite 0.4x)
        sys.modules["llvmlite.binding.ffi"].lib._fntab.setdefault("__dict__", {})


def _device_arguments(max_model_len: int) -> dict[str, Any]:
    """Without a GPU: eager (compiling takes a minute), and no chunked prefill (it breaks seeded requests there)."""
    import torch

    if torch.cuda.is_available():
        return {"enable_sleep_mode": True}
    return {"enforce_eager": True, "enable_chunked_prefill": False, "max_num_batched_tokens": max(16384, max_model_len)}


class ReplayEngine(BaseEngine):
    """Gives recorded completions back by key: re-grading, re-banding and tests without a model."""

    name = "replay"
    busy_seconds, sampled_tokens = 0.0, 0

    def __init__(
        self,
        completions: Iterable[Completion],
        tokenizer: PreTrainedTokenizerBase,
        fingerprint: str,
        max_model_len: int = 2**20,
    ) -> None:
        self._recorded = {c.key: c for c in completions}
        self.tokenizer, self.fingerprint, self.max_model_len = tokenizer, fingerprint, max_model_len

    def stream(self, requests: Sequence[Request]) -> Stream:
        """As the protocol says.

        Raises:
            EngineError: nothing was recorded under one of the keys.
        """
        missing = [r.key for r in requests if r.key not in self._recorded]
        if missing:
            raise EngineError(
                f"replay: {len(missing)} of {len(requests)} requests were never recorded, the first is "
                f"{missing[0]}; sample them with an engine that has the model."
            )
        yield from (self._recorded[r.key] for r in requests)

    def memory(self) -> str:
        """No model."""
        return "no model"
