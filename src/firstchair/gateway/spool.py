"""The write-ahead spool: finished calls on disk before their clients hear the end, read later by the sink.

    worker w0 ── append ─▶ w0.00…17.spool  w0.00…42.spool*        segment: "FCSPOOL1" marker frame …
    worker w1 ── append ─▶ w1.00…18.spool*                        frame: marker length crc32 record
    sink      ◀─ read ───  every segment after its own offset; a segment that is read to its end and whose
                           writer is gone is deleted. * locked: its writer lives

The marker is random, so that no record can hold what reads as a frame of its segment.

A frame is one system call, so what ``append`` has returned for is in the kernel's hands and survives the death of
the process, SIGKILL too. Power loss is another matter: ``fsync="never"`` may lose what the kernel had not written
yet (some 30 s), ``"interval"`` at most the interval, ``"always"`` nothing, at the price of a disk write a call.

A record that cannot be written is counted, never raised: the counts stand in ``w0.losses``, laid out in advance so
that a full disk does not keep them from being told.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from firstchair.core.atomic import make_dirs
from firstchair.core.errors import ConfigError, RunFailed

_MAGIC = b"FCSPOOL1"
_MARKER_SIZE = 8
HEAD_SIZE = len(_MAGIC) + _MARKER_SIZE
"""Where the first frame of a segment begins."""
_HEADER = struct.Struct("<8sII")
MAX_RECORD = 256 * 1024 * 1024
SEGMENT_BYTES = 64 * 1024 * 1024
MAX_BYTES = 4 * 1024 * 1024 * 1024
_RECOUNT_BYTES = 1024 * 1024
_RECOUNT_S = 0.25
_LOSSES_SIZE = 4096
_WORKER = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_SEGMENT = re.compile(r"([A-Za-z0-9_-]{1,64})\.(\d{20})\.spool\Z")

FsyncPolicy = Literal["never", "interval", "always"]


class Loss(StrEnum):
    """Why a record was not written."""

    CAP = "cap"
    """The spool has reached its size limit: the sink is behind."""
    DISK_FULL = "disk_full"
    IO_ERROR = "io_error"
    TOO_LARGE = "too_large"
    CLOSED = "closed"
    UNSYNCED = "unsynced"
    """Written, but the disk did not confirm it: gone only if the power fails."""


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker could not write, since its loss file began."""

    worker: str
    lost: dict[str, int]
    first_us: int
    last_us: int


def losses_of(directory: Path) -> list[Losses]:
    """The losses of every worker of a spool, by worker."""
    found = (_read_losses(path) for path in sorted(directory.glob("*.losses")))
    return [losses for losses in found if losses is not None and losses.lost]


def _read_losses(path: Path) -> Losses | None:
    # The file is overwritten in place; a reader in the middle of that looks again.
    for _ in range(3):
        try:
            return msgspec.json.decode(path.read_bytes(), type=Losses)
        except msgspec.MsgspecError:
            continue
        except OSError:
            return None
    return None


# --- writing ----------------------------------------------------------------------------------------------------


