"""The process as a whole: how it ends when it is interrupted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTED = """
import sys
from firstchair.__main__ import main

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv = ["firstchair", *{words!r}]
main()
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("typer", ["desk", "tasks"]),
        ("typer.rich_utils", ["--help"]),
        ("firstchair.cli.desk", ["desk", "tasks"]),
        ("firstchair.rollout.desk.tasks", ["desk", "tasks"]),
    ],
)
def test_ctrl_c_is_one_line_and_exit_code_1_from_the_first_import_on(name, words):
    script = INTERRUPTED.format(name=name, words=words)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("interrupted; ")
    assert done.stderr.count("\n") == 1


def firstchair(*words, **options):
    command = [sys.executable, "-m", "firstchair", *words]
    return subprocess.run(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full disk to write to")
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["desk", "catalog"], ["desk", "tasks"]])
def test_output_to_a_full_disk_is_one_line_and_exit_code_1(words):
    with open("/dev/full", "wb") as full:
        done = firstchair(*words, stdout=full)
    assert done.stderr == b"error: cannot write the output: No space left on device; free space or write elsewhere\n"
    assert done.returncode == 1


def test_a_reader_that_goes_away_is_told_nothing():
    read, write = os.pipe()
    os.close(read)
    done = firstchair("desk", "catalog", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_text_that_the_terminal_cannot_show_is_escaped():
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = firstchair("traces", "ls", "--store", "\u2013", env=latin)
    assert done.stderr.startswith(rb"error: store: \u2013: no such store")
    assert done.returncode == 2


def test_an_argument_that_is_not_utf8_is_refused():
    done = firstchair("traces", "show", b"d\xff")
    assert done.stderr.startswith(rb"error: argument 'd\udcff': found bytes that are not UTF-8; rename the file")
    assert done.returncode == 2


MISSING = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {names!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
from firstchair.cli.main import main
sys.argv = ["firstchair", *{words!r}]
main()
"""


@pytest.mark.parametrize(
    ("words", "names", "extra"),
    [
        ("demo --out new", ["torch", "starlette"], "train,gateway"),
        ("desk record --n 1 --out new", ["starlette"], "gateway"),
        ("desk record --n 1 --out new --base-url http://127.0.0.1:9/v1", ["httptools"], "gateway"),
        ("desk serve --port 0", ["uvicorn"], "gateway"),
        ("desk play --n 1 --model new", ["torch"], "train"),
        ("train sft --set model=new --set out=new --set data.train=new", ["torch"], "train"),
    ],
)
def test_a_missing_package_is_an_extra_to_install(words, names, extra, tmp_path):
    script = MISSING.format(words=words.split(), names=names)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == f"error: {', '.join(names)}: not installed; run: pip install 'firstchair[{extra}]'\n"
    assert done.returncode == 2
    assert not (tmp_path / "new").exists()


def test_a_missing_sdk_is_named(tmp_path):
    words = ["desk", "play", "--n", "1", "--base-url", "http://127.0.0.1:9/v1"]
    script = MISSING.format(words=words, names=["openai"])
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "error: the openai SDK is not installed; run: pip install openai\n")
