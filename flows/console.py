"""What a person sees while a job runs: one progress line a step, and what each step left."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rich.console
import rich.progress

from assay.pipelines.locking import in_words

__all__ = ["Bar", "Console"]


class Console:
    """Writes to the terminal; in a log file the bars become plain lines."""

    def __init__(self, quiet: bool = False) -> None:
        self.rich = rich.console.Console(quiet=quiet, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line."""
        self.rich.print(text)

    def heading(self, text: str) -> None:
        """A line that stands out."""
        self.rich.print(f"\n[bold]{text}[/bold]")

    @contextmanager
    def progress(self) -> Iterator[Bar]:
        """A bar for steps whose length is told as they run."""
        columns = (
            rich.progress.TextColumn("  {task.description:<16}"),
            rich.progress.BarColumn(24),
            rich.progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(),
            rich.progress.TextColumn("{task.fields[note]}"),
        )
        with rich.progress.Progress(*columns, console=self.rich, transient=True) as progress:
            yield Bar(progress, self)


class Bar:
    """The running step's bar; `done` replaces it by a line that stays."""

    def __init__(self, progress: rich.progress.Progress, console: Console) -> None:
        self._progress, self._console = progress, console
        self._task: rich.progress.TaskID | None = None
        self._name = ""
        self._began = self._first = self._said = 0.0

    def start(self, name: str, total: int = 1) -> None:
        """Begin a step."""
        self._remove()
        self._name, self._began = name, time.monotonic()
        self._first = self._began
        self._task = self._progress.add_task(name, total=total, note="")

    def update(self, done: int, total: int, note: str = "") -> None:
        """So far `done` of `total`; a note before the first stays, the plan; in a log, a line every ten seconds."""
        now = time.monotonic()
        if done == 0 and note:
            self._console.say(f"  {self._name:<16} {note}")
            self._first, self._said, note = now, now, ""
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total, note=note)
        if done and not self._console.rich.is_terminal and now - self._said > 10:
            self._said, left = now, in_words((now - self._first) * (total - done) / done)
            self._console.say(f"  {self._name:<16} {done:,}/{total:,} {note} {left} left")

    def done(self, row: dict[str, Any]) -> None:
        """The step's row of the funnel."""
        reasons = ", ".join(f"{k} {v}" for k, v in json.loads(row["reasons"]).items())
        self.end(f"{row['rows_in']:>6,} -> {row['rows_out']:>6,}  {reasons}")

    def end(self, text: str) -> None:
        """A line with the step's outcome and its seconds."""
        self._remove()
        self._console.say(f"  {self._name:<16} {text}  [dim]{time.monotonic() - self._began:.1f} s[/dim]")

    def _remove(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