class SpoolWriter:
    """Appends the records of one worker. Safe between threads; nothing here raises into a request."""

    def __init__(
        self,
        directory: Path,
        worker: str,
        *,
        fsync: FsyncPolicy = "never",
        fsync_interval_s: float = 1.0,
        segment_bytes: int = SEGMENT_BYTES,
        max_bytes: int = MAX_BYTES,
    ):
        """``max_bytes`` bounds the whole directory; workers see one another's growth with a delay, so it may be
        passed by a MiB each. Raises ``ConfigError`` or ``RunFailed`` when nothing can be written there; a full disk
        is no reason for a worker whose losses were laid out before.
        """
        if not _WORKER.match(worker):
            raise ConfigError(f"spool: found worker {worker[:80]!r}; expected 1 to 64 letters, digits, _ or -")
        make_dirs(directory)
        self._directory, self._worker, self._fsync = directory, worker, fsync
        self._segment_bytes, self._max_bytes = segment_bytes, max_bytes
        self._lock = threading.Lock()
        self._fd, self._marker, self._size, self._is_closed = -1, b"", 0, False
        self.segment = ""
        self._used, self._since_count, self._counted_at = 0, 0, 0.0
        try:
            self._losses_fd, self._losses = _open_losses(directory / f"{worker}.losses", worker)
            self._first_segment()
        except OSError as error:
            raise RunFailed(
                f"cannot write {directory}: {error.strerror}; free space or choose another path"
            ) from error
        self._count_used()
        self._stop = threading.Event()
        self._syncer: threading.Thread | None = None
        if fsync == "interval":
            self._syncer = threading.Thread(
                target=self._sync_now_and_then, args=(fsync_interval_s,), name=f"spool-{worker}", daemon=True
            )
            self._syncer.start()

    @property
    def lost(self) -> Mapping[str, int]:
        """Records lost, by reason, over every life of this worker."""
        return self._losses.lost

    def append(self, record: bytes) -> bool:
        """Write one record; ``False`` when it was lost, which has then been counted."""
        with self._lock:
            reason = self._append(record)
            if reason is not None:
                self._lose(reason)
        return reason is None

    def _append(self, record: bytes) -> Loss | None:
        size = _HEADER.size + len(record)
        if self._is_closed:
            return Loss.CLOSED
        if len(record) > MAX_RECORD:
            return Loss.TOO_LARGE
        if not self._has_room(size):
            return Loss.CAP
        try:
            if self._fd < 0 or (self._size > HEAD_SIZE and self._size + size > self._segment_bytes):
                self._rotate()
        except OSError as error:
            return _loss_of(error)
        header = _HEADER.pack(self._marker, len(record), zlib.crc32(record))
        try:
            written = os.writev(self._fd, (header, record))
            if written != size:
                self._cut()
                self._let_go()
                return Loss.DISK_FULL
            if self._fsync == "always":
                os.fsync(self._fd)
        except OSError as error:
            self._cut()
            self._let_go()
            return _loss_of(error)
        self._size += size
        self._used += size
        self._since_count += size
        return None

    def _cut(self) -> None:
        """Take back a frame that was written in part. Where even that fails the segment is left behind."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            os.close(self._fd)
            self._fd = -1

    def _let_go(self) -> None:
        """Leave the segment behind, so that the reader may delete it: its own bytes may be what fills the disk."""
        if self._fd >= 0 and self._size > HEAD_SIZE:
            os.close(self._fd)
            self._fd = -1

    def _has_room(self, size: int) -> bool:
        over = self._used + size > self._max_bytes
        if self._since_count >= _RECOUNT_BYTES or (over and time.monotonic() - self._counted_at >= _RECOUNT_S):
            self._count_used()
            over = self._used + size > self._max_bytes
        return not over

    def _count_used(self) -> None:
        self._used = sum(segment.size for segment in segments_of(self._directory))
        self._since_count, self._counted_at = 0, time.monotonic()

    def _rotate(self) -> None:
        old = self._fd
        self._new_segment()
        if old >= 0:
            if self._fsync != "never":
                self._confirm(old)
            os.close(old)

    def _first_segment(self) -> None:
        try:
            self._new_segment()
        except OSError as error:
            # A worker that is started again on a full disk must answer calls too; ``append`` tries anew.
            if _loss_of(error) is not Loss.DISK_FULL:
                raise

    def _new_segment(self) -> None:
        """A new file, locked as long as this process lives. Names are never used twice: a reader keeps offsets by
        name.
        """
        while True:
            number = max([time.time_ns(), *(other.number + 1 for other in segments_of(self._directory))])
            path = self._directory / f"{self._worker}.{number:020d}.spool"
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            except FileExistsError:
                continue
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:  # a reader may have taken the still unlocked file for a dead writer's
                break
            os.close(fd)
        marker = secrets.token_bytes(_MARKER_SIZE)
        try:
            if os.write(fd, _MAGIC + marker) != HEAD_SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        self._fd, self._marker, self._size, self.segment = fd, marker, HEAD_SIZE, path.name

    def _lose(self, reason: Loss) -> None:
        now = time.time_ns() // 1000
        old = self._losses
        lost = {**old.lost, reason.value: old.lost.get(reason.value, 0) + 1}
        self._losses = Losses(worker=self._worker, lost=lost, first_us=old.first_us or now, last_us=now)
        if self._losses_fd >= 0:
            _write_losses(self._losses_fd, self._losses)

    def sync(self) -> None:
        """Bring what was appended to the disk itself."""
        with self._lock:
            if self._fd < 0:
                return
            fd = os.dup(self._fd)
        try:
            self._confirm(fd)  # without the lock: this may take long, and requests append meanwhile
        finally:
            os.close(fd)

    def _confirm(self, fd: int) -> None:
        try:
            os.fsync(fd)
        except OSError:
            self._lose(Loss.UNSYNCED)

    def _sync_now_and_then(self, interval_s: float) -> None:
        synced = 0
        while not self._stop.wait(interval_s):
            if self._size != synced:
                synced = self._size
                self.sync()

    def close(self) -> None:
        """Let go of the segment, so that the reader may finish and delete it. Later records count as lost."""
        self._stop.set()
        if self._syncer is not None:
            self._syncer.join()
        if self._fsync != "never":
            self.sync()
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd, self._is_closed = -1, True

    def __enter__(self) -> SpoolWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _loss_of(error: OSError) -> Loss:
    return Loss.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else Loss.IO_ERROR


def _open_losses(path: Path, worker: str) -> tuple[int, Losses]:
    old = _read_losses(path)
    losses = old or Losses(worker=worker, lost={}, first_us=0, last_us=0)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, _losses_text(losses), 0)
    except OSError:
        os.close(fd)
        raise
    return fd, losses


def _write_losses(fd: int, losses: Losses) -> None:
    with contextlib.suppress(OSError):  # the counts stay in memory and are written with the next loss
        os.pwrite(fd, _losses_text(losses), 0)


def _losses_text(losses: Losses) -> bytes:
    return msgspec.json.encode(losses).ljust(_LOSSES_SIZE)


# --- reading ----------------------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """One file of a spool."""

    worker: str
    number: int
    path: Path
    size: int

    @property
    def name(self) -> str:
        """The file's name: under it a reader keeps its offset."""
        return self.path.name


