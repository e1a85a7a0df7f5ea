"""What a tree of processes has used up, from /proc."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY_BYTES = 4096
"""What an empty file or one more name of a file counts as, so that they are not for free without end."""


@dataclass(frozen=True)
class Usage:
    """Of the descendants of this process, the dead that have been waited for included."""

    processes: int
    """Threads too, each of them."""
    cpu_s: float
    memory_bytes: int
    """Resident; pages that several processes share count for each of them."""
    written_bytes: int
    """To disks, less what was taken back before it got there; 0 where the kernel does not count it."""


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    threads: int
    ticks: int
    resident: int


def descendants() -> list[int]:
    """Pids of all living descendants of this process."""
    return [process.pid for process in _descendants()]


def tree_usage() -> Usage:
    """The present sum."""
    processes = _descendants()
    dead = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = dead.ru_utime + dead.ru_stime + sum(process.ticks for process in processes) / _TICKS
    return Usage(
        processes=sum(process.threads for process in processes),
        cpu_s=cpu_s,
        memory_bytes=sum(process.resident for process in processes) * _PAGE,
        written_bytes=sum(_written(pid) for pid in (os.getpid(), *(process.pid for process in processes))),
    )


def exact_memory_bytes() -> int:
    """Resident memory of all living descendants, shared pages counted once; slower than ``tree_usage``."""
    return sum(_proportional(pid) for pid in descendants())


def folder_bytes(path: str, *, enough: int = 1 << 62) -> int:
    """What the files below ``path`` take up, counted until it is more than ``enough``.

    A tree too deep to be listed takes up more than any limit.
    """
    total, linked, folders = 0, set[int](), [path]
    while folders and total <= enough:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if total > enough:
                        return total
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        is_folder = entry.is_dir(follow_symlinks=False)
                        again = found.st_nlink > 1 and not is_folder and found.st_ino in linked
                        total += _ENTRY_BYTES if again else max(found.st_blocks * 512, _ENTRY_BYTES)
                        if is_folder:
                            folders.append(entry.path)
                        elif found.st_nlink > 1:
                            linked.add(found.st_ino)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return 1 << 62
    return total


def kill_descendants() -> None:
    """Kill all descendants and wait for them; this process must be the one that adopts orphans.

    All are stopped before the first is killed: what is stopped starts no further process.
    """
    if not _has_children():
        return
    stopped: set[int] = set()
    while found := set(descendants()) - stopped:
        for pid in found:
            _signal(pid, signal.SIGSTOP)
        stopped |= found
    for pid in stopped:
        _signal(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _descendants() -> list[_Process]:
    children: dict[int, list[_Process]] = {}
    for process in _processes():
        children.setdefault(process.parent, []).append(process)
    found: list[_Process] = []
    todo = [os.getpid()]
    while todo:
        new = children.get(todo.pop(), [])
        found += new
        todo += [process.pid for process in new]
    return found


def _processes() -> Iterator[_Process]:
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        # The name of a process stands in parentheses and may hold anything, spaces and parentheses too.
        fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
        if len(fields) > 21:
            ticks, threads, resident = sum(map(int, fields[11:15])), max(int(fields[17]), 1), int(fields[21])
            if threads > 1 and not resident:
                resident = max(map(_resident, _threads(name)), default=0)
            yield _Process(int(name), int(fields[1]), threads, ticks, resident)


def _threads(pid: int | str) -> list[str]:
    """Their folders. Where the first thread has ended and others go on, only those tell of the memory they share."""
    with suppress(OSError):
        return [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    return []


def _resident(thread: str) -> int:
    fields = _read(f"{thread}/stat").rpartition(b")")[2].split()
    return int(fields[21]) if len(fields) > 21 else 0


def _written(pid: int) -> int:
    counts = _fields(f"/proc/{pid}/io")
    return counts.get(b"write_bytes", 0) - counts.get(b"cancelled_write_bytes", 0)


def _proportional(pid: int) -> int:
    for folder in (f"/proc/{pid}", *_threads(pid)):
        if (found := _fields(f"{folder}/smaps_rollup").get(b"Pss")) is not None:
            return found * 1024
    return 0


def _fields(path: str) -> dict[bytes, int]:
    """``name: number`` lines of a file."""
    found = {}
    for line in _read(path).splitlines():
        name, colon, value = line.partition(b":")
        words = value.split()
        if colon and words and words[0].isdigit():
            found[name] = int(words[0])
    return found


def _read(path: str) -> bytes:
    """Of a process that may have died meanwhile: then nothing."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""
