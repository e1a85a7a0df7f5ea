"""The one directory that file tools reach: paths are walked part by part, from a descriptor, never through a link.

A check of a path's text, or of its ``resolve()``, says what was there a moment ago. Here each part is opened relative
to the directory before it with ``O_NOFOLLOW``, so a link that is put in its place meanwhile is not followed either.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from firstchair.core.errors import ConfigError, RunFailed
from firstchair.tools.base import Failure, ToolFailed

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: to open a pipe without a writer would wait for one.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_PATH_BYTES = 1_000
"""Of a whole path: a longer one of short names is a tree so deep that little can list or remove it."""
_MAX_NAME_BYTES = 255
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})


class WorkDir:
    """A directory and what is below it. Paths are relative, with ``/``; every method raises ``ToolFailed`` for one
    that leads outside, through a symbolic link, or to nothing of the wanted kind, and ``RunFailed`` for a full disk.

    Made with its parents when it is not there. Raises ``ConfigError`` when it cannot be. Close it.
    """

    def __init__(self, root: Path):
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"work_dir: {root}: {error.strerror}; name a directory that may be written") from None

    def close(self) -> None:
        """Give the descriptor back; closing twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read_bytes(self, path: str, *, limit: int) -> bytes:
        """A file's bytes; ``ToolFailed`` when there are more than ``limit``."""
        with self._parent(path) as (parent, name), _failures(path):
            descriptor = os.open(name, _FILE, dir_fd=parent)
            try:
                found = os.fstat(descriptor)
                if stat.S_ISDIR(found.st_mode):
                    raise ToolFailed(Failure.INVALID_ARGUMENTS, f"{path}: is a directory; name a file in it")
                if not stat.S_ISREG(found.st_mode):
                    raise ToolFailed(Failure.REFUSED, f"{path}: is a device, pipe or socket; only files can be read")
                return _read_at_most(descriptor, limit, path)
            finally:
                os.close(descriptor)

    def kind(self, path: str) -> str | None:
        """``file``, ``directory`` or ``other`` (links too); ``None`` when nothing is there."""
        if not _parts(path):
            return "directory"
        try:
            with self._parent(path) as (parent, name), _failures(path):
                mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        except ToolFailed as failed:
            if failed.kind is Failure.NOT_FOUND:
                return None
            raise
        return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"

    def names(self, path: str) -> list[str]:
        """Names in a directory, sorted; directories end in ``/``, links in ``@``."""
        with self._directory(_parts(path), path) as descriptor, _failures(path), os.scandir(descriptor) as entries:
            found = [
                entry.name + ("@" if entry.is_symlink() else "/" if entry.is_dir(follow_symlinks=False) else "")
                for entry in entries
            ]
        return sorted(found)

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file atomically, with the directories above it; a file that is there keeps its mode.

        What is written over must be a regular file: a link is refused, not replaced.
        """
        with self._parent(path, make=True) as (parent, name), _failures(path):
            mode = self._mode_of(parent, name, path)
            # Short whatever the name's length, which may be at the file system's limit.
            temporary = f".{secrets.token_hex(8)}"
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=parent
            )
            try:
                with os.fdopen(descriptor, "wb") as out:
                    if mode is not None:
                        os.fchmod(out.fileno(), mode)
                    out.write(data)
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                os.unlink(temporary, dir_fd=parent)
                raise

    def delete(self, path: str) -> None:
        """Delete a regular file."""
        with self._parent(path) as (parent, name), _failures(path):
            if self._mode_of(parent, name, path) is None:
                raise FileNotFoundError(errno.ENOENT, "no such file")
            os.unlink(name, dir_fd=parent)

    def _mode_of(self, parent: int, name: str, path: str) -> int | None:
        """Permission bits of a regular file, ``None`` when nothing is there."""
        try:
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(mode):
            raise ToolFailed(Failure.INVALID_ARGUMENTS, f"{path}: is a directory; name a file in it")
        if not stat.S_ISREG(mode):
            raise ToolFailed(Failure.REFUSED, f"{path}: is a link, device, pipe or socket; choose another name")
        return stat.S_IMODE(mode)

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The descriptor of the directory that ``path`` lies in, and its last part."""
        parts = _parts(path)
        if not parts:
            raise ToolFailed(Failure.INVALID_ARGUMENTS, f"{path!r}: names the work directory; name a file in it")
        with self._directory(parts[:-1], path, make=make) as descriptor:
            yield descriptor, parts[-1]

    @contextmanager
    def _directory(self, parts: list[str], path: str, *, make: bool = False) -> Iterator[int]:
        with _failures(path):
            descriptor = os.dup(self._fd)
        try:
            with _failures(path):
                for part in parts:
                    if make:
                        _make_directory(part, descriptor)
                    inner = os.open(part, _DIRECTORY, dir_fd=descriptor)
                    os.close(descriptor)
                    descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)