class Frame(NamedTuple):
    """One record."""

    segment: str
    offset: int
    end: int
    """Where the next one begins: the offset to keep when this one is done with."""
    data: bytes


class BadFrame(NamedTuple):
    """Bytes that are no record. ``torn``: the end of a killed writer, never acknowledged; else damage."""

    segment: str
    offset: int
    end: int
    torn: bool
    reason: str


def segments_of(directory: Path) -> list[Segment]:
    """The segments of every worker, oldest first."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            matched = _SEGMENT.match(entry.name)
            if matched is None:
                continue
            try:
                size = entry.stat().st_size
            except FileNotFoundError:
                continue
            found.append(Segment(matched[1], int(matched[2]), directory / entry.name, size))
    return sorted(found, key=lambda segment: (segment.number, segment.worker))


class SpoolReader:
    """Reads a spool while it is written. Keeps nothing: offsets (segment name → offset) are the caller's."""

    def __init__(self, directory: Path):
        self._directory = directory

    def segments(self) -> list[Segment]:
        """The segments, oldest first; none when there is no spool yet."""
        return segments_of(self._directory) if self._directory.is_dir() else []

    def records(self, offsets: Mapping[str, int]) -> Iterator[Frame | BadFrame]:
        """What stands after ``offsets``, worker by worker; see ``streams``."""
        for stream in self.streams(offsets):
            yield from stream

    def streams(self, offsets: Mapping[str, int]) -> list[Iterator[Frame | BadFrame]]:
        """One iterator a worker over its records after ``offsets``, in the order they were written.

        Only what stands there now is read: what is appended meanwhile waits for the next call.
        """
        workers: dict[str, list[Segment]] = {}
        for segment in self.segments():
            workers.setdefault(segment.worker, []).append(segment)
        return [_chain(segments, offsets) for segments in workers.values()]

    def waiting_bytes(self, offsets: Mapping[str, int]) -> int:
        """How much is unread."""
        return sum(max(0, segment.size - _offset(segment, offsets)) for segment in self.segments())

    def delete_read(self, offsets: Mapping[str, int]) -> list[str]:
        """Delete the segments that are read to their end and whose writer is gone; their names."""
        deleted = []
        for segment in self.segments():
            if _offset(segment, offsets) < segment.size:
                continue
            with segment.path.open("rb") as handle:
                if not _writer_is_gone(handle.fileno()):
                    continue
                # Under the lock: a writer that is about to lock a new file sees that it is gone.
                if os.fstat(handle.fileno()).st_size == segment.size:
                    segment.path.unlink()
                    deleted.append(segment.name)
        return deleted


