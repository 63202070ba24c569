"""Grading of programs."""

from assay.pipelines.program_tests import split
from assay.pipelines.sandbox import Execution, Limits, Sandbox

__all__ = ["grade_programs"]


def grade_programs(programs: list[str], workers: int = 2, limits: Limits | None = None) -> list[Execution]:
    with Sandbox(workers) as sandbox:
        return sandbox.run_many([split(program) for program in programs], limits)
