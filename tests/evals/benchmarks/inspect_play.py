"""Runs stand-ins of benchmarks where Inspect is installed: ``python inspect_play.py URL OUT NAME …``.

A JSON object a line comes out. One process for all: the import of Inspect's catalogue takes longer than the runs.
"""

import argparse
import json
import sys
from pathlib import Path

import msgspec

from firstchair.core.errors import FirstchairError
from firstchair.evals.benchmarks.catalogue import benchmark
from firstchair.evals.benchmarks.run import BenchOptions, Endpoint, run_benchmark

STANDINS = Path(__file__).parents[2] / "data" / "benchmarks"


def play(name: str, given: argparse.Namespace) -> dict[str, object]:
    """One benchmark's stand-in."""
    url = given.url
    options = BenchOptions(
        endpoint=Endpoint("gpt-5", url),
        helper=Endpoint("judge", url),
        seeds=given.seeds,
        records=given.records / f"{name}.jsonl",
        sandbox=given.sandbox,
        concurrency=4,
    )
    try:
        run = run_benchmark(benchmark(name), options, given.out / name, resume=given.resume)
    except FirstchairError as error:
        return {"benchmark": name, "error": f"{type(error).__name__}: {error}"}
    return msgspec.to_builtins(run)  # type: ignore[no-any-return]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--records", type=Path, default=STANDINS)
    parser.add_argument("--sandbox", default="local")
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    for name in arguments.names:
        sys.stdout.write(json.dumps(play(name, arguments)) + "\n")
        sys.stdout.flush()