def _offset(segment: Segment, offsets: Mapping[str, int]) -> int:
    return max(HEAD_SIZE, offsets.get(segment.name, 0))


def _writer_is_gone(fd: int) -> bool:
    """Whether no process holds the segment for writing; the caller then does until it closes ``fd``."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _chain(segments: list[Segment], offsets: Mapping[str, int]) -> Iterator[Frame | BadFrame]:
    for segment in segments:
        start = _offset(segment, offsets)
        if start < segment.size:
            with contextlib.suppress(FileNotFoundError), segment.path.open("rb") as handle:
                yield from _read(segment, handle.fileno(), start)


def _read(segment: Segment, fd: int, start: int) -> Iterator[Frame | BadFrame]:
    # Asked before the size: a writer that is gone adds nothing to it.
    is_final = _writer_is_gone(fd)
    fcntl.flock(fd, fcntl.LOCK_UN)
    size = os.fstat(fd).st_size if is_final else segment.size
    head = os.pread(fd, HEAD_SIZE, 0)
    marker = head[len(_MAGIC) :] if head.startswith(_MAGIC) else None
    offset = start
    while offset < size:
        data = None if marker is None else _frame_at(fd, offset, size, marker)
        if data is not None:
            end = offset + _HEADER.size + len(data)
            yield Frame(segment.name, offset, end, data)
            offset = end
            continue
        torn = marker is not None and _runs_past(fd, offset, size, marker)
        following = None if torn or marker is None else _next_frame(fd, offset + 1, size, marker)
        if following is None and not is_final:
            return  # still being written
        end = size if following is None else following
        what = "a record that its writer did not finish" if torn else f"{end - offset} bytes that are no record"
        yield BadFrame(segment.name, offset, end, torn, f"{segment.path}:{offset}: {what}")
        offset = end


def _frame_at(fd: int, offset: int, size: int, marker: bytes) -> bytes | None:
    header = os.pread(fd, _HEADER.size, offset)
    if len(header) < _HEADER.size:
        return None
    found, length, checksum = _HEADER.unpack(header)
    if found != marker or length > MAX_RECORD or offset + _HEADER.size + length > size:
        return None
    data = os.pread(fd, length, offset + _HEADER.size)
    return data if len(data) == length and zlib.crc32(data) == checksum else None


def _runs_past(fd: int, offset: int, size: int, marker: bytes) -> bool:
    """Whether a frame begins at ``offset`` and has not come to its end at ``size``."""
    header = os.pread(fd, min(_HEADER.size, size - offset), offset)
    if len(header) < _HEADER.size:
        return marker.startswith(header[:_MARKER_SIZE])
    found, length, _ = _HEADER.unpack(header)
    return bool(found == marker and length <= MAX_RECORD and offset + _HEADER.size + length > size)


def _next_frame(fd: int, start: int, size: int, marker: bytes) -> int | None:
    """Where the next whole frame begins."""
    block = 1024 * 1024
    while start < size:
        found = os.pread(fd, block + _MARKER_SIZE - 1, start)
        at = found.find(marker)
        while at >= 0:
            if _frame_at(fd, start + at, size, marker) is not None:
                return start + at
            at = found.find(marker, at + 1)
        start += block
    return None
