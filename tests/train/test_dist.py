"""Two processes over gloo train the losses of one. Real processes, so seconds: each imports torch."""

import json
import os
import socket
import subprocess
import sys

import pytest

from firstchair.train.metrics import read_metrics
from firstchair.train.sft import train_sft

PROGRAM = """
import json, sys
from firstchair.core.config import validate
from firstchair.train.config import SftRecipe
from firstchair.train.sft import train_sft
fields = json.loads(sys.argv[1])
train_sft(validate(SftRecipe, fields, source="test"), resume=sys.argv[2] == "resume")
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_two(recipe, how):
    """Run ``recipe`` in two processes as torchrun starts them."""
    common = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(recipe.resolved()), how],
            env={**common, "WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs


def test_two_processes_train_the_losses_of_one(recipe_of, tmp_path):
    # Steps of 5, 5 and 4 rows: one process has an odd number, or none at all with one row a micro-batch.
    fields = {
        "batch": {"sessions": 5, "micro_tokens": 200},
        "data": {"max_tokens": 200},
        "max_steps": None,
        "epochs": 1.0,
        "save": {"every": 2},
    }
    alone = train_sft(recipe_of(out=tmp_path / "alone", **fields))
    recipe = recipe_of(out=tmp_path / "two", **fields)
    run_two(recipe, "start")
    together = read_metrics(tmp_path / "two" / "metrics.jsonl")
    assert len(together) == len(alone.metrics)
    for line, expected in zip(together, alone.metrics, strict=True):
        for name in ("loss", "nll", "grad_norm"):
            if name in expected:
                assert line[name] == pytest.approx(expected[name], abs=2e-6), name
        for name in ("rows", "tokens", "weight", "samples"):
            assert line.get(name) == expected.get(name)
    run_two(recipe, "resume")
    assert read_metrics(tmp_path / "two" / "metrics.jsonl") == together
