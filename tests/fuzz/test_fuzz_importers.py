import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "fuzz_importers.py"


def fuzz(count: int, seed: int) -> str:
    command = [sys.executable, str(SCRIPT), "--inputs", str(count), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_few_broken_recordings_are_read_or_refused():
    assert "600 inputs" in fuzz(600, seed=5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_broken_recordings_are_read_or_refused():
    assert "100,000 inputs" in fuzz(100_000, seed=6)
