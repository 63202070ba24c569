"""Programs a second: the sandbox against a fresh Python behind bwrap for each program, and against no wall at all.

    python tests/pipelines/bench_sandbox.py [PROGRAMS]
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from assay.pipelines.program_tests import split
from assay.pipelines.sandbox import BACKENDS, Job, Sandbox

PROGRAM = """from typing import List


def rolling_max(numbers: List[int]) -> List[int]:
    found = []
    for number in numbers:
        found.append(number if not found else max(found[-1], number))
    return found


def check(candidate):
    assert candidate([]) == []
    for n in range(8):
        assert candidate(list(range(n))) == list(range(n))
    assert candidate([3, 2, 3, 100, 3]) == [3, 3, 3, 100, 100]


check(rolling_max)
"""
BWRAP = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]


def rate(run: Callable[[int], bool], programs: int) -> float:
    """Programs a second, two at a time."""
    with ThreadPoolExecutor(2) as threads:
        start = time.perf_counter()
        assert all(threads.map(run, range(programs)))
        return programs / (time.perf_counter() - start)


def fresh(prefix: list[str]) -> Callable[[int], bool]:
    command = [*prefix, sys.executable, "-I", "-c", PROGRAM]
    return lambda _: subprocess.run(command, stdin=subprocess.DEVNULL).returncode == 0


def main() -> None:
    programs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(f"a fresh Python, no wall          {rate(fresh([]), programs):8.1f} /s")
    if shutil.which("bwrap"):
        print(f"a fresh Python behind bwrap      {rate(fresh(BWRAP), programs):8.1f} /s")
    for backend in BACKENDS:
        if backend != "bwrap" or shutil.which("bwrap"):
            with Sandbox(2, backend) as sandbox:
                for name, job in (("a script", Job(PROGRAM)), ("program and tests apart", split(PROGRAM))):
                    sandbox.run_many([job] * 2)
                    speed = rate(lambda _, job=job: sandbox.run(job).status == "passed", programs)
                    print(f"{backend:10} {name:22}{speed:8.1f} /s")


if __name__ == "__main__":
    main()
