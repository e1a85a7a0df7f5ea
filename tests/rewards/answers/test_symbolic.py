import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from firstchair.core.errors import GradingError
from firstchair.rewards.answers.symbolic import Comparison, SymbolicPool

FAKE = """
import json, os, sys, time
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
print("ready", flush=True)
for line in sys.stdin:
    gold, answer, seconds = json.loads(line)
    if gold == "hang": time.sleep(3600)
    if gold == "die": os._exit(3)
    print("nonsense" if gold == "babble" else "equal" if gold == answer else "different", flush=True)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(file: Path) -> None:
    while not file.exists() or not file.read_text():
        time.sleep(0.01)


def pool_of(log: Path, **options) -> SymbolicPool:
    return SymbolicPool(command=(sys.executable, "-I", "-S", "-c", FAKE, str(log)), **options)


def pids(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()]


def test_a_worker_is_kept_and_none_outlives_the_pool(tmp_path):
    log = tmp_path / "pids"

    async def run():
        pool = pool_of(log, workers=1, timeout_s=60)
        said = [await pool.compare("1", answer) for answer in ("1", "2", "1")]
        assert all(map(alive, pids(log)))
        await pool.close()
        return said

    assert asyncio.run(run()) == [Comparison.EQUAL, Comparison.DIFFERENT, Comparison.EQUAL]
    assert len(pids(log)) == 1
    assert not any(map(alive, pids(log)))


@pytest.mark.parametrize(
    ("gold", "said"), [("hang", "no symbolic comparison within"), ("die", "died"), ("babble", "died")]
)
def test_a_worker_without_a_verdict_is_killed_and_replaced(tmp_path, gold, said):
    log = tmp_path / "pids"

    async def run():
        pool = pool_of(log, workers=1, timeout_s=0.2 if gold == "hang" else 60)
        with pytest.raises(GradingError, match=said):
            await pool.compare(gold, "x")
        first = pids(log)
        assert not any(map(alive, first))
        pool._timeout_s = 60
        assert await pool.compare("1", "1") is Comparison.EQUAL
        assert len(pids(log)) == len(first) + 1
        await pool.close()

    asyncio.run(run())


def test_a_cancelled_comparison_leaves_no_worker_that_still_answers_it(tmp_path):
    log = tmp_path / "pids"

    async def run():
        pool = pool_of(log, workers=1, timeout_s=60)
        task = asyncio.create_task(pool.compare("hang", "x"))
        await asyncio.to_thread(wait_for, log)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not any(map(alive, pids(log)))
        assert await pool.compare("1", "2") is Comparison.DIFFERENT
        await pool.close()

    asyncio.run(run())


def test_a_hanging_comparison_holds_up_no_other(tmp_path):
    async def run():
        pool = pool_of(tmp_path / "pids", workers=2, timeout_s=60)
        hanging = asyncio.create_task(pool.compare("hang", "x"))
        for _ in range(3):
            assert await pool.compare("1", "1") is Comparison.EQUAL
        assert not hanging.done()
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        await pool.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("script", "said"), [("raise SystemExit(7)", "code 7"), ("import time; time.sleep(99)", "not ready")]
)
def test_a_worker_that_does_not_start_is_a_grading_error(script, said):
    async def run():
        pool = SymbolicPool(
            command=(sys.executable, "-I", "-S", "-c", script), start_s=0.2 if "sleep" in script else 60
        )
        with pytest.raises(GradingError, match=said):
            await pool.compare("1", "1")

    asyncio.run(run())


def test_a_command_that_is_not_there_is_a_grading_error():
    async def run():
        with pytest.raises(GradingError, match="no process"):
            await SymbolicPool(command=("/nonexistent/python",)).compare("1", "1")

    asyncio.run(run())


EQUAL = [
    (r"\frac{x^2-1}{x-1}", "x+1"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("50%", "0.5"),
    ("42", "so the answer is 42."),
    (r"\frac{1}{2}", "It is $0.5$ exactly"),
    (r"\{1,2\}", r"\{2,1\}"),
    (r"\frac{\pi}{2}", "1.5707963"),
]
DIFFERENT = [("(1,2)", "(2,1)"), ("x^2", "x^3"), ("5", "no idea")]


def test_algebra_tells_equal_from_different_and_is_given_up_where_it_never_ends():
    async def run():
        pool = SymbolicPool(workers=1, timeout_s=60)
        try:
            found = [await pool.compare(*pair) for pair in (*EQUAL, *DIFFERENT, ("", "5"))]
            pool._timeout_s = 0.5  # one worker for all: its imports take longer than everything else here
            with pytest.raises(GradingError, match=r"within 0\.5 s"):
                await pool.compare("5", "9^{9^{9^{9}}}")
            return found
        finally:
            await pool.close()

    wanted = [Comparison.EQUAL] * len(EQUAL) + [Comparison.DIFFERENT] * len(DIFFERENT) + [Comparison.GOLD_UNREADABLE]
    assert asyncio.run(run()) == wanted
