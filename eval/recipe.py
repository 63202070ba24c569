"""The evaluation recipe: which models, which benchmarks, how many samples, which thinking budgets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from assay.eval.benchmarks import Exam, declared
from assay.pipelines.recipe import Model, Served
from assay.pipelines.settings import LocalPath, Section

__all__ = ["Budgets", "EvaluateRecipe", "EvaluatedModel", "TrainingSet"]

Count = Annotated[int, Field(ge=1)]
Stage = Literal["exact", "ngram", "number_variant", "near"]


class EvaluatedModel(Served):
    """One model of the comparison."""

    name: str
    """In reports. The first model of a recipe is the base that the others are compared with."""
    role: Literal["compared", "control", "teacher", "before", "after"] = "compared"
    """`control`: trained on random rewards, to tell a real gain from a spurious one. `teacher`, `before` and `after`
    (one or several students) ask for the distillation table."""


class TrainingSet(Section):
    """What the models were trained on, to look for benchmark items in it."""

    store: LocalPath
    """The store of the refresh."""
    snapshot: str = "latest"
    """The snapshot trained on: an id, its beginning, or latest."""
    tasks: tuple[str, ...] = ()
    """Benchmarks of the trained task; a loss on any other one is called forgetting."""
    stages: tuple[Stage, ...] = ("exact", "ngram", "number_variant", "near")
    """How items are looked for. Leave the last two out for problems made from templates, which are variants anyway."""


class Budgets(Section):
    """The thinking-budget sweep."""

    tokens: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Budgets of thinking, tokens; 0 is the direct mode. Those of the benchmarks when not given; none: no sweep."""
    procedure: Literal["reuse", "vllm"] = "reuse"
    """`reuse`: one long generation serves all budgets. `vllm`: its own `thinking_token_budget`, each budget anew."""
    samples: Count = 4
    """Samples of every item at every budget."""
    items: Count | None = None
    """Only the first so many items; all when not given."""
    ks: tuple[Count, ...] = (1, 4)
    """For pass@k at every budget."""
    answer_tokens: Count = 512
    """Longest answer after the thinking, at every budget."""
    stop: Literal["qwen3", "s1"] = "qwen3"
    """Whose words end a thinking that the budget cuts: Qwen3's sentence, or s1's "Final Answer:"."""
    stop_text: str | None = None
    """Other words for it; they must hold the end of thinking."""
    extensions: Annotated[int, Field(ge=0)] = 0
    """How often an end of thinking within the largest budget is replaced by `wait_text` (s1)."""
    wait_text: str = "Wait"
    """What makes the model think on."""

    @model_validator(mode="after")
    def _enough(self) -> Budgets:
        if self.ks and max(self.ks) > self.samples:
            raise ValueError(f"k = {max(self.ks)} needs as many samples, and there are {self.samples}")
        if self.procedure == "vllm" and self.extensions:
            raise ValueError("vLLM's procedure has no extensions; use procedure = 'reuse'")
        return self


class EvaluateRecipe(Section):
    """Models by benchmarks, n samples an item, pass@k for every power of two up to n, and n."""

    name: str
    """Of the evaluation; its folder is made of it and the time."""
    store: LocalPath
    """Where samples and verdicts are recorded; what is recorded is not sampled again."""
    variables: dict[str, str] = Field(default={})
    """Texts for `${name}`."""
    models: Annotated[tuple[EvaluatedModel, ...], Field(min_length=1)]
    benchmarks: Annotated[tuple[Exam, ...], Field(min_length=1)]
    training_set: TrainingSet | None = None
    """Where to look for benchmark items that were trained on."""
    samples: Count = 16
    """Of every item; given, it counts before what declarations say."""
    items: Count | None = None
    """Only the first so many items of every benchmark; all when not given."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Of every sample."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus; 1 is the whole distribution."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 is the whole distribution."""
    max_tokens: Count = 4096
    """Longest completion, thinking included."""
    max_model_len: Count = 8192
    """Tokens of prompt and completion together."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights."""
    instruction: str | None = "Put your final answer within \\boxed{}."
    """Appended to every problem."""
    seed: int = 0
    """Every sample's own seed derives from it."""
    budgets: Budgets = Budgets()
    judge: Model | None = None
    """The model that judges answers, for benchmarks whose policy says so."""

    @classmethod
    def prepare(cls, data: dict[str, Any]) -> dict[str, Any]:
        """What declarations say, filled in; samples and budgets only where the recipe leaves them open."""
        if not isinstance(data.get("benchmarks"), list):
            return data
        budgets = data.get("budgets")
        given = ["samples"] * ("samples" in data)
        given += ["budgets"] * (not isinstance(budgets, dict) or "tokens" in budgets)
        return {**data, "benchmarks": [declared(entry, given) for entry in data["benchmarks"]]}

    @model_validator(mode="after")
    def _roles(self) -> EvaluateRecipe:
        names = [exam.name for exam in self.benchmarks]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two benchmarks are called {', '.join(sorted(twice))}; give each a name of its own")
        if self.budgets.procedure == "vllm" and any(m.engine != "vllm" or m.cluster for m in self.models):
            raise ValueError("budgets.procedure = 'vllm' needs engine = 'vllm' in this process for every model")
        needed = {"teacher", "before", "after"}
        if (roles := {model.role for model in self.models} & needed) not in (set(), needed):
            raise ValueError(f"distillation needs teacher, before and after; found {', '.join(sorted(roles))}")
        return self
