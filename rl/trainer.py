"""The trainer: sample, grade, update, sync; one process, one device, every number in the store.

One step: draw problems by the curriculum, sample a group of completions of each with the present weights, grade them,
drop the groups without a gradient and refill, compute advantages, update, and hand the new weights to the sampler.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from assay.pipelines.engines import Engine
from assay.pipelines.errors import EngineError, SourceError
from assay.pipelines.store import SCHEMAS, Store
from assay.pipelines.verify import Verifier
from assay.rl import ranks
from assay.rl.alarms import Alarms
from assay.rl.audit import audit
from assay.rl.checkpoint import latest_checkpoint, load_state, save_checkpoint
from assay.rl.clock import Clock
from assay.rl.curriculum import Curriculum, GroupBuffer, Tally
from assay.rl.plan import Plan, compared, make_plan, measured
from assay.rl.recipe import TrainRecipe
from assay.rl.rollouts import Group, RolloutMaker
from assay.rl.rows import Estimate
from assay.rl.update import Updater

__all__ = ["Trainer", "TrainingResult"]

RATIO_TOLERANCE = 1e-2
PARTS = ("accuracy", "format", "length", "overlong", "repetition")
MAX_STALENESS = 1  # steps that a surplus group may wait
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
        self.store, self.folder, self.on_step, self.run = store, folder, on_step, folder.name
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
        self._sampled, self._groups = 0, list[Group]()
        self._rows: dict[str, list[pl.DataFrame]] = {"steps": [], "rollouts": []}

    def train(self) -> TrainingResult:
        """Run to `recipe.steps`, from the last checkpoint under `folder` where there is one."""
        self._resume()
        self._record_run()
        plan = self._plan() if self.say and ranks.alone() else None
        began, first = time.perf_counter(), self.step
        while not self._done:
            self._one_step()
            if self.step % self.recipe.checkpoint_every == 0 or self._done:
                self._save()
        self._flush()
        seconds, done = time.perf_counter() - began, max(1, self.step - first)
        if plan and self.say and self._groups:
            actual = measured(self.updater, self._groups, self.maker, seconds / done, self._sampled / done)
            self.say("planned and measured\n" + compared(plan, actual))
        return self._result(seconds)

    @property
    def _done(self) -> bool:
        return self.step >= self.recipe.steps or self.tokens >= (self.recipe.max_sampled_tokens or math.inf)

    def _plan(self) -> Plan:
        """Sampled anew at every start; the sampler's prefixes are forgotten after it, so a resumed run stays exact."""
        plan = make_plan(self.updater, self.maker)
        if self.say:
            self.say(f"plan of a step\n{plan}")
        self.maker.take_tokens()
        self.clock.forget()
        self._sync()
        return plan

    def _one_step(self) -> None:
        began, busy = time.perf_counter(), self.engine.busy_seconds
        groups, tally = self._rollouts()
        estimate = self.updater.estimate(groups)
        metrics = self.updater.update(groups, estimate, self.step)
        self.step += 1
        self._sync()
        self._check_agreement(metrics["ratio_error"])
        self.clock.add("engine", self.engine.busy_seconds - busy)
        with self.clock("log"):
            metrics |= _rollout_metrics(groups, estimate, tally) | self._audit(groups)
            metrics["problems_open"] = self.curriculum.open_buckets
            lap = self.clock.lap()
            sampled = self.maker.take_tokens()
            self.tokens, self._sampled, self._groups = self.tokens + sampled, self._sampled + sampled, groups
            metrics |= {f"seconds_{k}": v for k, v in lap.items()}
            metrics["tokens_per_second"] = sampled / (time.perf_counter() - began)
            self._log(groups, estimate.completion, metrics)
            self._watch(metrics)
        if self.on_step:
            self.on_step(self.step, metrics)

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
        if self.recipe.dtype == "float32" and ratio_error > RATIO_TOLERANCE:
            raise EngineError(
                f"step {self.step}: sampler and trainer disagree, max |ratio - 1| = {ratio_error:.2g} "
                f"(float32 gives about 1e-5). The sampler's weights are not the trainer's: look for a "
                "tensor that the sync leaves out, and go on from the last checkpoint."
            )

    def _rollouts(self) -> tuple[list[Group], Tally]:
        """Sample until the step is full; what is too much waits for the next step, and is dropped after that.

        A round asks for as many groups as will do at the share that was kept lately: a second round is a small batch,
        and takes the engine nearly as long as the first.
        """
        self.buffer.discard_older(self.step - MAX_STALENESS)
        round_ = 0
        while wants := self.buffer.wants:
            count = min(math.ceil(wants / self.keep_rate), 2 * self.recipe.sampling.prompts)
            indices = self.curriculum.sample(count)
            groups = self.maker.groups(indices, self.step, round_)
            self.curriculum.update(indices, [g.success for g in groups])
            kept = [
                self.buffer.offer(g, [s.reward for s in g.samples], version=self.step, tokens=g.tokens) for g in groups
            ]
            self.buffer.end_round()
            self.keep_rate = min(1.0, max(0.25, 0.8 * self.keep_rate + 0.2 * sum(kept) / count))
            round_ += 1
        return self.buffer.take()

    def _sync(self) -> None:
        with self.clock("sync"):
            self.engine.load_weights(self.updater.weights().items(), f"{self.run}@{self.step}")

    def _save(self) -> None:
        self._flush()
        state = {
            "step": self.step,
            "tokens": self.tokens,
            "first_ratio_error": self.first_ratio_error,
            "keep_rate": self.keep_rate,
            "updater": self.updater.state(),
            "curriculum": self.curriculum.state(),
            "buffer": self._buffer_state(),
            "alarms": self.alarms.state(),
        }
        folder = self.folder / "checkpoints" / f"step-{self.step}"
        save_checkpoint(folder, self.model, self.engine.tokenizer, state, self.updater.weights())

    def _buffer_state(self) -> dict[str, Any]:
        state = self.buffer.state()
        return {**state, "held": [[version, group.json()] for version, group in state["held"]]}

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
        held = [(version, Group.of(group)) for version, group in state["buffer"]["held"]]
        self.buffer.load({**state["buffer"], "held": held})
        self._sync()

    def _record_run(self) -> None:
        row = {
            "run": self.run,
            "kind": "train",
            "config": self.recipe.model_dump_json(),
            "model": self.recipe.model,
            "time": datetime.now(UTC).replace(tzinfo=None),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.json").write_text(json.dumps(json.loads(row["config"]), indent=1))  # type: ignore[arg-type]
        self.store.append("runs", pl.DataFrame([row], schema=SCHEMAS["runs"]))

    def _log(self, groups: list[Group], batch: Tensor, metrics: dict[str, float]) -> None:
        steps = {
            "run": self.run,
            "step": self.step,
            "metric": list(metrics),
            "value": list(map(float, metrics.values())),
        }
        self._rows["steps"].append(pl.DataFrame(steps, schema=SCHEMAS["steps"]))
        size = self.recipe.sampling.group_size
        rows = [
            self._rollout_row(g, i, float(batch[k * size + i]))
            for k, g in enumerate(groups)
            for i in range(len(g.samples))
        ]
        self._rows["rollouts"].append(pl.DataFrame(rows, schema=SCHEMAS["rollouts"]))
        if self.step % 10 == 0:
            self._flush()

    def _rollout_row(self, group: Group, i: int, advantage: float) -> dict[str, Any]:
        s = group.samples[i]
        return {
            "run": self.run,
            "step": self.step,
            "problem_id": group.problem_id,
            "sample": i,
            "prompt": self.maker.texts[group.index],
            "completion": s.text,
            "reward": s.reward,
            "advantage": advantage,
            "status": s.status,
            "tokens": len(s.token_ids),
            "truncated": s.truncated,
            "weights_version": group.version,
        }

    def _flush(self) -> None:
        for table, frames in self._rows.items():
            if frames:
                self.store.append(table, pl.concat(frames))
        self._rows = {"steps": [], "rollouts": []}

    def _result(self, seconds: float) -> TrainingResult:
        total = dict(self.clock.total)
        inside = total.get("engine", 0.0) + total.get("torch", 0.0)
        return TrainingResult(
            self.run,
            self.folder / "checkpoints" / f"step-{self.step}",
            self.step,
            self.first_ratio_error,
            self.tokens / seconds if seconds else 0.0,
            1 - inside / seconds if seconds else 0.0,
            total,
        )


def _rollout_metrics(groups: list[Group], estimate: Estimate, tally: Tally) -> dict[str, float]:
    samples = [s for g in groups for s in g.samples]
    newest = max((g.version for g in groups), default=0)
    n = max(1, len(samples))
    rewards = [s.reward for s in samples if s.reward == s.reward]
    lengths = {status: [len(s.token_ids) for s in samples if s.status == status] for status in ("correct", "wrong")}
    spread = [torch.tensor([s.reward for s in g.samples]).nan_to_num(0.0).std(correction=0) for g in groups]
    return {
        "reward": sum(rewards) / max(1, len(rewards)),
        "success": sum(s.status == "correct" for s in samples) / n,
        "group_std": float(torch.stack(spread).mean()) if spread else 0.0,
        "zero_std_share": tally.constant / max(1, tally.offered)
        if tally.constant
        else 1 - float(estimate.live.float().mean())
        if groups
        else 1.0,
        "truncated_share": sum(s.truncated for s in samples) / n,
        "unverifiable_share": sum(s.status in ("unverifiable", "timeout") for s in samples) / n,
        "length": sum(len(s.token_ids) for s in samples) / n,
        **{f"length_{k}": sum(v) / len(v) for k, v in lengths.items() if v},
        **{f"reward_{part}": sum(v for s in samples if (v := s.parts[part]) == v) / n for part in PARTS if samples},
        "groups": len(groups),
        "groups_dropped": tally.constant + tally.unverified,
        "refills": tally.refills,
        "wasted_tokens": tally.wasted_tokens,
        "stale_groups": tally.stale,
        "waited_share": sum(g.version < newest for g in groups) / max(1, len(groups)),
    }
