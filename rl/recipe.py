"""The training recipe: what is trained, on what, by which algorithm."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from assay.pipelines.recipe import Model
from assay.pipelines.settings import LocalPath, ModelName, Section
from assay.rl.presets import PRESETS, Preset, preset

__all__ = ["Critic", "Curriculum", "Engine", "Lora", "Memory", "Optimizer", "Reference", "Rewards", "Sampling",
           "TrainRecipe"]  # fmt: skip

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class Sampling(Section):
    """The rollouts of one step."""

    prompts: Count = 32
    """Groups a step trains on."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Completions of each prompt."""
    temperature: Positive = 1.0
    """Of the sampler; the trainer's log-probabilities use the same."""
    max_tokens: Count = 1024
    """Longest completion."""
    step_tokens: Count | None = None
    """The most that a step samples of one completion; the next step's weights go on with it (Kimi's partial
    rollouts), each token keeps the log-probability it was sampled with, and its group is as old as its first."""
    instruction: str | None = "Put your final answer within \\boxed{}."
    """Appended to every problem."""
    mode: Literal["think", "direct"] = "think"
    """Thinking or direct prompts."""
    max_refills: Annotated[int, Field(ge=0)] = 4
    """Further rounds of sampling in a step whose groups were all right or all wrong."""
    overlap: bool = False
    """Sample the next step while this one trains, in a process of its own: every step is one update off-policy."""
    max_staleness: Annotated[int, Field(ge=0)] = 1
    """Updates between a group's sampling and its own; surplus groups beyond it are dropped and counted."""


class Optimizer(Section):
    """AdamW."""

    learning_rate: Positive = 1e-6
    """After the warm-up, constant."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Linear."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the moments."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled."""
    max_grad_norm: Positive = 1.0
    """The gradient is scaled down to it."""
    updates_per_step: Count = 1
    """Optimizer steps a batch of rollouts is cut into; 1 is strictly on-policy."""
    micro_batch_tokens: Count = 4096
    """Padded tokens that go through the model at once; changes memory and speed, never the gradient."""


class Rewards(Section):
    """Weights of the parts of the reward; accuracy has weight 1."""

    unverifiable: Literal["left_out", "wrong"] = "left_out"
    """A completion without a verdict: out of its group's baseline and of the loss, or as much as a wrong one."""
    format: float = 0.0
    """For exactly one thinking block followed by an answer."""
    length: float | None = None
    """Kimi's length reward; by default 0.1 where the preset has it."""
    length_warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps before the length reward counts."""
    overlong: float | None = None
    """DAPO's penalty near the length limit; by default 1 where the preset has it."""
    overlong_buffer: Count = 128
    """Tokens before the limit over which the penalty rises."""
    repetition: float = 0.0
    """Share of repeated 4-grams, negative."""
    language: float = 0.0
    """Share of the thought's words in the problem's language."""
    language_detector: Literal["script", "lingua"] = "script"
    """By letters alone, or also between languages of one script (ten seconds and 0.9 GB)."""
    control: Literal["none", "random", "inverted"] = "none"
    """Replace the reward by chance or its opposite: a run that must not gain."""


class Curriculum(Section):
    """Which problems a step draws."""

    order: Literal["easy_to_hard", "none"] = "easy_to_hard"
    """Open difficulty buckets one after another, or all at once."""
    prioritised: bool = True
    """Draw in proportion to 1 - success rate."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """What an update leaves of the old success rate."""


class Critic(Section):
    """PPO's value model, for a preset whose advantage is `gae`: a copy of the policy with a head of its own."""

    learning_rate: Positive = 1e-5
    """Of its AdamW; constant."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Discount a token."""
    lam: Annotated[float, Field(ge=0, le=1)] = 1.0
    """1 is reward to go less the value; below 1 less variance and more bias."""
    value_clip: Positive = 0.2
    """How far a value may move from the one it was estimated with."""
    whiten: bool = True
    """Advantages of a step with mean 0 and standard deviation 1 over its trained tokens."""


