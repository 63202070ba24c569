"""Where a loop's time goes, by phase."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Clock"]


class Clock:
    """Seconds spent in named phases; `lap` hands them out and starts anew, `total` keeps their sum."""

    def __init__(self) -> None:
        self._lap: dict[str, float] = defaultdict(float)
        self.total: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a block under the name `phase`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - began)

    def add(self, phase: str, seconds: float) -> None:
        """Count seconds that were measured elsewhere."""
        self._lap[phase] += seconds
        self.total[phase] += seconds

    def forget(self) -> None:
        """Start anew, the totals too."""
        self._lap.clear()
        self.total.clear()

    def lap(self) -> dict[str, float]:
        """Seconds by phase since the last lap."""
        lap, self._lap = dict(self._lap), defaultdict(float)
        return lap
