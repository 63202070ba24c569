"""Sources and golds as they were read: what has not changed is read once for a store, not at every refresh."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import polars as pl

from assay.pipelines import rows, sources
from assay.pipelines.recipe import Source
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier

__all__ = ["gold_faults", "read"]


def read(store: Store, source: Source) -> tuple[pl.DataFrame, pl.DataFrame]:
    """`sources.read`, from the store's copy where file, declaration and parser are the same as then.

    One copy is kept for each source; a source on the Hub or in a folder is always read anew.
    """
    if source.path is None or not source.path.is_file():
        return sources.read(source)
    folder = store.path / "parsed" / hashlib.sha256(source.name.encode()).hexdigest()[:16]
    state, files = _state(source, source.path), [folder / "problems.parquet", folder / "unparsable.parquet"]
    mark = folder / "state.json"
    if mark.exists() and json.loads(mark.read_text()) == state:
        return pl.read_parquet(files[0]), pl.read_parquet(files[1])
    read = sources.read(source)
    folder.mkdir(parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)  # a copy counts once it is whole
    for frame, file in zip(read, files):
        frame.write_parquet(file)
    temporary = mark.with_suffix(".tmp")
    temporary.write_text(json.dumps(state))
    temporary.replace(mark)
    return read


def gold_faults(store: Store, verifier: Verifier, golds: pl.Series) -> pl.DataFrame:
    """`answer, gold_fault` of these distinct golds and more; each is read once by a verifier of this name.

    One whose reading passed the deadline is read again the next time.
    """
    file = store.path / "parsed" / f"golds-{hashlib.sha256(verifier.name.encode()).hexdigest()[:16]}.parquet"
    schema = {"answer": pl.String, "gold_fault": pl.String}
    known = pl.read_parquet(file) if file.exists() else pl.DataFrame(schema=schema)
    new = golds.filter(~golds.is_in(known["answer"].implode()))
    read = pl.concat([known, pl.DataFrame([new, pl.Series(verifier.gold_faults(new.to_list()))], schema=schema)])
    if len(new):
        file.parent.mkdir(exist_ok=True)
        lasting = ~pl.col("gold_fault").str.contains("deadline").fill_null(False)
        read.filter(lasting).write_parquet(file.with_suffix(".tmp"))
        file.with_suffix(".tmp").replace(file)
    return read


def _state(source: Source, path: Path) -> dict[str, str]:
    """What decides how a source is parsed: its bytes, its declaration, and the code."""
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    code = hashlib.sha256(b"".join(Path(m.__file__ or "").read_bytes() for m in (rows, sources))).hexdigest()
    return {"content": content, "declared": source.model_dump_json(), "code": code}
