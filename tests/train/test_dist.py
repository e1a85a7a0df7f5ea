"""Two processes over gloo train the losses of one. Real processes, so seconds: each imports torch."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys

import pytest

from firstchair.core.errors import ConfigError, DataError, FirstchairError
from firstchair.train.dist import joined_world
from firstchair.train.metrics import read_metrics
from firstchair.train.run_dir import open_run
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


def said_by_two(work):
    """How ``work`` came out in each of two processes of one world; forked, as importing torch takes seconds."""
    context, port = multiprocessing.get_context("fork"), free_port()
    said = context.SimpleQueue()

    def one(rank):
        os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        try:
            with joined_world() as world:
                said.put((rank, work(world)))
        except FirstchairError as error:
            said.put((rank, f"{type(error).__name__}: {error}"))

    processes = [context.Process(target=one, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    return dict(said.get() for _ in processes)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_process_that_fails_takes_the_other_along_and_neither_waits(failing):
    def work(world):
        world.wait()
        if world.rank == failing:
            raise DataError("a damaged row")
        return world.add([1.0])

    said = said_by_two(work)
    assert said[failing] == "DataError: a damaged row"
    assert said[1 - failing].startswith("RunFailed: another process of the run is gone; its own message says why")


def test_a_run_that_plays_is_one_process(recipe_of, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="train grpo is one process, found WORLD_SIZE=2; start it without torchrun"):
        open_run(recipe_of(), kind="grpo", template_hash="t", resume=False, force=False)
    assert not (tmp_path / "run").exists()


def test_processes_that_end_well_wait_for_each_other():
    assert said_by_two(lambda world: world.add([1.0 + world.rank])) == {0: [3.0], 1: [3.0]}


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
