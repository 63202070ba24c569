"""Shared by all tests: one vLLM engine a process, temporary Prefect and cache folders, and this checkout's package."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "600")
os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
os.environ["PREFECT_HOME"] = tempfile.mkdtemp(prefix="assay-prefect-")
if "PYTEST_XDIST_WORKER" in os.environ:  # processes that share the cores: threads of each would wait for the others'
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def pytest_sessionstart() -> None:
    """Refuse to test a package that was installed from another checkout."""
    import assay

    found = Path(assay.__file__).resolve()
    if ROOT not in found.parents:
        raise pytest.UsageError(f"assay is installed from {found}, not from {ROOT}: run `make setup` here.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files without slow tests first, then those whose slow ones take longest; within a file the fast ones first.

    A file goes to one process as a whole, and the next free one gets the next file.
    """
    kinds: dict[Path, set[str]] = defaultdict(set)
    for item in items:
        kinds[item.path].add(kind(item))

    def place(item: pytest.Item) -> tuple[int, Path, bool]:
        of_file = kinds[item.path]
        return 1 if "first" in of_file else 2 if "slow" in of_file else 0, item.path, kind(item) != "fast"

    items.sort(key=place)


def kind(item: pytest.Item) -> str:
    """`fast`, `slow`, or `first` among the slow."""
    mark = item.get_closest_marker("slow")
    return "fast" if mark is None else "first" if mark.kwargs.get("first") else "slow"


@pytest.fixture(scope="session")
def reasoner() -> Path:
    """The small reasoner's checkpoint."""
    from assay.pipelines.models import REASONER

    return REASONER


@pytest.fixture(scope="session")
def pool() -> Iterator[object]:
    """Engines by model; the small reasoner's is started once for the whole session."""
    from assay.flows.models import EnginePool

    # The stop text concerns requests with a thinking budget of vLLM's own, and no others.
    with EnginePool(max_model_len=512, dtype="float32", stop_text="\n</think>\n\n") as pool:
        yield pool


@pytest.fixture
def engine(pool: object, reasoner: Path) -> object:
    """vLLM with the small reasoner's own weights, whatever an earlier test loaded."""
    return pool.get(str(reasoner))  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout; tests that need it are skipped where it is not there."""
    if not SHARED.is_dir():
        pytest.skip("the folder of real data is not beside this checkout")
    return SHARED
