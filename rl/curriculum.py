"""Which problems a step samples, and which groups it trains on; both with a state that JSON holds exactly."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from assay.pipelines.errors import AssayWarning, RecipeError

__all__ = ["Curriculum", "GroupBuffer", "Tally"]

Group = TypeVar("Group")


class Curriculum:
    """Draws problems from easy to hard, and more often those that are not yet solved (Kimi k1.5, section 2.3.4).

    Args:
        problem_ids: n unique ids; draws are positions in this list.
        pass_rates: known success rates in [0, 1], or None (or NaN), which counts as 0.5.
        order: `easy_to_hard` sorts the problems by pass rate into `buckets` of equal size; the first is open at the
            start and the others open one after another, all of them after `full_after` draws. Open buckets stay open.
            `none` opens everything at once.
        prioritised: draw in proportion to 1 - success rate, never below `floor`, without replacement within a draw.
            Otherwise the least drawn come first, ties at random: an epoch visits every problem once.
        decay: what an update leaves of the old success rate: s = decay s + (1 - decay) observed.
        full_after: draws until every bucket is open; by default one a problem.
    """

    def __init__(
        self,
        problem_ids: Sequence[str],
        pass_rates: Sequence[float | None],
        *,
        order: str = "easy_to_hard",
        prioritised: bool = True,
        decay: float = 0.8,
        seed: int = 0,
        floor: float = 0.05,
        buckets: int = 7,
        full_after: int | None = None,
    ) -> None:
        self.ids = list(problem_ids)
        if not self.ids or len(self.ids) != len(pass_rates) or len(set(self.ids)) != len(self.ids):
            raise ValueError(f"curriculum: {len(self.ids)} ids (unique, at least one), {len(pass_rates)} pass rates.")
        if order not in ("easy_to_hard", "none") or not 0 <= decay < 1 or not 0 < floor <= 1 or buckets < 1:
            raise RecipeError(
                f"curriculum: order {order!r} (easy_to_hard, none), decay {decay} (0 to below 1), "
                f"floor {floor} (above 0, at most 1), buckets {buckets} (at least 1)."
            )
        self.order, self.prioritised, self.decay, self.floor = order, prioritised, decay, floor
        self.buckets, self.full_after = min(buckets, len(self.ids)), full_after or len(self.ids)
        rates = np.array([np.nan if rate is None else rate for rate in pass_rates], dtype=np.float64)
        self.success = np.where(np.isnan(rates), 0.5, rates)
        if self.success.min() < 0 or self.success.max() > 1:
            raise ValueError("curriculum: a pass rate is outside 0 to 1.")
        self._easiest_first = np.argsort(-self.success, kind="stable")
        self.draws = np.zeros(len(self.ids), dtype=np.int64)
        self._rng = np.random.default_rng(seed)

    @property
    def open_buckets(self) -> int:
        """How many difficulty buckets may be drawn from now."""
        if self.order == "none":
            return self.buckets
        return min(self.buckets, 1 + int(self.draws.sum()) * (self.buckets - 1) // self.full_after)

    def sample(self, n: int) -> list[int]:
        """Positions of the next `n` problems; distinct as far as enough buckets are open, then again from the start."""
        chosen: list[int] = []
        while len(chosen) < n:
            chosen += self._draw(n - len(chosen))
        return chosen

    def _draw(self, n: int) -> list[int]:
        """Up to `n` distinct open problems; Gumbel keys are weighted sampling without replacement."""
        count = -(-len(self.ids) * self.open_buckets // self.buckets)
        window = self._easiest_first[:count]
        if self.prioritised:
            keys = np.log(np.maximum(1 - self.success[window], self.floor)) + self._rng.gumbel(size=count)
        else:
            keys = self._rng.random(count) - self.draws[window]
        chosen = window[np.argsort(-keys, kind="stable")[:n]]
        self.draws[chosen] += 1
        return chosen.tolist()

    def update(self, indices: Sequence[int], successes: Sequence[float]) -> None:
        """Take in observed success rates (the mean of a group); NaN, no verdict at all, changes nothing."""
        for index, observed in zip(indices, successes, strict=True):
            if not np.isnan(observed):
                self.success[index] = self.decay * self.success[index] + (1 - self.decay) * observed

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs to draw what the uninterrupted one would."""
        return {
            "ids": list(self.ids),
            "success": self.success.tolist(),
            "draws": self.draws.tolist(),
            "easiest_first": self._easiest_first.tolist(),
            "rng": copy.deepcopy(self._rng.bit_generator.state),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`; ValueError where it belongs to another list of problems."""
        if state["ids"] != self.ids:
            raise ValueError(
                f"curriculum: the saved state is of {len(state['ids'])} other problems than these "
                f"{len(self.ids)}, or in another order; resume with the data of the run."
            )
        self.success = np.array(state["success"], dtype=np.float64)
        self.draws = np.array(state["draws"], dtype=np.int64)
        self._easiest_first = np.array(state["easiest_first"], dtype=np.int64)
        self._rng.bit_generator.state = copy.deepcopy(state["rng"])


@dataclass
class Tally:
    """What one step's dynamic sampling did; `wasted_tokens` are those of groups dropped at once."""

    offered: int = 0
    constant: int = 0
    unverified: int = 0
    stale: int = 0
    stale_tokens: int = 0
    wasted_tokens: int = 0
    refills: int = 0


class GroupBuffer(Generic[Group]):
    """Fills a step with groups that carry a gradient, and keeps the surplus for the next (DAPO, section 3.2).

    `size` groups a step; `max_refills` rounds of sampling beyond the first; `drop_constant` False keeps
    every group. The loop: `while buffer.wants: ...sample buffer.wants groups, offer each...;
    buffer.end_round()`, then `take()`.
    """

    def __init__(self, size: int, max_refills: int = 4, *, drop_constant: bool = True) -> None:
        if size < 1 or max_refills < 0:
            raise RecipeError(f"dynamic sampling: size {size} (at least 1), max_refills {max_refills} (at least 0).")
        self.size, self.max_refills, self.drop_constant = size, max_refills, drop_constant
        self._held: list[tuple[int, int, Group]] = []
        self._rounds, self._tally = 0, Tally()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def wants(self) -> int:
        """Groups still missing, or 0 when the step is full or the cap on refills is reached."""
        return max(0, self.size - len(self._held)) if self._rounds <= self.max_refills else 0

    def offer(self, group: Group, rewards: Sequence[float], *, version: int = 0, tokens: int = 0) -> bool:
        """Keep `group` unless its rewards (or accuracies), NaN ignored, are all the same (0, 1, 0.5, or none at all).

        `version` is that of the weights that sampled it, `tokens` what it cost. Returns whether it was kept.
        """
        verdicts = {float(reward) for reward in rewards if not np.isnan(reward)}
        self._tally.offered += 1
        if len(verdicts) < 2 and self.drop_constant:
            self._tally.constant += len(verdicts)
            self._tally.unverified += not verdicts
            self._tally.wasted_tokens += tokens
            return False
        self._held.append((version, tokens, group))
        return True

    def end_round(self) -> None:
        """A round of sampling is over; every one after the first is a refill."""
        self._rounds += 1
        self._tally.refills = max(0, self._rounds - 1)

    def discard_older(self, version: int) -> int:
        """Drop held groups sampled by weights older than `version`, and count them."""
        stale = [held for held in self._held if held[0] < version]
        self._held = [held for held in self._held if held[0] >= version]
        self.count_stale([tokens for _, tokens, _ in stale])
        return len(stale)

    def count_stale(self, tokens: Sequence[int]) -> None:
        """Groups of so many tokens each were dropped because they were too old."""
        self._tally.stale += len(tokens)
        self._tally.stale_tokens += sum(tokens)

    def take(self) -> tuple[list[Group], Tally]:
        """The step's groups, oldest first, at most `size`, and its tally; the surplus stays.

        Fewer than `size` (the cap was reached, or the data ended) warns with the counts and hands out what
        there is.
        """
        taken, self._held = [group for _, _, group in self._held[: self.size]], self._held[self.size :]
        tally, self._tally, self._rounds = self._tally, Tally(), 0
        if len(taken) < self.size:
            said = f"dynamic sampling: {len(taken)} of {self.size} groups after {tally.refills} refills"
            why = f"{tally.constant} of {tally.offered} had constant rewards, {tally.unverified} no verdict"
            warnings.warn(f"{said}; {why}. The step goes on with these.", AssayWarning, stacklevel=2)
        return taken, tally

    def state(self) -> dict[str, Any]:
        """Held groups with versions and tokens, and the counts; JSON where the groups are."""
        return {
            "held": [list(held) for held in self._held],
            "rounds": self._rounds,
            "tally": asdict(self._tally),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self._held = [(version, tokens, group) for version, tokens, group in state["held"]]
        self._rounds, self._tally = state["rounds"], Tally(**state["tally"])
