"""Memory of the process that trains."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_large_blocks"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def keep_large_blocks() -> None:
    """Let glibc keep freed blocks up to a GiB instead of giving them back and faulting them in again.

    Without it a CPU training step spends a tenth of its time in page faults, and several times that with micro-batches
    whose tensors pass glibc's largest threshold. Does nothing where there is no glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 2**30)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
