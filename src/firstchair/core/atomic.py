"""Files and directories that appear whole or not at all.

A reader, a crash or a full disk never sees half a file: bytes go to a temporary name in the same directory,
are fsynced, and are renamed over the target; then the directory entry is fsynced.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from firstchair.core.errors import ConfigError, FirstchairError, RunFailed


def fsync_dir(path: Path) -> None:
    """Make a rename in ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_dirs(path: Path) -> None:
    """Make a directory with its parents. Raises ``ConfigError`` where none can be, ``RunFailed`` on a full disk."""
    _make_dirs(path, path)


def _make_dirs(directory: Path, path: Path) -> None:
    """Make ``directory`` for ``path``, which is the one that an error names."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_place(path, error) from error


def _no_place(path: Path, error: OSError) -> FirstchairError:
    """Nothing can be made at ``path``: the place is wrong, or the disk is full."""
    if error.errno in _FULL:
        return _not_written(path, error)
    file = next((parent for parent in (path, *path.parents) if os.path.isfile(parent)), None)
    reason = (
        f"{file} is a file, not a directory" if file is not None else f"nothing can be made there ({error.strerror})"
    )
    return ConfigError(f"cannot write {path}: {reason}; choose another path")


def _not_written(path: Path, error: OSError) -> RunFailed:
    return RunFailed(f"cannot write {path}: {error.strerror or error}; free space or choose another path")


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


MARKERS = (
    "catalogs.jsonl",  # golden sets, exports
    "run.json",  # runs of training and of evaluation
    "demo.json",
    "search_index.json",
    "ids.i32",  # token sets
    "model.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
)
"""A directory that Firstchair made holds one of these; ``--force`` deletes no other."""


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise ``ConfigError`` when ``path`` exists and ``force`` is not set, or is nothing that may be replaced.

    That is a regular file, an empty directory, or one with one of ``MARKERS``.
    """
    try:
        if not path.exists():
            return
        mode = path.stat().st_mode
        names = set(os.listdir(path)) if stat.S_ISDIR(mode) else set()
    except OSError as error:  # no permission, a name that is too long
        raise _no_place(path, error) from error
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is a device, pipe or socket, which cannot be replaced; choose another path")
    if not force:
        raise ConfigError(f"{path} exists; pass --force to replace it, or choose another path")
    if names and names.isdisjoint(MARKERS):
        raise ConfigError(
            f"{path} is a directory with other things in it (no {' or '.join(MARKERS[:2])}, say), which --force does "
            "not replace; choose another path"
        )


def _new_name(path: Path) -> Path:
    """A name beside ``path`` that nobody has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


@contextmanager
def atomic_writer(path: Path, *, force: bool = False) -> Iterator[IO[str]]:
    """Open a temporary text file (UTF-8, ``\\n``) that becomes ``path`` when the block ends without an error.

    Raises ``ConfigError`` when ``path`` exists without ``force`` or cannot be a file's, ``RunFailed`` when the disk
    refuses the write.
    """
    with _replacing(path, force, lambda temporary: temporary.open("x", encoding="utf-8", newline="\n")) as out:
        yield out


def write_bytes(path: Path, data: bytes, *, force: bool = False) -> None:
    """Write ``data`` to ``path`` atomically. Raises as ``atomic_writer`` does."""
    with _replacing(path, force, lambda temporary: temporary.open("xb")) as out:
        out.write(data)


@contextmanager
def _replacing(path: Path, force: bool, opened: Callable[[Path], IO[Any]]) -> Iterator[IO[Any]]:
    refuse_existing(path, force=force)
    if path.is_dir():
        raise ConfigError(f"{path} is a directory, and a file is to be written; choose another path")
    _make_dirs(path.parent, path)
    temporary = _new_name(path)
    try:
        handle = opened(temporary)
    except OSError as error:
        raise _no_place(path, error) from error
    try:
        with handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
        fsync_dir(path.parent)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, force: bool = False) -> None:
    """Write ``text`` to ``path`` atomically."""
    with atomic_writer(path, force=force) as out:
        out.write(text)


def write_texts(texts: Mapping[Path, str], *, force: bool = False) -> None:
    """Write files that belong together: all are whole on the disk before the first gets its name.

    Raises as ``atomic_writer`` does; a full disk then leaves none of them.
    """
    with ExitStack() as stack:
        for path, text in texts.items():
            out = stack.enter_context(atomic_writer(path, force=force))
            out.write(text)
            out.flush()
            os.fsync(out.fileno())


@contextmanager
def atomic_dir(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary directory that becomes ``path`` when the block ends without an error.

    Every file in it is fsynced before the rename. With ``force`` an existing ``path`` is replaced, if it holds
    one of ``MARKERS``. Raises as ``atomic_writer`` does.
    """
    refuse_existing(path, force=force)
    if path.is_file():
        raise ConfigError(f"{path} is a file, and a directory is to be written; choose another path")
    _make_dirs(path.parent, path)
    temporary = _new_name(path)
    try:
        temporary.mkdir()
    except OSError as error:
        raise _no_place(path, error) from error
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
            else:
                fsync_dir(file)
        old = None
        if path.exists():
            old = _new_name(path)
            old.mkdir()
            os.replace(path, old / "was")
        os.replace(temporary, path)
        fsync_dir(path.parent)
        if old is not None:
            shutil.rmtree(old)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
