"""The trainer: sample, grade, update, sync; every number in the store.

One step: draw problems by the curriculum, sample a group of completions of each with the present weights, grade them,
drop the groups without a gradient and refill, compute advantages, update, and hand the new weights to the sampler.
With `sampling.overlap` a thread does the first half for the next step, in an engine of its own process, while this one
updates; both are done before the weights are handed over, so which weights made what does not depend on the timing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from assay.pipelines.engines import Engine
from assay.pipelines.errors import EngineError, SourceError
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier
from assay.rl import ranks
from assay.rl.alarms import Alarms
from assay.rl.audit import audit
from assay.rl.checkpoint import latest_checkpoint, load_state, save_checkpoint
from assay.rl.clock import Clock
from assay.rl.curriculum import Curriculum, GroupBuffer
from assay.rl.plan import Plan, compared, make_plan, measured
from assay.rl.recipe import TrainRecipe
from assay.rl.record import Batch, Recorder, rollout_metrics
from assay.rl.rollouts import Draft, Group, RolloutMaker
from assay.rl.update import Updater

__all__ = ["Trainer", "TrainingResult"]

FIRST_RATIO, RATIO_TOLERANCE = 1e-4, 1e-2  # above the one it warns at the start, above the other it stops
OnStep = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class TrainingResult:
    """What a run leaves: its name, the final checkpoint, and figures over the whole loop.

    `ratio_error_first_step` is max |exp(log pi_trainer - log pi_sampler) - 1| over the tokens of the first step;
    `tokens_per_second` counts sampled tokens over the loop's wall time; `share_outside` is the share of that time spent
    neither in the engine nor in torch.
    """

    run: str
    checkpoint: Path
    steps: int
    ratio_error_first_step: float
    tokens_per_second: float
    share_outside: float
    seconds: dict[str, float]


class Trainer:
    """Trains `model` in place on `problems`.

    Args:
        problems: columns `id`, `problem`, `answer`, and `pass_rate` where curation measured one.
        engine: must hold the same weights as `model`.
        folder: of the run; checkpoints go to `folder/checkpoints/step-N`.
        on_step: called with (step, metrics) after every step.
        say: told the plan before the first step (made for it alone), its error after the last, and every alarm;
            alarms also go to `folder/alarms.txt`.
    """

    def __init__(
        self,
        recipe: TrainRecipe,
        model: Any,
        engine: Engine,
        verifier: Verifier,
        problems: pl.DataFrame,
        store: Store,
        folder: Path,
        on_step: OnStep | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        if problems.is_empty():
            raise SourceError(f"{recipe.store}: snapshot {recipe.snapshot} holds no problems; refresh it first.")
        self.recipe, self.preset, self.model, self.engine = recipe, recipe.preset(), model, engine
        self.folder, self.on_step, self.run = folder, on_step, folder.name
        self.say, self.alarms = say, Alarms()
        self.clock = Clock()
        self.maker = RolloutMaker(engine, verifier, problems, recipe, self.preset, self.clock)
        c, s = recipe.curriculum, recipe.sampling
        rates = problems["pass_rate"].to_list() if "pass_rate" in problems.columns else [None] * len(problems)
        self.curriculum = Curriculum(
            self.maker.ids,
            rates,
            order=c.order,
            prioritised=c.prioritised,
            decay=c.decay,
            seed=recipe.seed,
            full_after=max(1, recipe.steps * s.prompts // 3),
        )
        self.buffer: GroupBuffer[Group] = GroupBuffer(
            s.prompts, s.max_refills, drop_constant=self.preset.dynamic_sampling
        )
        self.updater = Updater(model, recipe, self.preset, self.clock)
        self.step, self.tokens, self.first_ratio_error, self.keep_rate = 0, 0, float("nan"), 1.0
        self.recorder = Recorder(store, folder, recipe, self.maker.texts)
        self._ahead: Batch | None = None
        self._thread = ThreadPoolExecutor(1)

    def train(self) -> TrainingResult:
        """Run to `recipe.steps`, from the last checkpoint under `folder` where there is one."""
        self._resume()
        self.recorder.begin()
        plan = self._plan() if self.say and ranks.alone() else None
        began, first, tokens = time.perf_counter(), self.step, self.tokens
        groups: list[Group] = []
        while not self._done:
            groups = self._one_step()
            if self.step % self.recipe.checkpoint_every == 0 or self._done:
                self._save()
        self.recorder.flush()
        seconds, done = time.perf_counter() - began, max(1, self.step - first)
        if plan and self.say and groups:
            actual = measured(self.updater, groups, self.maker, seconds / done, (self.tokens - tokens) / done)
            self.say("planned and measured\n" + compared(plan, actual))
        return self._result(seconds, self.tokens - tokens)

    @property
    def _done(self) -> bool:
        return self._ends(self.step)

    def _ends(self, step: int) -> bool:
        return step >= self.recipe.steps or self.tokens >= (self.recipe.max_sampled_tokens or math.inf)

    def _plan(self) -> Plan:
        """Sampled anew at every start; the sampler's prefixes are forgotten after it, so a resumed run stays exact."""
        with self.maker.whole():
            plan = make_plan(self.updater, self.maker)
        if self.say:
            self.say(f"plan of a step\n{plan}")
        self.maker.take_tokens()
        self.clock.forget()
        self._sync()
        return plan

    def _one_step(self) -> list[Group]:
        began, busy = time.perf_counter(), self.engine.busy_seconds
        batch = self._ahead or self._rollouts(self.step, self.step)
        self.tokens += batch.tokens
        ahead = self._begin_next()
        estimate = self.updater.estimate(batch.groups)
        metrics = self.updater.update(batch.groups, estimate, self.step)
        with self.clock("wait"):
            self._ahead = None if ahead is None else ahead.result()
        self.step += 1
        self._sync()
        self._check_agreement(metrics["ratio_error"])
        self.clock.add("engine", self.engine.busy_seconds - busy)
        with self.clock("log"):
            metrics |= rollout_metrics(batch, estimate, self.step - 1) | self._audit(batch.groups)
            metrics["problems_open"] = self.curriculum.open_buckets
            lap = self.clock.lap()
            metrics |= {f"seconds_{k}": v for k, v in lap.items()}
            metrics["tokens_per_second"] = batch.tokens / (time.perf_counter() - began)
            for phase, tokens in (("generate", batch.tokens), ("torch", metrics["trained_tokens"])):
                metrics[f"tokens_per_second_{phase}"] = tokens / max(1e-9, lap.get(phase, 0.0))
            self.recorder.step(self.step, batch.groups, estimate, metrics)
            self._watch(metrics)
        if self.on_step:
            self.on_step(self.step, metrics)
        return batch.groups

    def _begin_next(self) -> Future[Batch] | None:
        """The next step's rollouts by the present weights, begun; None where nothing overlaps or no step follows."""
        last = self._ends(self.step + 1)
        if last or not self.recipe.sampling.overlap:
            return None
        return self._thread.submit(self._rollouts, self.step + 1, self.step)

    def _audit(self, groups: list[Group]) -> dict[str, float]:
        samples = [(self.maker.golds[g.index].answer, s.text, s.status) for g in groups for s in g.samples]
        return audit(*zip(*samples)) if samples else {}

    def _watch(self, metrics: dict[str, float]) -> None:
        for alarm in self.alarms.watch(metrics):
            if self.say:
                self.say(f"step {self.step}, alarm: {alarm}")
            with (self.folder / "alarms.txt").open("a", encoding="utf-8") as file:
                file.write(f"step {self.step}, {alarm}\n")

    def _check_agreement(self, ratio_error: float) -> None:
        """Sampler and trainer must hold the same weights: in float32 their ratio is 1 to about 1e-5."""
        if self.step == 1:
            self.first_ratio_error = ratio_error
            if self.recipe.dtype == "float32" and ratio_error > FIRST_RATIO and self.say:
                self.say(f"warning: sampler and trainer differ by {ratio_error:.1e}; in float32 by about 1e-5")
        if self.recipe.dtype == "float32" and ratio_error > RATIO_TOLERANCE:
            raise EngineError(
                f"step {self.step}: sampler and trainer disagree, max |ratio - 1| = {ratio_error:.2g} "
                f"(float32 gives about 1e-5). The sampler's weights are not the trainer's: look for a "
                "tensor that the sync leaves out, and go on from the last checkpoint."
            )

    def _rollouts(self, step: int, version: int) -> Batch:
        """Sample by the weights of `version` until `step` is full; what is too much waits for the next step, and is
        dropped when it is too old.

        A round asks for as many groups as will do at the share that was kept lately: a second round is a small batch,
        and takes the engine nearly as long as the first.
        """
        s = self.recipe.sampling
        self.buffer.discard_older(step - s.max_staleness)
        self.buffer.count_stale([draft.tokens for draft in self.maker.drop_drafts(step - s.max_staleness)])
        round_ = 0
        while wants := self.buffer.wants:
            new = wants if round_ else max(0, wants - len(self.maker.drafts))
            indices = self.curriculum.sample(min(math.ceil(new / self.keep_rate), 2 * s.prompts))
            groups = self.maker.groups(indices, step, round_, version)
            self.curriculum.update([g.index for g in groups], [g.success for g in groups])
            kept = [
                self.buffer.offer(g, self._told_apart_by(g), version=g.version, tokens=g.tokens) for g in groups
            ]
            self.buffer.end_round()
            if kept:
                self.keep_rate = min(1.0, max(0.25, 0.8 * self.keep_rate + 0.2 * sum(kept) / len(kept)))
            round_ += 1
        return Batch(*self.buffer.take(), self.maker.take_tokens())

    def _told_apart_by(self, group: Group) -> list[float]:
        """What must differ within a group: accuracy, as DAPO has it; under a control reward, that reward."""
        plain = self.recipe.rewards.control == "none"
        return [s.parts["accuracy"] if plain else s.reward for s in group.samples]

    def _sync(self) -> None:
        with self.clock("sync"):
            self.engine.load_weights(self.updater.weights().items(), f"{self.run}@{self.step}")

    def _save(self) -> None:
        self.recorder.flush()
        state = {
            "step": self.step,
            "tokens": self.tokens,
            "first_ratio_error": self.first_ratio_error,
            "keep_rate": self.keep_rate,
            "updater": self.updater.state(),
            "curriculum": self.curriculum.state(),
            "buffer": self._buffer_state(),
            "ahead": self._ahead and self._ahead.json(),
            "drafts": [draft.json() for draft in self.maker.drafts],
            "alarms": self.alarms.state(),
        }
        folder = self.folder / "checkpoints" / f"step-{self.step}"
        save_checkpoint(folder, self.model, self.engine.tokenizer, state, self.updater.weights())

    def _buffer_state(self) -> dict[str, Any]:
        state = self.buffer.state()
        return {**state, "held": [[*about, group.json()] for *about, group in state["held"]]}

    def _resume(self) -> None:
        found = latest_checkpoint(self.folder / "checkpoints")
        if found is None:
            return
        state = load_state(found)
        self.step, self.tokens, self.first_ratio_error = state["step"], state["tokens"], state["first_ratio_error"]
        self.keep_rate = state["keep_rate"]
        self.updater.load(found)
        self.curriculum.load(state["curriculum"])
        self.alarms.load(state["alarms"])
        held = [(*about, Group.of(group)) for *about, group in state["buffer"]["held"]]
        self.buffer.load({**state["buffer"], "held": held})
        self._ahead = state["ahead"] and Batch.of(state["ahead"])
        self.maker.drafts = [Draft.of(draft) for draft in state["drafts"]]
        self._sync()

    def _result(self, seconds: float, tokens: int) -> TrainingResult:
        total = dict(self.clock.total)
        busy = total.get("engine", 0.0), total.get("torch", 0.0)
        inside = max(busy) if self.recipe.sampling.overlap else sum(busy)
        return TrainingResult(
            self.run,
            self.folder / "checkpoints" / f"step-{self.step}",
            self.step,
            self.first_ratio_error,
            tokens / seconds if seconds else 0.0,
            1 - inside / seconds if seconds else 0.0,
            total,
        )
