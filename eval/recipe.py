"""The evaluation recipe: which models, which benchmarks, how many samples, which thinking budgets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from assay.pipelines.recipe import Benchmark
from assay.pipelines.settings import LocalPath, ModelName, Section

__all__ = ["Budgets", "EvaluateRecipe", "EvaluatedModel"]

Count = Annotated[int, Field(ge=1)]


class EvaluatedModel(Section):
    """One model of the comparison."""

    name: str
    """In reports. The first model of a recipe is the base that the others are compared with."""
    path: ModelName
    """Folder, or name on the Hub."""


class Budgets(Section):
    """The thinking-budget sweep."""

    tokens: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Budgets of thinking, tokens; 0 is the direct mode. None given: no sweep."""
    samples: Count = 4
    """Samples of every item at every budget."""
    items: Count | None = None
    """Only the first so many items; all when not given."""
    ks: tuple[Count, ...] = (1, 4)
    """For pass@k at every budget."""
    answer_tokens: Count = 512
    """Longest answer after the thinking, at every budget."""
    stop_text: str | None = None
    """Ends a thinking that the budget cuts; by default Qwen3's sentence."""

    @model_validator(mode="after")
    def _enough(self) -> Budgets:
        if self.ks and max(self.ks) > self.samples:
            raise ValueError(f"k = {max(self.ks)} needs as many samples, and there are {self.samples}")
        return self


class EvaluateRecipe(Section):
    """Models by benchmarks, n samples an item, pass@k for every power of two up to n."""

    name: str
    """Of the evaluation; its folder is made of it and the time."""
    store: LocalPath
    """Where samples and verdicts are recorded; what is recorded is not sampled again."""
    variables: dict[str, str] = Field(default={})
    """Texts for `${name}`."""
    models: Annotated[tuple[EvaluatedModel, ...], Field(min_length=1)]
    benchmarks: Annotated[tuple[Benchmark, ...], Field(min_length=1)]
    samples: Count = 16
    """Of every item."""
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
