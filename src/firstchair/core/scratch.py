"""Directories for what untrusted programs leave behind, and their removal whatever that is."""

from __future__ import annotations

import itertools
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def scratch_dir(prefix: str) -> Iterator[Path]:
    """A new directory that is gone afterwards, with all that is in it."""
    folder = tempfile.mkdtemp(prefix=prefix)
    try:
        yield Path(folder)
    finally:
        remove_tree(folder)


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Remove a directory, nested however deeply and with whatever modes; what cannot be removed is left.

    ``shutil.rmtree`` fails below a thousand levels and at directories without permissions. Here what lies in a
    directory's directories is moved up, so that no path grows. Nobody else may be changing the tree.
    """
    folder = os.fspath(folder)
    # Names that are not there yet, whatever is.
    names = (os.path.join(folder, f"{secrets.token_hex(8)}-{number}") for number in itertools.count())
    with suppress(OSError):
        os.chmod(folder, 0o700)
        while inner := _folders(folder):
            for path in inner:
                for deeper in _folders(path):
                    os.rename(deeper, next(names))
                os.rmdir(path)
        os.rmdir(folder)


def _folders(path: str) -> list[str]:
    """The directories in ``path``, opened to us; all else in it is removed."""
    found = []
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)
            found.append(entry.path)
        else:
            os.unlink(entry.path)
    return found