def relative(path: str) -> str:
    """``path`` in its one spelling, without ``./`` and doubled slashes. Raises ``ToolFailed`` as ``WorkDir`` does."""
    return "/".join(_parts(path))


def _parts(path: str) -> list[str]:
    """The parts of a relative path without ``.``; ``ToolFailed`` for one that is absolute or goes up."""
    if "\0" in path:
        raise ToolFailed(Failure.INVALID_ARGUMENTS, "the path holds a NUL character")
    if path.startswith("/"):
        raise ToolFailed(Failure.REFUSED, f"{path}: is absolute; paths are relative to the work directory")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ToolFailed(Failure.REFUSED, f"{path}: '..' is not allowed; name the path from the work directory")
    # Here and not by the system: before anything is made of a path, or of a patch's others.
    if len(os.fsencode(path)) > MAX_PATH_BYTES or any(len(os.fsencode(part)) > _MAX_NAME_BYTES for part in parts):
        raise ToolFailed(
            Failure.INVALID_ARGUMENTS,
            f"{path[:100]}: is too long; a path has at most {MAX_PATH_BYTES:,} bytes, a name {_MAX_NAME_BYTES}",
        )
    return parts


def _make_directory(name: str, parent: int) -> None:
    with suppress(FileExistsError):  # what it is shows when it is opened
        os.mkdir(name, dir_fd=parent)


def _read_at_most(descriptor: int, limit: int, path: str) -> bytes:
    # Counted while reading: a file that grows meanwhile, or lies about its size, is cut off all the same.
    blocks: list[bytes] = []
    size = 0
    while block := os.read(descriptor, min(1 << 20, limit + 1 - size)):
        blocks.append(block)
        size += len(block)
        if size > limit:
            raise ToolFailed(Failure.TOO_LARGE, f"{path}: has more than the {limit:,} bytes that may be read")
    return b"".join(blocks)


@contextmanager
def _failures(path: str) -> Iterator[None]:
    """What the system says of ``path``, as ours."""
    try:
        yield
    except FileNotFoundError:
        raise ToolFailed(Failure.NOT_FOUND, f"{path}: no such file or directory") from None
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise RunFailed(f"work_dir: {path}: {error.strerror}; free space") from error
        if error.errno == errno.ELOOP:
            raise ToolFailed(
                Failure.REFUSED, f"{path}: leads through a symbolic link, which is not followed"
            ) from None
        if error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
            raise ToolFailed(Failure.INVALID_ARGUMENTS, f"{path[:100]}: {error.strerror}") from None
        if error.errno == errno.ENOTDIR:
            raise _not_a_directory(path) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ToolFailed(Failure.REFUSED, f"{path}: {error.strerror}; choose another path") from None
        raise ToolFailed(Failure.FAILED, f"{path}: {error.strerror}") from None


def _not_a_directory(path: str) -> ToolFailed:
    # With O_DIRECTORY a link is "not a directory" as well.
    return ToolFailed(
        Failure.REFUSED, f"{path}: leads through something that is no directory: a file, or a link (never followed)"
    )
