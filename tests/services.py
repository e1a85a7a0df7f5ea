"""What some tests need beside Python: a PostgreSQL, a Chromium, a small disk."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

REQUIRED = "FIRSTCHAIR_TEST_SERVICES"


def missing(what: str, fix: str) -> NoReturn:
    """Skip the test with the reason; where all services must be there (as in CI), fail it."""
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"no {what}: {fix}", pytrace=False)
    pytest.skip(f"no {what}: {fix}")


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """An empty file system of that size at ``folder``."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        missing("file system of our own", "run the tests as a user that may mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """``disk`` without a byte left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        filler.unlink()
