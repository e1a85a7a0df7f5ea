"""Runs stand-ins of benchmarks where Inspect is installed: ``python inspect_play.py URL OUT NAME …``.

A JSON object a line comes out. One process for all: the import of Inspect's catalogue takes longer than the runs.
"""

import json
import sys
from pathlib import Path

import msgspec

from firstchair.core.errors import FirstchairError
from firstchair.evals.benchmarks.catalogue import benchmark
from firstchair.evals.benchmarks.run import BenchOptions, Endpoint, run_benchmark

STANDINS = Path(__file__).parents[2] / "data" / "benchmarks"


def play(url: str, out: Path, name: str) -> dict[str, object]:
    """Two seeds of one benchmark's stand-in."""
    options = BenchOptions(
        endpoint=Endpoint("gpt-5", url),
        helper=Endpoint("judge", url),
        seeds=2,
        records=STANDINS / f"{name}.jsonl",
        sandbox="local",
        concurrency=4,
    )
    try:
        run = run_benchmark(benchmark(name), options, out / name)
    except FirstchairError as error:
        return {"benchmark": name, "error": f"{type(error).__name__}: {error}"}
    return msgspec.to_builtins(run)  # type: ignore[no-any-return]


if __name__ == "__main__":
    url, out, *names = sys.argv[1:]
    for name in names:
        sys.stdout.write(json.dumps(play(url, Path(out), name)) + "\n")
        sys.stdout.flush()
