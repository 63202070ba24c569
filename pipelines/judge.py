"""A model as judge: of contamination, where it reads a problem beside a benchmark's item, and of answers.

Its words on problems are recorded as generations under the pair's own hash, those on answers with the verdicts, so that
nothing is judged twice. A word that is neither yes nor no is said to be that, and never taken for a no.

Not protected from: an answer that is written to persuade its judge.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

from assay.pipelines.engines import Request, Sampling
from assay.pipelines.prompts import opens_thinking, render

if TYPE_CHECKING:
    from assay.pipelines.engines import Engine
    from assay.pipelines.store import Store

__all__ = ["PROMPT", "judge", "judge_answers", "verdict_of"]

PROMPT = """Two problems follow. Are they the same problem, perhaps reworded, translated, or with other names for the \
same things, so that whoever knows the answer of one knows the answer of the other?

Problem 1:
{problem}

Problem 2:
{item}

Answer with one word, yes or no."""
ANSWER_PROMPT = """A reference answer and the end of a response to the same question follow. Is the response's final \
answer the same as the reference, in whatever words or notation?

Reference answer:
{gold}

Response:
{response}

Answer with one word, yes or no."""
RESPONSE_CHARS = 4_000
JUDGE_TOKENS = 2_048
YES, NO = ("yes", "true", "same"), ("no", "false", "different")
WORD = re.compile(rf"(?i)\b(?:{'|'.join(YES + NO)})\b")


def verdict_of(text: str, starts_in_thinking: bool = False) -> bool | None:
    """True for yes, False for no, None for anything else; `starts_in_thinking`: the prompt opened the thinking.

    What counts comes after the thinking; "Yes.", "**yes**" and "The answer is: no" are clear, two different words are
    not, and a thought without an end says nothing.
    """
    _, closed, after = text.rpartition("</think>")
    if (starts_in_thinking or "<think>" in text) and not closed:
        return None
    found = {word.lower() in YES for word in WORD.findall(after if closed else text)}
    return found.pop() if len(found) == 1 else None


def judge(
    store: Store, engine: Engine, pairs: Sequence[tuple[str, str]], max_tokens: int, mode: str = "think"
) -> list[bool | None]:
    """The word on each (problem, benchmark item), greedily decoded; recorded ones cost nothing.

    A pair that does not fit into the model's length has no verdict.
    """
    from assay.pipelines import generate

    names = ["judge-" + hashlib.sha256("\0".join(pair).encode()).hexdigest()[:16] for pair in pairs]
    texts = [PROMPT.format(problem=problem, item=item) for problem, item in pairs]
    asked = pl.DataFrame({"id": names, "problem": texts}, schema={"id": pl.String, "problem": pl.String}).unique("id")
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
    rows = generate.sample(store, engine, asked, mode=mode, samples=1, sampling=sampling)
    opened = opens_thinking(engine.tokenizer, mode)
    words = {row["problem_id"]: verdict_of(row["text"] or "", opened) for row in rows.iter_rows(named=True)}
    return [words.get(name) for name in names]


def judge_answers(engine: Engine, pairs: Sequence[tuple[str, str]]) -> list[tuple[bool | None, str]]:
    """The word on each (gold, response) and the judge's text, greedily decoded; equal pairs are judged once."""
    sampling = Sampling(temperature=0.0, max_tokens=JUDGE_TOKENS)
    texts = {pair: ANSWER_PROMPT.format(gold=pair[0], response=pair[1][-RESPONSE_CHARS:]) for pair in pairs}
    prompts = {pair: render(engine.tokenizer, text) for pair, text in texts.items()}
    fitting = [pair for pair, prompt in prompts.items() if len(prompt) < engine.max_model_len]
    done = engine.generate([Request(str(i), prompts[pair], sampling, 0) for i, pair in enumerate(fitting)])
    said, opened = {pair: completion.text for pair, completion in zip(fitting, done)}, opens_thinking(engine.tokenizer)
    return [(verdict_of(said.get(pair, ""), opened), said.get(pair, "too long for the judge")) for pair in pairs]