class Lora(Section):
    """Train low-rank additions instead of the weights (`peft`)."""

    rank: Annotated[int, Field(ge=0)] = 0
    """Of the additions; 0 trains all weights."""
    alpha: Count = 32
    """The addition is scaled by alpha / rank."""
    targets: str | list[str] = "all-linear"
    """Names of the layers that get one."""

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return self.alpha / self.rank


class Memory(Section):
    """Memory against speed; none of it changes the gradient."""

    gradient_checkpointing: bool = False
    """Recompute each layer in the backward pass: a third slower, and activations of one layer instead of all."""
    packing: bool = False
    """Several sequences in one row instead of padded rows. Needs an attention that keeps them apart (`assay selfcheck`
    tells), and pays where lengths differ much and attention is of variable length (a GPU with flash attention)."""


class Reference(Section):
    """The policy that the KL term pulls to; the start, by default."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Kept in; with LoRA it is the base itself and takes nothing."""
    reset_every: Annotated[int, Field(ge=0)] = 0
    """Steps after which the reference becomes the present policy (ProRL); 0 never."""
    kl_target: Positive | None = None
    """Adapt beta towards this KL, nats a token; by default beta is constant."""
    kl_horizon: Count = 10_000
    """Completions over which beta adapts."""


class Engine(Section):
    """The sampler: in this process, or in one of its own (`sampling.overlap`, `devices`, several ranks)."""

    devices: str = ""
    """GPUs of a sampler in a process of its own, as in `CUDA_VISIBLE_DEVICES`; empty shares the trainer's."""

    max_model_len: Count = 4096
    """Tokens of prompt and completion together."""
    max_num_seqs: Count = 256
    """Completions in flight."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Share of the GPU that the sampler may take."""


class TrainRecipe(Section):
    """One training run."""

    name: str
    """Of the run; the folder is made of it and the time."""
    model: ModelName
    """Folder or Hub name of the model to start from."""
    store: LocalPath
    """Where curated problems are read and metrics and rollouts are written."""
    snapshot: str = "latest"
    """Which curated set; `latest`, or the beginning of an id."""
    algorithm: str = "dr_grpo"
    """A preset; `docs/algorithms.md` lists them."""
    changes: dict[str, Any] = Field(default={})
    """What differs from the preset, e.g. `clip_high = 0.3`."""
    steps: Count = 100
    """Batches of rollouts."""
    max_sampled_tokens: Count | None = None
    """The run also ends with the step that reaches so many: algorithms side by side at equal cost."""
    seed: int = 0
    """Of everything that is drawn."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the forward pass and the sampler; the optimizer's weights are float32 always."""
    checkpoint_every: Count = 50
    """Steps between checkpoints; there is always one at the end."""
    sampling: Sampling = Sampling()
    optimizer: Optimizer = Optimizer()
    rewards: Rewards = Rewards()
    curriculum: Curriculum = Curriculum()
    critic: Critic = Critic()
    lora: Lora = Lora()
    memory: Memory = Memory()
    reference: Reference = Reference()
    engine: Engine = Engine()
    judge: Model | None = None
    """The model that judges answers, where the policy of their source says so."""
    variables: dict[str, str] = Field(default={})
    """Texts for `${name}`."""

    @model_validator(mode="after")
    def _trainable(self) -> TrainRecipe:
        if self.algorithm not in PRESETS:
            raise ValueError(f"algorithm {self.algorithm!r} is none of {', '.join(PRESETS)}")
        if self.lora.rank and self.reference.reset_every:
            raise ValueError("reference.reset_every needs a reference of its own, and with lora it is the base; set 0")
        self.preset()
        if self.sampling.overlap and not self.sampling.max_staleness:
            raise ValueError("sampling.overlap trains on groups one update old; sampling.max_staleness = 0 drops them")
        if self.sampling.max_tokens >= self.engine.max_model_len:
            raise ValueError("sampling.max_tokens leaves no room for a prompt in engine.max_model_len")
        return self

    def preset(self) -> Preset:
        """The preset with this recipe's changes."""
        return preset(self.algorithm, **self.changes)
