"""Graded samples for a refresh: what the store holds, and what an engine and a verifier add to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.pipelines.engines import Engine, Sampling
from assay.pipelines.errors import EngineError, RecipeError
from assay.pipelines.golds import with_policies
from assay.pipelines.prompts import opens_thinking
from assay.pipelines.recipe import Model, RefreshRecipe
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier

if TYPE_CHECKING:
    from assay.pipelines.generate import Progress

__all__ = ["GRADED", "Scoring"]

GRADED = pl.Schema({"problem_id": pl.String, "model": pl.String, "status": pl.String, "extracted": pl.String})


class Scoring:
    """Asks for samples of problems and their verdicts; nothing that is recorded is sampled or graded twice.

    Args:
        engine: an engine, or what makes one: it is made when a filter first needs samples. Without one, only
            recorded generations of the recipe's mode are read.
        verifier: grades what has no verdict yet; without one, the latest recorded verdicts are read.
        progress: handed to `generate.sample`.
    """

    def __init__(
        self,
        store: Store,
        recipe: RefreshRecipe,
        engine: Engine | Callable[[], Engine] | None = None,
        verifier: Verifier | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.store, self.recipe, self.verifier, self.progress = store, recipe, verifier, progress
        self._engine = engine

    def graded(self, problems: pl.DataFrame, mode: str, samples: int, **sampling: Any) -> pl.DataFrame:
        """`problem_id, model, status, extracted`, a row per sample; status is null where nothing graded it.

        Args:
            problems: `id, problem, answer, source`.
            samples: per problem; more are never returned, fewer only without an engine.
            sampling: what differs from the recipe's [model]: temperature, max_tokens.
        """
        if problems.is_empty():
            return pl.DataFrame(schema=GRADED)
        model = self.recipe.model
        if model is None:
            raise RecipeError("a filter of the ladder needs samples and the recipe has no [model]: add it")
        if (engine := self.engine) is None:
            return self._graded(problems, self._recorded(problems, mode, samples))
        generations = self._sampled(engine, model, problems, mode, samples, sampling)
        return self._graded(problems, generations, opens_thinking(engine.tokenizer, mode))

    def _graded(self, problems: pl.DataFrame, generations: pl.DataFrame, opened: bool | None = None) -> pl.DataFrame:
        """`opened`: whether the prompts opened the thinking; None where there is no tokenizer to ask."""
        verdicts = self._recorded_verdicts() if self.verifier is None else self._verdicts(problems, generations, opened)
        rows = generations.select("key", "problem_id", "model")
        joined = rows.join(verdicts, on="key", how="left", maintain_order="left_right")
        if len(joined) > len(rows):  # graded several times: the latest counts
            joined = joined.unique("key", keep="last", maintain_order=True)
        return joined.select(pl.col(name).cast(dtype) for name, dtype in GRADED.items())

    def _recorded_verdicts(self) -> pl.DataFrame:
        return self.store.scan("verdicts").select("key", "status", "extracted").collect()

    def beside(self, problems: pl.DataFrame, model: str) -> pl.DataFrame:
        """Graded samples that are recorded of other models than `model` in the recipe's mode, as from `graded`.

        So that several models' rates stand side by side, refresh the same store with each in turn.
        """
        assert self.recipe.model is not None
        theirs = self.store.scan("generations").filter(
            pl.col("model") != model,
            pl.col("mode") == self.recipe.model.mode,
            pl.col("problem_id").is_in(problems["id"].implode()),
        )
        rows = theirs.select("key", "problem_id", "model", "mode", "text", "finish_reason")
        found = rows.unique("key", maintain_order=True).collect()
        return self._graded(problems, found) if len(found) else pl.DataFrame(schema=GRADED)

    def judged(self, pairs: list[tuple[str, str]], max_tokens: int) -> list[bool | None]:
        """Whether each (problem, benchmark item) is one problem; all null without an engine."""
        from assay.pipelines.judge import judge

        assert self.recipe.model is not None
        engine = self.engine
        if engine is None or not pairs:
            return [None] * len(pairs)
        return judge(self.store, engine, pairs, max_tokens, self.recipe.model.mode)

    @property
    def engine(self) -> Engine | None:
        """The engine, made when it is first asked for."""
        if callable(self._engine):
            self._engine = self._engine()
        return self._engine

    def _sampled(
        self, engine: Engine, model: Model, problems: pl.DataFrame, mode: str, samples: int, sampling: dict[str, Any]
    ) -> pl.DataFrame:
        from assay.pipelines import generate

        usual = {name: getattr(model, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
        return generate.sample(
            self.store,
            engine,
            problems.select("id", "problem"),
            mode=mode,
            samples=samples,
            sampling=Sampling(**usual | sampling),
            seed=model.seed,
            instruction=model.instruction,
            progress=self.progress,
        )

    def _recorded(self, problems: pl.DataFrame, mode: str, samples: int) -> pl.DataFrame:
        """Recorded generations of these problems in this mode, the first `samples` of each, of one model."""
        rows = self.store.scan("generations").filter(pl.col("mode") == mode, pl.col("sample") < samples)
        texts = () if self.verifier is None else ("mode", "text", "finish_reason")  # long, and read by a verifier alone
        seen = rows.select("key", "problem_id", "model", "sample", *texts).collect()
        seen = seen.join(problems.select(problem_id="id"), on="problem_id", how="semi", maintain_order="left")
        found = seen.unique(["problem_id", "model", "sample"], keep="last").sort("sample")
        models = found["model"].unique().sort().to_list()
        if len(models) > 1 and (own := self._own_fingerprint()) in models:
            return found.filter(pl.col("model") == own)
        if len(models) > 1:
            raise EngineError(
                f"{self.store.path}: recorded samples in mode {mode} are of {len(models)} models "
                f"({', '.join(models)}), and pass rates are of one: give the engine of the one that counts."
            )
        return found

    def _own_fingerprint(self) -> str:
        """Of the recipe's model, by its files alone."""
        from assay.pipelines.engines import model_fingerprint

        assert self.recipe.model is not None
        path = Path(self.recipe.model.path)
        return model_fingerprint(path) if path.is_dir() else str(path)

    def _verdicts(self, problems: pl.DataFrame, generations: pl.DataFrame, opened: bool | None) -> pl.DataFrame:
        """`key, status, extracted`, every source's under its own policy."""
        from assay.pipelines import generate

        assert self.verifier is not None
        asked = with_policies(problems, (source.model_dump() for source in self.recipe.sources))
        graded = generate.grade(self.store, self.verifier, asked, generations, starts_in_thinking=opened)
        return graded.select("key", "status", "extracted")
