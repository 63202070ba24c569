"""Rows on their way into the store: the kernel has each when `add` returns, and a table gets them as parts later.

    STORE/journal/<table>/<time>-<count>-<random>.jsonl     a line a row: CRC-32 of the row, the row as JSON

A journal file becomes one part, of the same name, so that folding it twice changes nothing. Its writer holds `flock`
on it, which the kernel frees with the process: what a dead writer left is folded when the store is next opened. A line
that was cut off fails its sum and is left out. A kill loses no row whose `add` has returned; the loss of power may
lose those of the last second.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from assay.pipelines.errors import StoreError

__all__ = ["Journal", "recover"]

FOLD_ROWS = 4096
FOLD_SECONDS = 60.0
SYNC_SECONDS = 1.0

Row = Mapping[str, Any]
Fold = Callable[[str, list[Row]], None]
"""Makes a part of this name from these rows; does nothing when it is there already."""


class Journal:
    """One writer's journal of one table; a context manager that folds what is left.

    Args:
        folder: the table's journals.
        fold: called with a name and rows about once a minute, and at the end.
        new_name: makes the name of a part.
    """

    def __init__(self, folder: Path, fold: Fold, new_name: Callable[[], str]) -> None:
        self.folder, self._fold, self._new_name = folder, fold, new_name
        self._rows: list[Row] = []
        self._file: IO[bytes] | None = None
        self._began = self._synced = 0.0

    def add(self, row: Row) -> None:
        """Record a row, of JSON values; a kill after the return does not lose it.

        Raises:
            StoreError: the disk is full.
        """
        body = orjson.dumps(row)
        self._file = self._file or self._start()
        _write(self._file, b"%08x %s\n" % (zlib.crc32(body), body))
        self._rows.append(row)
        now = time.monotonic()
        if len(self._rows) >= FOLD_ROWS or now - self._began > FOLD_SECONDS:
            self.fold()
        elif now - self._synced > SYNC_SECONDS:
            os.fdatasync(self._file.fileno())
            self._synced = now

    def fold(self) -> None:
        """Make a part of the rows so far."""
        if self._file is not None:
            path = Path(self._file.name)
            self._fold(path.stem, self._rows)
            path.unlink()
            self._file.close()
            self._rows, self._file = [], None

    def _start(self) -> IO[bytes]:
        with _guard(self.folder):
            file = (self.folder / f"{self._new_name()}.jsonl").open("xb", buffering=0)
            fcntl.flock(file, fcntl.LOCK_EX)
        self._began = self._synced = time.monotonic()
        return file

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.fold()


def recover(folder: Path, fold: Fold) -> None:
    """Fold the journals that dead writers left in `folder`; those of live ones stay, and all where it is read-only."""
    if not any(folder.glob("*.jsonl")) or not os.access(folder, os.W_OK):
        return
    with _guard(folder):
        for path in sorted(folder.glob("*.jsonl")):
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                fold(path.stem, list(_rows(file)))
                path.unlink()


def _write(file: IO[bytes], line: bytes) -> None:
    try:
        whole, why = file.write(line) == len(line), "the disk is full"
    except OSError as error:
        whole, why = False, str(error)
    if not whole:
        raise StoreError(f"{file.name}: {why}. Make room and start again: what was recorded before is kept.")


def _rows(file: IO[bytes]) -> Iterator[Row]:
    for line in file:
        body = line[9:].rstrip(b"\n")
        if line[:9] == b"%08x " % zlib.crc32(body):
            yield orjson.loads(body)


@contextmanager
def _guard(folder: Path) -> Iterator[None]:
    """One at a time makes or takes over journals, so that none is taken between its making and its lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".guard").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
