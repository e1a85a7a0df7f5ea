"""The system calls that a sandboxed command does without, as a classic BPF program for seccomp (man 2 seccomp).

Two reasons to refuse one: it takes memory or disk that no limit counts, or ordinary programs never need it and holes
have been found in it. Two more are refused for some arguments: what gives a file a set-user-ID or set-group-ID bit,
since the work dir belongs to whoever started the run, and sockets of families that no network namespace holds back
(from a virtual machine, AF_VSOCK reaches its host).
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class _Calls(NamedTuple):
    audit: int
    """How the kernel names the architecture (linux/audit.h)."""
    refused: Mapping[str, int]
    moded: Mapping[int, int]
    """Calls that give a file its mode, and which argument that is; the one before it says whether for ``opening``."""
    opening: frozenset[int]
    sockets: tuple[int, int]
    """``socket`` and ``socketpair``."""


ARCHITECTURES: Mapping[str, _Calls] = MappingProxyType(
    {
        "x86_64": _Calls(
            0xC000003E,
            MappingProxyType(
                {
                    # Uncounted: memory behind a descriptor or a key, blocks that no write shows.
                    "memfd_create": 319,
                    "memfd_secret": 447,
                    "shmget": 29,
                    "msgget": 68,
                    "semget": 64,
                    "fallocate": 285,
                    # Never needed: other processes, the kernel's inside, new namespaces and mounts.
                    "ptrace": 101,
                    "process_vm_readv": 310,
                    "process_vm_writev": 311,
                    "io_uring_setup": 425,
                    "bpf": 321,
                    "userfaultfd": 323,
                    "perf_event_open": 298,
                    "add_key": 248,
                    "request_key": 249,
                    "keyctl": 250,
                    "mount": 165,
                    "umount2": 166,
                    "unshare": 272,
                    "setns": 308,
                    "open_by_handle_at": 304,
                    # Its mode lies behind a pointer, which a filter cannot follow.
                    "openat2": 437,
                }
            ),
            # open, creat, mkdir, mknod, chmod, fchmod, mkdirat, mknodat, openat, fchmodat, fchmodat2
            MappingProxyType({2: 2, 85: 1, 83: 1, 133: 1, 90: 1, 91: 1, 258: 2, 259: 2, 257: 3, 268: 2, 452: 2}),
            frozenset({2, 257}),
            (41, 53),
        ),
        "aarch64": _Calls(
            0xC00000B7,
            MappingProxyType(
                {
                    "memfd_create": 279,
                    "memfd_secret": 447,
                    "shmget": 194,
                    "msgget": 186,
                    "semget": 190,
                    "fallocate": 47,
                    "ptrace": 117,
                    "process_vm_readv": 270,
                    "process_vm_writev": 271,
                    "io_uring_setup": 425,
                    "bpf": 280,
                    "userfaultfd": 282,
                    "perf_event_open": 241,
                    "add_key": 217,
                    "request_key": 218,
                    "keyctl": 219,
                    "mount": 40,
                    "umount2": 39,
                    "unshare": 97,
                    "setns": 268,
                    "open_by_handle_at": 265,
                    "openat2": 437,
                }
            ),
            # fchmod, mkdirat, mknodat, openat, fchmodat, fchmodat2
            MappingProxyType({52: 1, 34: 2, 33: 2, 56: 3, 53: 2, 452: 2}),
            frozenset({56}),
            (198, 199),
        ),
    }
)
"""``os.uname().machine`` → its calls; numbers from asm/unistd.h."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_X32 = 0x40000000
"""Numbers from here up call the kernel in x86-64's 32-bit variant: a second way to every call."""
_MAKES_FILE = os.O_CREAT | 0o20000000
"""O_CREAT, and what O_TMPFILE has beside O_DIRECTORY: without them ``open`` does not look at its mode."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
_Line = tuple[int, int, int, int]
"""Operation, lines to pass over if it holds, if it does not, and a number."""


def program(machine: str) -> bytes:
    """The filter for a machine. Raises ``KeyError`` for one that is not in ``ARCHITECTURES``."""
    calls = ARCHITECTURES[machine]
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, calls.audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    for name, number in calls.refused.items():
        # The C library writes zeros instead where fallocate is "not supported", and gives up at any other error.
        refusal = errno.EOPNOTSUPP if name == "fallocate" else errno.ENOSYS
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | refusal)]
    for number, mode in calls.moded.items():
        lines += _without_set_id(number, mode, opening=number in calls.opening)
    for number in calls.sockets:
        lines += _of_known_family(number)
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _without_set_id(number: int, mode: int, *, opening: bool) -> list[_Line]:
    lines = [(_LOAD, 0, 0, _argument(mode)), (_ANY_BIT, 0, 1, stat.S_ISUID | stat.S_ISGID)]
    lines += [(_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    if opening:
        lines = [(_LOAD, 0, 0, _argument(mode - 1)), (_ANY_BIT, 0, len(lines) - 1, _MAKES_FILE), *lines]
    return [(_EQUAL, 0, len(lines), number), *lines]


def _of_known_family(number: int) -> list[_Line]:
    lines = [(_LOAD, 0, 0, _argument(0))]
    lines += [(_EQUAL, len(_FAMILIES) - n, 0, family) for n, family in enumerate(_FAMILIES)]
    lines += [(_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(lines), number), *lines]


def _argument(position: int) -> int:
    """Where the lower half of an argument stands in what a filter is given, on a little-endian machine."""
    return 16 + 8 * position
