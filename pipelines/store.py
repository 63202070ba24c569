"""The store: a folder of Parquet part files that are only ever added, read in place by polars and DuckDB.

    STORE/store.json                     the format's version
    STORE/<table>/<time>-<count>-<random>.parquet
    STORE/journal/<table>/                            rows of running jobs; see `journal`
    STORE/<name>.lock                    owner, host, process and time of a running job

A part is written under a temporary name, flushed to the disk and renamed, and its folder is flushed too: it
is whole or not there, and what `append` has returned for survives the loss of the process and of power.
"""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast
from uuid import uuid4

import polars as pl

from assay.pipelines import locking
from assay.pipelines.errors import StoreError
from assay.pipelines.hints import did_you_mean, nearby_files
from assay.pipelines.journal import Journal, Row, recover

__all__ = ["KEYS", "SCHEMAS", "VERSION", "Store"]

VERSION = 1
VERSION_FILE = "store.json"

_COLUMNS = {
    "problems": "id text_hash problem answer options kind source source_key domain language tests license"
    " extra first_seen",
    "generations": "key problem_id model mode sample seed prompt_tokens token_ids logprobs text finish_reason seconds",
    "verdicts": "key verifier status extracted reason",
    "decisions": "snapshot problem_id filter keep reason evidence time",
    "snapshots": "id parent recipe_hash recipe benchmarks funnel time",
    "runs": "run kind config model time",
    "steps": "run step metric value",
    "rollouts": "run step problem_id sample prompt completion reward advantage status tokens truncated weights_version",
}
_TYPES: dict[str, pl.DataType] = (  # of every column that is not text
    {"options": pl.List(pl.String), "token_ids": pl.List(pl.Int32), "logprobs": pl.List(pl.Float32)}
    | {name: pl.Datetime("us") for name in ("first_seen", "time")}
    | {name: pl.Int32() for name in ("sample", "prompt_tokens", "tokens")}
    | {name: pl.Int64() for name in ("seed", "step", "weights_version")}
    | {name: pl.Float64() for name in ("value", "reward", "advantage")}
    | {"seconds": pl.Float32(), "keep": pl.Boolean(), "truncated": pl.Boolean()}
)

SCHEMAS: dict[str, pl.Schema] = {
    table: pl.Schema({name: _TYPES.get(name, pl.String()) for name in columns.split()})
    for table, columns in _COLUMNS.items()
}
"""Columns and types of every table; times are UTC without a zone."""

KEYS: dict[str, tuple[str, ...]] = {
    "problems": ("id",),
    "generations": ("key",),
    "verdicts": ("key", "verifier"),
    "decisions": ("snapshot", "problem_id", "filter"),
    "snapshots": ("id",),
    "runs": ("run",),
    "steps": ("run", "step", "metric"),
    "rollouts": ("run", "step", "problem_id", "sample"),
}
"""Columns that are never null."""

_count = itertools.count()  # orders the parts that one process writes within one tick of the clock


