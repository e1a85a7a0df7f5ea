"""What a process may use up that reads a stranger's file or runs a stranger's query; set by itself when it starts."""

from __future__ import annotations

import math
import resource


def limit_worker(*, memory_bytes: int, cpu_s: float) -> None:
    """Limit address space and processor time of this process, and let it leave no core dump behind."""
    _limit(resource.RLIMIT_AS, memory_bytes)
    _limit(resource.RLIMIT_CPU, math.ceil(cpu_s))
    _limit(resource.RLIMIT_CORE, 0)


def _limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
