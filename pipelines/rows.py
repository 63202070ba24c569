"""Raw rows of a file or a data set, one by one: a row that cannot be read is one fault and not the end."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple

import polars as pl

from assay.pipelines.errors import SourceError
from assay.pipelines.hints import nearby_files
from assay.pipelines.recipe import Table

__all__ = ["BEGINNING", "Row", "place_of", "read_rows"]

MAX_CELL = 2**27  # characters of a CSV cell; Python's own limit of 131,072 is less than a long solution
BEGINNING = 200  # characters of a faulty row that are shown


class Row(NamedTuple):
    """A row's fields, or why there are none.

    `line` counts from 1 in lines of text, else in rows; `text` is the beginning of a row without fields.
    """

    line: int
    fields: dict[str, Any] | None
    fault: str = ""
    text: str = ""


def place_of(table: Table) -> str:
    """The file or the Hub's name, for messages."""
    return str(table.path or table.hub)


def read_rows(table: Table) -> Iterator[Row]:
    """Every row of the table, in its order; blank lines are passed over.

    Raises:
        SourceError: no such file, a damaged container (gzip, Parquet, a JSON list), or what the Hub answers.
    """
    path = table.path
    if path is None or path.is_dir():
        yield from _data_set(table)
        return
    if not path.exists():
        raise SourceError(f"{path}: no such file; {nearby_files(path)}. [[sources]] or [[benchmarks]] '{table.name}'.")
    line = 0
    try:
        for row in _file_rows(path):
            line = row.line
            yield row
    except (OSError, EOFError, zlib.error, pl.exceptions.PolarsError) as error:
        raise SourceError(f"{path}: damaged after row {line}: {error}. Fetch the file again.") from None


def _file_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"PAR1":
        yield from _parquet(path)
        return
    zipped = magic[:2] == b"\x1f\x8b"
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    binary: IO[bytes] = gzip.open(path) if zipped else path.open("rb")  # type: ignore[assignment]  # noqa: SIM115
    with binary as opened:
        if suffix in (".csv", ".tsv"):
            yield from _csv(opened, "\t" if suffix == ".tsv" else ",")
        else:
            yield from _json(opened, path) if suffix == ".json" else _json_lines(opened)


def _json_lines(file: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(file, 1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            yield _json_line(number, line)


def _json_line(number: int, line: bytes) -> Row:
    try:
        return _object(number, json.loads(line.decode()))
    except UnicodeDecodeError as error:
        fault = f"line: not UTF-8 at byte {error.start}"
    except (ValueError, RecursionError) as error:
        fault = f"line: not JSON: {error}"
    return Row(number, None, fault, line.strip()[:BEGINNING].decode(errors="backslashreplace"))


def _object(number: int, value: Any) -> Row:
    if isinstance(value, dict):
        return Row(number, value)
    fault = f"line: a JSON {type(value).__name__}, not an object with fields"
    return Row(number, None, fault, json.dumps(value)[:BEGINNING])


def _json(file: IO[bytes], path: Path) -> Iterator[Row]:
    """A list of objects, an object that holds one list, or lines of objects under the name of JSON."""
    content = file.read()
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        first = next(_json_lines(io.BytesIO(content)), None)
        if first is None or first.fields is None:
            raise SourceError(f"{path}: neither JSON nor lines of JSON: {error}.") from None
        yield from _json_lines(io.BytesIO(content))
        return
    if isinstance(value, dict):
        lists = [v for v in value.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
        value = lists[0] if len(lists) == 1 else [value]
    if not isinstance(value, list):
        raise SourceError(f"{path}: holds a JSON {type(value).__name__}; expected a list of objects.")
    yield from (_object(number, item) for number, item in enumerate(value, 1))


def _csv(file: IO[bytes], delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(MAX_CELL)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text, delimiter=delimiter)
    header = next(reader, [])
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(reader.line_num, None, f"line: not CSV: {error}")
            continue
        if len(cells) == len(header):
            yield Row(reader.line_num, dict(zip(header, cells)))
        elif cells:
            fault = f"line: {len(cells)} cells, the header has {len(header)}"
            yield Row(reader.line_num, None, fault, delimiter.join(cells)[:BEGINNING])


def _parquet(path: Path) -> Iterator[Row]:
    frame = pl.read_parquet(path)
    yield from (Row(number, fields) for number, fields in enumerate(frame.iter_rows(named=True), 1))


def _data_set(table: Table) -> Iterator[Row]:
    """The loader's cache knows a local folder by its name alone: it would give another's rows, or last night's."""
    from datasets import load_dataset

    with TemporaryDirectory() as fresh:
        try:
            rows = load_dataset(
                place_of(table),
                table.config,
                split=table.split,
                revision=table.revision,
                cache_dir=fresh if Path(place_of(table)).is_dir() else None,
            )
        except Exception as error:  # the loader's errors have no common ancestor
            raise SourceError(
                f"{place_of(table)}: cannot be loaded (config {table.config}, split {table.split}): {error}"
            ) from error
        yield from (Row(number, dict(fields)) for number, fields in enumerate(rows, 1))
