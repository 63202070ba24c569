"""An optional judge of contamination: a model that reads a problem beside a benchmark's item.

The answers are recorded as generations under the pair's own hash, so that no pair is judged twice. An answer that is
neither yes nor no is said to be that, and never taken for a no.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

from assay.pipelines.engines import Sampling

if TYPE_CHECKING:
    from assay.pipelines.engines import Engine
    from assay.pipelines.store import Store

__all__ = ["PROMPT", "judge", "verdict_of"]

PROMPT = """Two problems follow. Are they the same problem, perhaps reworded, translated, or with other names for the \
same things, so that whoever knows the answer of one knows the answer of the other?

Problem 1:
{problem}

Problem 2:
{item}

Answer with one word, yes or no."""
YES, NO = ("yes", "true", "same"), ("no", "false", "different")
WORD = re.compile(rf"(?i)\b(?:{'|'.join(YES + NO)})\b")


def verdict_of(text: str) -> bool | None:
    """True for yes, False for no, None for anything else.

    What counts comes after the thinking; "Yes.", "**yes**" and "The answer is: no" are clear, two different words are
    not, and a thought without an end says nothing.
    """
    _, closed, after = text.rpartition("</think>")
    if "<think>" in text and not closed:
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
    words = {row["problem_id"]: verdict_of(row["text"] or "") for row in rows.iter_rows(named=True)}
    return [words.get(name) for name in names]
