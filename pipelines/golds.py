"""What a problem's completions are graded against: its answer or its tests, under the policy of its source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import polars as pl

from assay.pipelines.equivalence import Policy

__all__ = ["Gold", "golds", "with_policies"]


class Gold(NamedTuple):
    """An answer, or the tests of a program, and the policy to grade under."""

    text: str
    policy: Policy

    @property
    def answer(self) -> str:
        """"" for a program."""
        return "" if self.policy.verifier == "code" else self.text


def golds(problems: pl.DataFrame, policy: Policy | None = None) -> list[Gold]:
    """Of every row; a missing answer is "".

    Args:
        problems: `answer`; and where they are there `policy` (see `with_policies`), `kind` and `tests`:
            a row of kind `code` is graded by its tests.
        policy: of rows without one.
    """
    names = ("answer", "policy", "kind", "tests")
    found = problems.select(pl.col(name) if name in problems.columns else pl.lit(None).alias(name) for name in names)
    return [_gold(policy or Policy(), *row) for row in found.iter_rows()]


def _gold(policy: Policy, answer: str | None, own: str | None, kind: str | None, tests: str | None) -> Gold:
    policy = Policy(**json.loads(own)) if own else policy
    return Gold(tests or "", replace(policy, verifier="code")) if kind == "code" else Gold(answer or "", policy)


def with_policies(problems: pl.DataFrame, sources: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """With `policy`, JSON of what the sources of a recipe, by `name`, say under `policy`."""
    policies = {source["name"]: json.dumps(source.get("policy") or {}) for source in sources}
    return problems.with_columns(policy=pl.col("source").replace_strict(policies, default="{}", return_dtype=pl.String))
