"""Which user a command in namespaces is: one of no rights, whoever we are.

An ordinary user's command is that user. Root is another matter: user 0 is spared some limits, the number of processes
among them, and owns the machine's files even without capabilities. So a command of root's runs as a spare user, and
its work dir is mounted such that what root owns there belongs to that user.
"""

from __future__ import annotations

import os

from firstchair.sandbox.launcher import syscalls

SPARE_ID = 0x70000000
"""User and group that own nothing; no distribution gives out numbers this high."""
INNER_ID = 1000
"""User and group of the command, as it sees them itself."""


def is_root() -> bool:
    """Whether this is the machine's root, not just one of a user namespace."""
    if os.geteuid() != 0:
        return False
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return file.read().split() == ["0", "0", "4294967295"]


def give_user(pid: int, *, spare: bool) -> None:
    """Say who ``INNER_ID`` in the new user namespace of ``pid`` is out here."""
    user, group = (SPARE_ID, SPARE_ID) if spare else (os.geteuid(), os.getegid())
    if not spare:
        _write(pid, "setgroups", "deny")  # asked of everybody but root before groups are mapped
    _write(pid, "uid_map", f"{INNER_ID} {user} 1")
    _write(pid, "gid_map", f"{INNER_ID} {group} 1")


def spare_namespace() -> int:
    """A descriptor of a user namespace in which user 0 is the spare one: for ``syscalls.set_tree``."""
    wait, leave = os.pipe()
    child = syscalls.clone(syscalls.NEW_USER)
    if child == 0:
        os.close(leave)
        os.read(wait, 1)
        os._exit(0)
    try:
        _write(child, "uid_map", f"0 {SPARE_ID} 1")
        _write(child, "gid_map", f"0 {SPARE_ID} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(leave)
        os.close(wait)
        os.waitpid(child, 0)


def _write(pid: int, name: str, text: str) -> None:
    file = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
