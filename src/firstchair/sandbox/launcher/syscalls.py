"""The Linux system calls that Python has no words for. Each raises ``OSError`` that says what was tried."""

from __future__ import annotations

import ctypes
import os
import signal
import struct

NEW_NS, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
"""Flags of ``clone``: the namespaces (man 7 namespaces)."""

READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, ID_MAPPED = 0x1, 0x2, 0x4, 0x8, 0x100000
"""Attributes of a mount (man 2 mount_setattr); the first four are flags of ``mount`` too."""

PRIVATE, RECURSIVE, DETACH = 1 << 18, 1 << 14, 2
"""Flags of ``mount`` and of ``unmount``."""

# The same number on every architecture: they are newer than the common table.
_OPEN_TREE, _MOVE_MOUNT, _CLONE3, _MOUNT_SETATTR = 428, 429, 435, 442
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_FROM_FD = 1, 4
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SECCOMP, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 1, 4, 22, 36, 38

# PyDLL and not CDLL: the lock of the interpreter is kept, so that a clone finds it held by its only thread.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _checked(what: str, result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(what: str, number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _checked(what, _libc.syscall(ctypes.c_long(number), *words))


def clone(flags: int) -> int:
    """``fork`` into new namespaces: 0 in the child, its pid in the parent. Only for a process with one thread."""
    arguments = struct.pack("8Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    return _syscall("new namespaces", _CLONE3, arguments, len(arguments))


def mount(kind: str | None, target: str, flags: int, options: str = "") -> None:
    """A new file system of ``kind`` at ``target``; ``None`` changes what is mounted there."""
    name = None if kind is None else kind.encode()
    result = _libc.mount(name, target.encode(), name, ctypes.c_ulong(flags), options.encode())
    _checked(f"mount {kind or 'options'} at {target}", result)


def unmount(target: str, flags: int) -> None:
    """Take away what is mounted at ``target``."""
    _checked(f"unmount {target}", _libc.umount2(target.encode(), flags))


def pivot_root(new: str, old: str) -> None:
    """Make ``new`` the root, and put the root that was at ``old``."""
    _checked("pivot_root", _libc.pivot_root(new.encode(), old.encode()))


def open_tree(path: str, *, recursive: bool) -> int:
    """A descriptor of a copy of the mount that ``path`` lies in, from ``path`` down; mounted nowhere yet."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    return _syscall(f"open the tree {path}", _OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)


def set_tree(tree: int, attributes: int, *, recursive: bool, namespace: int = 0) -> None:
    """Set attributes of what ``open_tree`` gave. ``namespace``: a user namespace for ``ID_MAPPED``."""
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    values = struct.pack("4Q", attributes, 0, 0, namespace)
    _syscall("attributes of a mount", _MOUNT_SETATTR, tree, b"", flags, values, len(values))


def set_mount(path: str, attributes: int) -> None:
    """Set attributes of the mount at ``path``."""
    values = struct.pack("4Q", attributes, 0, 0, 0)
    _syscall(f"attributes of {path}", _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), 0, values, len(values))


def attach_tree(tree: int, target: str) -> None:
    """Mount what ``open_tree`` gave, and close its descriptor."""
    try:
        _syscall(f"mount at {target}", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_FROM_FD)
    finally:
        os.close(tree)


def die_with_parent() -> None:
    """Be killed when the process that started this one dies. A change of user undoes it."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies."""
    _prctl(_SET_SUBREAPER, 1)


def show_in_proc() -> None:
    """Let /proc tell about this process again, after a change of user."""
    _prctl(_SET_DUMPABLE, 1)


def renounce_privileges() -> None:
    """From now on no program gains rights by being run (set-user-ID, file capabilities)."""
    _prctl(_SET_NO_NEW_PRIVILEGES, 1)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def filter_system_calls(program: bytes) -> None:
    """Put this process under a filter (``filter.py``), which it cannot leave; ``renounce_privileges`` comes first."""
    told = _Program(len(program) // 8, program)
    _checked("system call filter", _libc.prctl(_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(told), 0, 0))


def _prctl(option: int, value: int) -> None:
    words = [ctypes.c_ulong(one) for one in (value, 0, 0, 0)]
    _checked(f"prctl {option}", _libc.prctl(option, *words))
