"""The process as a whole: how it ends when it is interrupted."""

import subprocess
import sys

import pytest

INTERRUPTED = """
import sys
from firstchair.__main__ import main

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv = ["firstchair", "desk", "tasks"]
main()
"""


@pytest.mark.parametrize("name", ["typer", "firstchair.cli.desk", "firstchair.rollout.desk.tasks"])
def test_ctrl_c_is_one_line_and_exit_code_1_from_the_first_import_on(name):
    done = subprocess.run([sys.executable, "-c", INTERRUPTED.format(name=name)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("interrupted; ")
    assert done.stderr.count("\n") == 1
