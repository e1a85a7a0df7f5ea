"""What a sandboxed run costs beside a plain process: processor time and wall-clock time, and their ratios.

    python bench/sandbox.py --runs 100

``python -c pass`` and ``true``, run by ``subprocess`` and by the process sandbox with all its protections, one after
the other. Processor time is that of all processes of a run, the launcher's too, and hardly depends on what else the
machine does; of wall-clock times the best is the least disturbed.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from firstchair.sandbox.process import ProcessSandbox

COMMANDS = {"python -c pass": [sys.executable, "-c", "pass"], "true": ["/bin/true"]}


def children_cpu_s() -> float:
    """Processor time of the processes that were waited for, and of those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def plain(command: list[str], runs: int) -> tuple[float, list[float]]:
    """CPU seconds a run, and the wall-clock seconds of each."""
    before, walls = children_cpu_s(), []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        walls.append(time.perf_counter() - start)
    return (children_cpu_s() - before) / runs, walls


def sandboxed(command: list[str], runs: int, work: Path) -> tuple[float, list[float]]:
    """The same in the sandbox, less the start of its launcher, which is once a sandbox."""

    async def series(count: int) -> tuple[float, list[float]]:
        before, walls = children_cpu_s(), []
        sandbox = ProcessSandbox()
        for _ in range(count):
            start = time.perf_counter()
            result = await sandbox.run(command, work_dir=work)
            walls.append(time.perf_counter() - start)
            assert result.exit_code == 0, result
        del sandbox  # waits for the launcher, which is when its time is counted
        return children_cpu_s() - before, walls[1:]

    once, _ = asyncio.run(series(1))
    cpu_s, walls = asyncio.run(series(runs + 1))
    return (cpu_s - once) / runs, walls


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    print("| command | plain, ms of CPU | sandboxed | ratio | plain, best ms | sandboxed | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name, command in COMMANDS.items():
            bare_s, bare = plain(command, runs)
            boxed_s, boxed = sandboxed(command, runs, Path(folder))
            cells = [1000 * bare_s, 1000 * boxed_s, boxed_s / bare_s]
            cells += [1000 * min(bare), 1000 * min(boxed), min(boxed) / min(bare)]
            print(f"| `{name}` | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
