"""Lines that are only ever appended: a kill at any moment costs at most the line that was being written.

A reader passes over a last line without its newline; a writer cuts it off before it goes on.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from firstchair.core.atomic import fsync_dir
from firstchair.core.errors import ConfigError, DataError, RunFailed


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The numbered lines of a file that end with a newline, without it. Raises ``DataError`` for no readable file."""
    try:
        with path.open("rb") as handle:
            for number, line in enumerate(handle, start=1):
                if not line.endswith(b"\n"):
                    return
                yield number, line[:-1]
    except OSError as error:
        raise DataError(f"cannot read: {error.strerror}; check the path", path=str(path)) from None


class LineAppender:
    """Appends lines; each is handed to the system at once, and fsynced at least every ``fsync_s`` seconds.

    A killed process therefore loses at most the line it was writing, a power cut at most ``fsync_s`` seconds of them.
    """

    def __init__(self, path: Path, *, fsync_s: float = 2.0):
        """Opens ``path``, or makes it. Raises ``ConfigError`` for a directory and while another process appends to
        it, ``RunFailed`` when it cannot be written.
        """
        self.path, self._fsync_s = path, fsync_s
        try:
            self._handle = path.open("ab+", buffering=0)
        except IsADirectoryError:
            raise ConfigError(f"{path} is a directory; expected a file to append to") from None
        except OSError as error:
            raise self._failed(error) from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._handle.close()
            raise ConfigError(
                f"{path}: another process is writing to it; wait for it, or choose another path"
            ) from None
        self._drop_torn_line()
        fsync_dir(path.parent)
        self._last = time.monotonic()

    def __enter__(self) -> LineAppender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _drop_torn_line(self) -> None:
        keep = self._handle.seek(0, os.SEEK_END)
        while keep:
            step = min(1 << 16, keep)
            self._handle.seek(keep - step)
            found = self._handle.read(step).rfind(b"\n")
            if found >= 0:
                keep = keep - step + found + 1
                break
            keep -= step
        self._handle.truncate(keep)

    @property
    def empty(self) -> bool:
        """Whether there is no line yet."""
        return self._handle.seek(0, os.SEEK_END) == 0

    def clear(self) -> None:
        """Take away every line that is there. Raises ``RunFailed`` when the disk refuses."""
        try:
            self._handle.truncate(0)
        except OSError as error:
            raise self._failed(error) from error

    def append(self, line: bytes) -> None:
        """Write ``line`` and a newline. Raises ``RunFailed`` when the disk refuses."""
        data = line + b"\n"
        try:
            # An unbuffered write may be short when the disk fills; the torn line is dropped on the next start.
            if self._handle.write(data) != len(data):
                raise OSError(28, "No space left on device")
            if time.monotonic() - self._last >= self._fsync_s:
                os.fsync(self._handle.fileno())
                self._last = time.monotonic()
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Flush to disk and close."""
        try:
            os.fsync(self._handle.fileno())
        except OSError as error:
            raise self._failed(error) from error
        finally:
            self._handle.close()

    def _failed(self, error: OSError) -> RunFailed:
        return RunFailed(
            f"cannot write {self.path}: {error.strerror}; free space and run the same command again to go on"
        )