class Store:
    """One folder of tables. Any number of processes may append and read at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sound: set[Path] = set()  # parts never change, so each is looked at once

    @classmethod
    def open(cls, path: str | Path, create: bool = False) -> "Store":
        """The store at `path`; with `create`, an empty one where there is none.

        Raises:
            StoreError: no store there, another kind of folder, a damaged version file, or a newer version.
        """
        path = Path(path)
        version_file = path / VERSION_FILE
        if not version_file.exists():
            _check_new(path, create)
            _write_whole(version_file, json.dumps({"format": "assay store", "version": VERSION}).encode())
        _check_version(version_file)
        store = cls(path)
        store.recover()
        return store

    def append(self, table: str, frame: pl.DataFrame) -> None:
        """Adds `frame` as one part; on return it is on the disk. A frame without rows writes nothing.

        Raises:
            StoreError: missing or unknown columns, a value that does not fit, a null key, or a full disk.
        """
        folder = self._folder(table)
        frame = _conform(table, frame)
        if not frame.is_empty():
            _write_whole(folder / f"{_new_name()}.parquet", frame)

    def journal(self, table: str) -> Journal:
        """Takes rows of `table` one by one, each safe from a kill at once, and appends them as parts now and then."""
        return Journal(self._journals(table), partial(self._fold, table), _new_name)

    def recover(self) -> None:
        """Adds the rows that killed jobs left in their journals; `open` does so too."""
        for folder in (self.path / "journal").glob("[!.]*"):
            recover(folder, partial(self._fold, folder.name))

    def _journals(self, table: str) -> Path:
        return self.path / "journal" / self._folder(table).name

    def _fold(self, table: str, name: str, rows: list[Row]) -> None:
        """One part of this name from a journal's rows, without what another part has: folding again adds nothing."""
        for cut_off in self._folder(table).glob(f".{name}.*.tmp"):
            cut_off.unlink()
        keys = list(KEYS[table])
        frame = _frame(table, rows).unique(keys, keep="first", maintain_order=True)
        known = self.scan(table).select(keys).join(frame.lazy(), on=keys, how="semi").collect()
        new = frame.join(known, on=keys, how="anti", maintain_order="left")
        if not new.is_empty():
            _write_whole(self._folder(table) / f"{name}.parquet", _conform(table, new))

    def scan(self, table: str) -> pl.LazyFrame:
        """All rows of `table`, in the order in which they were appended, lazily.

        Raises:
            StoreError: an unknown table, or a part that is cut short, by its name.
        """
        parts = self._sound_parts(table)
        return pl.scan_parquet(parts, schema=SCHEMAS[table]) if parts else pl.LazyFrame(schema=SCHEMAS[table])

    def sql(self, query: str) -> pl.DataFrame:
        """Runs `query` in DuckDB over the same files, one view a table; the store cannot be changed this way.

        Raises:
            StoreError: what DuckDB says against the query.
        """
        import duckdb

        with duckdb.connect() as connection:
            for table, schema in SCHEMAS.items():
                if parts := self._sound_parts(table):
                    connection.read_parquet([str(p) for p in parts]).create_view(table)
                else:
                    connection.register(table, pl.DataFrame(schema=schema).to_arrow())
            try:
                return connection.sql(query).pl()
            except (duckdb.Error, AttributeError) as error:  # a statement without rows gives None
                raise StoreError(f"sql: {error}. Tables: {', '.join(SCHEMAS)}.") from None

    def check(self) -> list[str]:
        """Findings in plain words, each with its file; empty when the store is sound. Reads every part."""
        findings = [finding for table in SCHEMAS for finding in self._check_table(table)]
        for temporary in sorted(self.path.rglob(".*.tmp")):
            with suppress(FileNotFoundError):  # its writer has finished this moment
                age = locking.in_words(time.time() - temporary.stat().st_mtime)
                findings.append(f"{temporary}: temporary, {age} old, of a job that was cut off: delete it")
        for lock in sorted(self.path.glob("*.lock")):
            owner = locking.read_owner(lock)
            if not locking.is_alive(owner):
                left = f"left by {locking.describe(owner)}, which has ended"
                findings.append(f"{lock}: {left}; the next job takes it over")
        return findings

    @contextmanager
    def lock(self, name: str, wait: float = 0.0, say: Callable[[str], None] | None = None) -> Iterator[None]:
        """Holds the store's lock `name` against other processes and threads; see `locking.hold`.

        Raises:
            StoreError: a live owner holds it after `wait` seconds, named with its age.
        """
        with locking.hold(self.path / f"{name}.lock", wait, say):
            yield

    def _folder(self, table: str) -> Path:
        if table not in SCHEMAS:
            hint, tables = did_you_mean(table, SCHEMAS), ", ".join(SCHEMAS)
            raise StoreError(f"{self.path}: no table '{table}'{hint} Tables: {tables}.")
        return self.path / table

    def _parts(self, table: str) -> list[Path]:
        return sorted(self._folder(table).glob("[!.]*.parquet"))

    def _sound_parts(self, table: str) -> list[Path]:
        parts = self._parts(table)
        for part in parts:
            if part not in self._sound:
                if fault := _cut_short(part):
                    raise StoreError(f"{part}: {fault}; move it out of the store to go on without its rows.")
                self._sound.add(part)
        return parts

    def _check_table(self, table: str) -> Iterator[str]:
        for part in self._parts(table):
            if fault := _cut_short(part) or _unreadable(part, SCHEMAS[table]):
                yield f"{part}: {fault}"


