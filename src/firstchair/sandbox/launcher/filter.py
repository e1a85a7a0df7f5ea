"""The system calls that a sandboxed command does without, as a classic BPF program for seccomp (man 2 seccomp).

Two reasons to refuse one: it takes memory or disk that no limit counts, or ordinary programs never need it and holes
have been found in it.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class _Calls(NamedTuple):
    audit: int
    """How the kernel names the architecture (linux/audit.h)."""
    refused: Mapping[str, int]


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
                }
            ),
        ),
        "aarch64": _Calls(
            0xC00000B7,
            MappingProxyType(
                {
                    "memfd_create": 279,
                    "memfd_secret": 447,
                    "shmget": 194,
                    "msgget": 186,
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
                }
            ),
        ),
    }
)
"""``os.uname().machine`` → its calls; numbers from asm/unistd.h."""

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_X32 = 0x40000000
"""Numbers from here up call the kernel in x86-64's 32-bit variant: a second way to every call."""


def program(machine: str) -> bytes:
    """The filter for a machine. Raises ``KeyError`` for one that is not in ``ARCHITECTURES``."""
    calls = ARCHITECTURES[machine]
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, calls.audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    for name, number in calls.refused.items():
        # The C library writes zeros instead where fallocate is "not supported", and gives up at any other error.
        refusal = errno.EOPNOTSUPP if name == "fallocate" else errno.ENOSYS
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | refusal)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)
