"""What tests of the ladder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_ladder import row, write

from assay.pipelines.verify import Verifier


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write(tmp_path / "sums.jsonl", [row(n) for n in range(6)])
    write(tmp_path / "bench.jsonl", [{"q": "Find the remainder when $17^{2024} + 5$ is divided by thirteen."}])
    return tmp_path


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(workers=1) as verifier:
        yield verifier