def _check_new(path: Path, create: bool) -> None:
    if not create:
        raise StoreError(f"{path}: no store here ({nearby_files(path)}). `assay refresh RECIPE` makes one.")
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path}: is a file; a store is a folder. Give another path.")
    names = sorted(p.name for p in path.iterdir() if not p.name.startswith(".")) if path.exists() else []
    if names and VERSION_FILE not in names:  # it is there when another process has just made the store
        raise StoreError(
            f"{path}: not a store: holds {', '.join(names[:3])} and no {VERSION_FILE}. Give an empty path."
        )


def _check_version(file: Path) -> None:
    try:
        version = json.loads(file.read_bytes())["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        mend = f'Write {{"version": {VERSION}}} into it if the parts are sound.'
        raise StoreError(f"{file}: damaged ({error!r}). {mend}") from None
    if not isinstance(version, int) or version < 1:
        raise StoreError(f"{file}: version is {version!r}, not a whole number from 1. Expected {VERSION}.")
    if version > VERSION:
        raise StoreError(f"{file}: version {version}; this assay reads up to {VERSION}. Update assay.")


def _conform(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` with the table's columns, order and types."""
    schema = SCHEMAS[table]
    missing = [name for name in schema if name not in frame.columns]
    unknown = [name for name in frame.columns if name not in schema]
    if missing or unknown:
        columns = ", ".join(schema)
        raise StoreError(f"{table}: columns {missing} are missing, {unknown} unknown. Columns: {columns}.")
    try:
        frame = frame.select(pl.col(name).cast(dtype) for name, dtype in schema.items())
    except pl.exceptions.PolarsError as error:
        raise StoreError(f"{table}: a value does not fit its column: {error}") from None
    if nulls := [key for key in KEYS[table] if frame[key].null_count()]:
        raise StoreError(f"{table}: null in {', '.join(nulls)}, which every row must have.")
    return frame


def _frame(table: str, rows: list[Row]) -> pl.DataFrame:
    """Six times as fast by way of Arrow as from the rows themselves, where they hold lists."""
    import pyarrow

    schema = pl.DataFrame(schema=SCHEMAS[table]).to_arrow().schema
    return cast(pl.DataFrame, pl.from_arrow(pyarrow.Table.from_pylist(rows, schema=schema)))


def _new_name() -> str:
    return f"{time.time_ns():020d}-{next(_count):08d}-{uuid4().hex[:12]}"


def _write_whole(target: Path, content: pl.DataFrame | bytes) -> None:
    """Writes, flushes, renames: a reader sees all of `target` or nothing."""
    temporary = target.with_name(f".{target.name}-{uuid4().hex[:8]}.tmp")
    try:
        if not target.parent.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            _flush_folder(target.parent.parent)
        with temporary.open("wb") as file:
            if isinstance(content, pl.DataFrame):
                content.write_parquet(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(target)
        _flush_folder(target.parent)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise StoreError(f"{target}: cannot be written: {error}. Nothing was added.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cut_short(part: Path) -> str | None:
    """What is wrong with a Parquet file's magic numbers and footer length; reads its two ends alone."""
    with part.open("rb") as file:
        head, size = file.read(4), part.stat().st_size
        file.seek(max(0, size - 8))
        tail = file.read(8)
    if size < 12 or head != b"PAR1" or tail[4:] != b"PAR1":
        return f"damaged: {size} bytes that are no whole Parquet file"
    footer = int.from_bytes(tail[:4], "little")
    return f"damaged: its footer claims {footer} of {size} bytes" if footer + 12 > size else None


def _unreadable(part: Path, schema: pl.Schema) -> str | None:
    """What is wrong with the content of a part; reads all of it."""
    try:
        found = pl.read_parquet(part).schema
    except (pl.exceptions.PolarsError, OSError) as error:
        return f"damaged: {str(error).splitlines()[0]}"
    wrong = [f"{c} is {found.get(c, 'missing')}, not {t}" for c, t in schema.items() if found.get(c) != t]
    return f"other columns than the table's: {'; '.join(wrong)}" if wrong else None
