"""Accuracy against the thinking budget, from one long generation a sample.

Qwen3's procedure on token ids: generate up to b tokens; an ended turn is done; an ended thinking continues
unchanged; an unended one gets the stop text's token ids and answers. A prefix of a sample at a large budget
is a sample at a small one, so `ids[:b]` serves every smaller b and only the forced answers are sampled again.
s1's extension strips the end of thinking and appends "Wait" instead, which only makes the long generation
longer. Budget 0 is the direct mode.

Cost, without extensions: beyond the longest budget alone, a sample takes at most one answer for budget 0, one for each
budget that cuts its thinking, and one where the long generation runs on past the largest. With answers of at most A
tokens, F such answers a sample (at most one a budget) and C tokens a sample at the longest budget alone, a sweep costs
at most 1 + A F / C times the latter. So it stays within 1.5
- where A F <= C / 2;
- so, where all thinking is longer than the largest of m budgets, L: where m A <= L / 2;
- for any model, without budget 0, where the j-th budget is at least 2 j A: a sample that j budgets cut has thought
  longer than the j-th, and took j answers.

Sources: Qwen3 quick start and report (2025), section on thinking budgets; s1, arXiv 2501.19393, budget
forcing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import polars as pl

from assay.eval.curves import ITEMS, curves
from assay.eval.sampler import Sampler, Wanted
from assay.pipelines.engines import Engine, OnDone, Sampling
from assay.pipelines.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from assay.pipelines.equivalence import Policy
    from assay.pipelines.store import Store

__all__ = ["OUTCOMES", "QWEN3_STOP", "STOPS", "Cost", "Grader", "cost", "summarise", "sweep"]

QWEN3_STOP = ("\n\nConsidering the limited time by the user, I have to give the solution based on the "
              "thinking directly now.\n</think>\n\n")
STOPS = {"qwen3": QWEN3_STOP, "s1": "\n</think>\n\nFinal Answer:"}
PLAIN = Sampling()
Row = dict[str, Any]
LIMIT = 1.5  # of a sweep's tokens over those of its longest budget alone
OUTCOMES = ("natural", "forced", "truncated", "empty")
SCHEMA = {"problem_id": pl.String, "budget": pl.Int32, "sample": pl.Int32, "outcome": pl.String,
          "forced": pl.Boolean, "status": pl.String, "extracted": pl.String, "tokens": pl.Int32,
          "thinking_tokens": pl.Int32, "answer_tokens": pl.Int32, "new_tokens": pl.Int32,
          "anew_tokens": pl.Int32, "answer": pl.String}


class Grader(Protocol):
    """What `pipelines.verify.Verifier` offers."""

    def grade_many(self, pairs: list[tuple[str, str]], policies: Policy | None) -> Sequence[Any]:
        """For (gold, completion) pairs, in order, objects with `status` and `extracted`; None is the default policy."""


def sweep(engine: Engine, problems: pl.DataFrame, budgets: Iterable[int], n: int, *, verifier: Grader,
          answer_tokens: int, sampling: Sampling = PLAIN, stop_text: str = QWEN3_STOP,
          think_end: str = "</think>", extensions: int = 0, wait_text: str = "Wait",
          instruction: str | None = None, seed: int = 0, on_done: OnDone | None = None,
          store: Store | None = None, procedure: str = "reuse", policy: Policy | None = None) -> pl.DataFrame:
    """Every problem, n samples, at every budget.

    A sample at a budget is the same whatever other budgets are asked for, as long as the engine's completion
    is a function of prompt and seed whose prefix does not depend on `max_tokens`.

    Args:
        problems: `id, problem, answer`. budgets: thinking tokens, those of the opening tag included where the
        model writes it; 0 is direct mode. n: samples a problem and budget. verifier: grades the answer, the
        text behind the end of thinking, against `answer` under `policy`. answer_tokens: the limit of an answer after a
        thinking, at every budget; one without any thinking has the budget itself. sampling: its `max_tokens` is not
        used. stop_text: ends an unended thinking; appended as token ids. extensions: how often an end of thinking
        within the largest budget is replaced by `wait_text`, whose tokens count towards the budget. on_done: sees
        every completion as the engine finishes it. store: where completions are recorded and looked up, so that a
        sweep that was cut off goes on; the long generations are those of mode `think` with `max_tokens` of the
        largest budget and an answer. procedure: `reuse`, or `vllm`: its own `thinking_token_budget`, every budget
        anew, on an engine that was started with this `stop_text`.

    Returns:
        One row a problem, budget and sample: `problem_id, budget, sample`; `outcome`: natural (the model
        ended its thinking, or had none to end), forced (the budget did), truncated (the answer hit its limit;
        status truncated, never graded) or empty (nothing but blanks was answered); `forced`; `status` and
        `extracted` of the verdict; `tokens` of the completion, appended ones included; `thinking_tokens`,
        `answer_tokens`; `new_tokens`, sampled for this row (the long generation counts in the largest
        budget's); `anew_tokens`, what sampling the row alone would have cost: up to the budget, then the answer;
        `answer`, the text that was graded.

    Raises:
        ValueError: no budgets, a negative one, n or answer_tokens below 1, duplicate ids.
        EngineError: a prompt, the largest budget and the answer do not fit into the engine's `max_model_len`; or the
            tokens of the rows are not those that the engine handed out.
    """
    levels, sampler = _check(problems, budgets, n, answer_tokens), Sampler(engine, store, seed, on_done)
    job = _Sweep(sampler, sampling, answer_tokens, stop_text, think_end, wait_text, instruction)
    answers, thinking = job.direct(problems, n) if levels[0] == 0 else [], [b for b in levels if b > 0]
    if procedure == "vllm":
        answers += [a for budget in thinking for a in job.engines_own(problems, n, budget)]
    elif thinking:
        chains = job.chains(problems, n, levels[-1])
        for turn in range(extensions):
            job.extend(chains, levels[-1], turn)
        answers += job.answers(chains, thinking)
    if (stated := sum(a["new_tokens"] for a in answers)) != sampler.tokens:
        raise EngineError(f"the sweep's rows count {stated:,} new tokens and its completions hold {sampler.tokens:,}")
    answers.sort(key=lambda a: (a["problem_id"], a["budget"], a["sample"]))
    grade = partial(verifier.grade_many, policies=policy)
    return pl.DataFrame(_graded(answers, dict(zip(problems["id"], problems["answer"])), grade), schema=SCHEMA)


class Cost(NamedTuple):
    """Tokens a sweep sampled, those of its longest budget alone, and of every budget generated anew.

    `answers` are those that the longest alone would not have sampled, `thinking` are its tokens of thinking.
    """

    sampled: int
    longest: int
    anew: int
    answers: int = 0
    thinking: int = 0

    def __str__(self) -> str:
        times = [f"{count / self.longest:.2f}" for count in (self.sampled, self.anew)]
        return (f"{self.sampled:,} tokens sampled, {times[0]} times the longest budget alone ({self.longest:,}); "
                f"each budget anew: {self.anew:,}, {times[1]} times") + self._shorter()

    def _shorter(self) -> str:
        """The length of answers that is sure to keep the sweep within its limit, where it is above."""
        if not self.answers or self.sampled <= LIMIT * self.longest:
            return ""
        length = int((LIMIT - 1) * self.thinking / self.answers)
        return (f"; answer_tokens = {length:,}" if length else "; fewer budgets") + f" would keep it within {LIMIT:g}"


def cost(samples: pl.DataFrame) -> Cost:
    """What the rows of a `sweep` cost, recorded completions included."""
    longest = samples.filter(pl.col("budget") == pl.col("budget").max())
    ran_on = (pl.col("budget") == pl.col("budget").max()) & (pl.col("new_tokens") > pl.col("budget"))
    own = samples.filter((pl.col("budget") == 0) | pl.col("forced") | ran_on).height
    sampled, alone, anew, thinking = (int(frame[name].to_numpy().sum()) for frame, name in (
        (samples, "new_tokens"), (longest, "anew_tokens"), (samples, "anew_tokens"), (longest, "thinking_tokens")))
    return Cost(sampled, alone, anew, own, thinking)


def summarise(samples: pl.DataFrame, ks: Iterable[int], confidence: float = 0.95) -> pl.DataFrame:
    """pass@k at every budget, how thinking ended there, and what it cost.

    Args:
        samples: rows of `sweep`.

    Returns:
        `budget, k, items, estimate, low, high, unscored_as_wrong` (the estimate if every truncated,
        unverifiable and timed-out sample were wrong: a lower bound), shares `natural, forced, truncated,
        empty`, mean `tokens` and `thinking_tokens` a sample, and the sums `new_tokens` and `anew_tokens`.
        `items` have k scored samples; the estimate is null where none has.

    Raises:
        ValueError: a k above the samples of a problem and budget.
    """
    ks, unknown = [int(k) for k in ks], dict.fromkeys(("correct", "answers", "scores"))
    items = samples.group_by("budget", "problem_id", maintain_order=True).agg(
        taken=pl.len(), n=pl.col("status").is_in(["correct", "wrong"]).sum(), c=(pl.col("status") == "correct").sum()
    ).select("taken", "n", "c", **unknown, benchmark=pl.lit(""), model="budget", item="problem_id").cast(ITEMS)  # type: ignore[arg-type]  # fmt: skip
    if not 1 <= min(ks) <= max(ks) <= (fewest := min(items["taken"].to_list())):
        raise ValueError(f"k = {max(ks)}, but a problem has {fewest} samples at a budget; ask for k up to it.")
    scored, bound = (curves(frame, ks, confidence).filter(metric="pass@k") for frame in (
        items, items.with_columns(n="taken")))  # fmt: skip
    bound = bound.select("model", "k", unscored_as_wrong="estimate")
    ends = samples.group_by("budget").agg(
        *[(pl.col("outcome") == name).mean().alias(name) for name in OUTCOMES],
        pl.col("tokens", "thinking_tokens").mean(), pl.col("new_tokens", "anew_tokens").sum())  # fmt: skip
    found = bound.join(scored, on=["model", "k"], how="left").with_columns(pl.col("model").cast(pl.Int32))
    joined = found.join(ends, left_on="model", right_on="budget").sort("model", "k")
    return joined.select(pl.col("model").alias("budget"), "k", pl.col("items").fill_null(0), "estimate", "low", "high",
                         "unscored_as_wrong", *ends.columns[1:])  # fmt: skip


@dataclass
class _Chain:
    """The long generation of one sample, which every smaller budget reads.

    `end` is where the end of thinking begins and ends in `ids`; `sampled` counts tokens that were generated,
    the thrown away included; `waits` are the spans of `ids` that were appended.
    """

    problem: str
    sample: int
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    finished: bool = False
    end: tuple[int, int] | None = None
    sampled: int = 0
    waits: list[tuple[int, int]] = field(default_factory=list)

    def cost(self, length: int) -> int:
        """Tokens of the first `length` that a model had to generate."""
        return length - sum(max(0, min(length, end) - begin) for begin, end in self.waits)

    def forced_at(self, budget: int) -> bool:
        """Whether thinking is still going on after `budget` tokens."""
        return len(self.ids) > budget or not self.finished if self.end is None else self.end[1] > budget


@dataclass(frozen=True)
class _Sweep:
    """What every sample of one sweep shares, and the waves of requests to the engine."""

    sampler: Sampler
    sampling: Sampling
    answer_tokens: int
    stop_text: str
    think_end: str
    wait_text: str
    instruction: str | None

    @property
    def engine(self) -> Engine:
        return self.sampler.engine

    def direct(self, problems: pl.DataFrame, n: int) -> list[Row]:
        """Budget 0: the prompt holds an empty thinking block, all that comes is the answer."""
        wanted = [self._wanted(id, i, "direct", prompt, self.answer_tokens)
                  for id, prompt in self._prompts(problems, "direct", 0) for i in range(n)]
        return [self._answer(w.problem, 0, w.sample, False, 0, 0, c.token_ids, c.finish_reason == "length",
                             len(c.token_ids), len(c.token_ids))
                for w, c in zip(wanted, self.sampler.complete(wanted))]

    def engines_own(self, problems: pl.DataFrame, n: int, budget: int) -> list[Row]:
        """Every sample at `budget` in one request: the engine counts the thinking and forces the stop text.

        vLLM counts from behind the opening tag, this sweep from the first token that the model writes.
        """
        stop, out = self._encode(self.stop_text), []
        open_tag = self.think_end.replace("/", "")
        for id, prompt in self._prompts(problems, "think", budget):
            opened = open_tag in self.engine.tokenizer.decode(prompt[-8:], skip_special_tokens=False)
            limit = replace(self.sampling, max_tokens=budget + len(stop) + self.answer_tokens,
                            thinking_budget=budget - (0 if opened else len(self._encode(open_tag))))
            out += [Wanted(id, i, f"budget={budget}", prompt, limit, f" vllm {self.stop_text}") for i in range(n)]
        chains = [_Chain(w.problem, w.sample, w.prompt) for w in out]
        self._grow(chains, out)
        forced = [c.ids[budget : budget + len(stop)] == stop for c in chains]
        # vLLM 0.32 forces its text also where thinking ended by itself just before: sample on from there.
        undone = [c for c, f in zip(chains, forced) if f and c.end is not None and c.end[1] <= budget]
        for c in undone:
            c.ids = c.ids[:budget]
        self._grow(undone, [self._more(c, f"budget={budget}", budget) for c in undone])
        before = budget + len(stop)
        return [self._answer(c.problem, budget, c.sample, True, budget, before, c.ids[before:], not c.finished,
                             c.sampled, len(c.ids))
                if f and (c.end is None or c.end[1] > budget) else self._own_end(c, budget, budget)
                for c, f in zip(chains, forced)]  # fmt: skip

    def chains(self, problems: pl.DataFrame, n: int, budget: int) -> list[_Chain]:
        """The long generations: `budget` tokens of thinking, and room for the answer if thinking ended."""
        prompts = self._prompts(problems, "think", budget)
        chains = [_Chain(id, i, prompt) for id, prompt in prompts for i in range(n)]
        self._grow(chains, [self._more(c, "think", budget) for c in chains])
        return chains

    def extend(self, chains: list[_Chain], budget: int, turn: int) -> None:
        """Replace every end of thinking within `budget` by the wait text and think on (s1)."""
        wait, growing = self._encode(self.wait_text), []
        for chain in chains:
            if chain.end is None or chain.end[1] > budget:
                continue
            begin = chain.end[0]
            chain.ids, chain.end, chain.finished = chain.ids[:begin] + wait, None, False
            chain.waits.append((begin, begin + len(wait)))
            growing += [chain] if len(chain.ids) < budget else []
        self._grow(growing, [self._more(c, f"wait={turn + 1}", budget) for c in growing])

    def answers(self, chains: list[_Chain], budgets: list[int]) -> list[Row]:
        """Every chain at every budget; only the answers to a forced end are sampled."""
        stop = self._encode(self.stop_text)
        forced = [(c, b) for c in chains for b in budgets if c.forced_at(b)]
        done = self.sampler.complete([
            self._wanted(c.problem, c.sample, f"budget={b}", c.prompt + c.ids[:b] + stop, self.answer_tokens)
            for c, b in forced])
        out = [self._own_end(c, b, budgets[-1]) for c in chains for b in budgets if not c.forced_at(b)]
        for (c, b), answer in zip(forced, done):
            size = len(answer.token_ids)
            new = size + (c.sampled if b == budgets[-1] else 0)
            out.append(self._answer(c.problem, b, c.sample, True, b, b + len(stop), answer.token_ids,
                                    answer.finish_reason == "length", new, c.cost(b) + size))
        return out

    def _own_end(self, c: _Chain, budget: int, largest: int) -> Row:
        """A turn that the model ended, or whose thinking it did: the answer is what follows, up to its limit."""
        begin = c.end[1] if c.end is not None else len(c.ids) if self._inside(c) else 0
        limit = budget if c.end is None else self.answer_tokens
        answer = c.ids[begin : begin + limit]
        cut = not c.finished or len(c.ids) > begin + limit
        alone = max(begin + len(answer), min(budget, len(c.ids)))
        return self._answer(c.problem, budget, c.sample, False, begin, begin, answer, cut,
                            c.sampled if budget == largest else 0, c.cost(alone))

    def _inside(self, c: _Chain) -> bool:
        """Whether the turn ended in the middle of thinking, so that nothing in it is an answer."""
        text = self.engine.tokenizer.decode(c.prompt + c.ids, skip_special_tokens=False)
        return text.count(self.think_end.replace("/", "")) > text.count(self.think_end)

    def _answer(self, problem: str, budget: int, sample: int, forced: bool, thinking: int, before: int,
                ids: list[int], cut: bool, new: int, anew: int) -> Row:  # fmt: skip
        """One sample at one budget, not graded yet; `before` tokens come before those of the answer."""
        text = self.engine.tokenizer.decode(ids, skip_special_tokens=True)
        ended = "forced" if forced else "natural"
        return {"problem_id": problem, "budget": budget, "sample": sample, "forced": forced, "answer": text,
                "thinking_tokens": thinking, "tokens": before + len(ids), "answer_tokens": len(ids),
                "outcome": "truncated" if cut else ended if text.strip() else "empty", "new_tokens": new,
                "anew_tokens": anew}  # fmt: skip

    def _more(self, c: _Chain, mode: str, budget: int) -> Wanted:
        """On from what the chain has, to the budget and an answer beyond it."""
        return self._wanted(c.problem, c.sample, mode, c.prompt + c.ids, budget + self.answer_tokens - len(c.ids))

    def _grow(self, chains: list[_Chain], wanted: list[Wanted]) -> None:
        for c, completion in zip(chains, self.sampler.complete(wanted)):
            c.ids = c.ids + list(completion.token_ids)
            c.finished, c.sampled = completion.finish_reason == "stop", c.sampled + len(completion.token_ids)
            c.end = _find(self.engine.tokenizer, c.ids, self.think_end)

    def _wanted(self, problem: str, sample: int, mode: str, prompt: list[int], limit: int) -> Wanted:
        return Wanted(problem, sample, mode, prompt, replace(self.sampling, max_tokens=limit))

    def _prompts(self, problems: pl.DataFrame, mode: str, budget: int) -> Iterator[tuple[str, list[int]]]:
        from assay.pipelines.prompts import render

        need = budget + (len(self._encode(self.stop_text)) if budget else 0) + self.answer_tokens
        for id, problem in problems.select("id", "problem").iter_rows():
            prompt = render(self.engine.tokenizer, problem, mode, self.instruction)
            if len(prompt) + need > self.engine.max_model_len:
                raise EngineError(
                    f"problem {id}: {len(prompt)} tokens of prompt and {need} for thinking, stop text and "
                    f"answer exceed max_model_len {self.engine.max_model_len}; raise it, or lower the "
                    "largest budget or answer_tokens.")
            yield id, prompt

    def _encode(self, text: str) -> list[int]:
        return list(self.engine.tokenizer.encode(text, add_special_tokens=False))


def _find(tokenizer: PreTrainedTokenizerBase, ids: list[int], mark: str) -> tuple[int, int] | None:
    """Where the first `mark` begins and ends in `ids`: by its id if it is one token, else by the text."""
    own = tokenizer.encode(mark, add_special_tokens=False)
    if len(own) == 1:
        return (ids.index(own[0]), ids.index(own[0]) + 1) if own[0] in ids else None
    at = tokenizer.decode(ids, skip_special_tokens=False).find(mark)
    if at < 0:
        return None
    end = _shortest(tokenizer, ids, lambda text: mark in text)
    return min(_shortest(tokenizer, ids, lambda text: len(text) > at) - 1, end - 1), end


def _shortest(tokenizer: PreTrainedTokenizerBase, ids: list[int], holds: Callable[[str], bool]) -> int:
    """Length of the shortest prefix of `ids` whose text `holds`, by bisection."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        found = holds(tokenizer.decode(ids[:middle], skip_special_tokens=False))
        low, high = (low, middle) if found else (middle + 1, high)
    return low


def _graded(answers: list[Row], golds: dict[str, str], grade: Callable[..., Sequence[Any]]) -> list[Row]:
    """The rows with their verdicts; equal (gold, answer) pairs are graded once, cut answers not at all."""
    asked = [None if a["outcome"] == "truncated" else (golds[a["problem_id"]], a["answer"]) for a in answers]
    pairs = list(dict.fromkeys(pair for pair in asked if pair))
    found = {pair: (v.status, v.extracted) for pair, v in zip(pairs, grade(pairs))}
    verdicts = [found[pair] if pair else ("truncated", None) for pair in asked]
    return [a | {"status": status, "extracted": extracted} for a, (status, extracted) in zip(answers, verdicts)]


def _check(problems: pl.DataFrame, budgets: Iterable[int], n: int, answer_tokens: int) -> list[int]:
    levels = sorted({int(b) for b in budgets})
    if not levels or levels[0] < 0:
        raise ValueError(f"budgets = {levels}; give tokens from 0 (direct mode) upwards.")
    if n < 1 or answer_tokens < 1:
        raise ValueError(f"n = {n}, answer_tokens = {answer_tokens}; both must be at least 1.")
    if problems.is_empty() or problems["id"].is_duplicated().any():
        raise ValueError(f"{problems.height} problems, {problems['id'].n_unique()} ids; give each its own.")
    return levels
