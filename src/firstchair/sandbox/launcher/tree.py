"""The file system that a command in namespaces of its own sees: what it needs of this one, read-only, and no more.

    /usr, /bin, /lib…, a few files of /etc, ``readable``    read-only, as they are here
    /dev (null, zero, full, random, urandom), /proc         its own; /proc read-only, of its own processes
    /tmp (also /dev/shm, /var/tmp)                          its own, in memory, of limited size
    work dir                                                as here, and the one place that outlives the run

Everything else is not there: other people's files, keys, sockets of services. Descriptors of what is needed are taken
first, as the user that this process is here; then the tree is built in a tmpfs, which becomes the root.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from firstchair.sandbox.launcher import syscalls
from firstchair.sandbox.launcher.job import View

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/ssl/certs", "/etc/pki/tls/certs")
_NAMES = ("/etc/resolv.conf",)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    # Relative: a work dir below them is put in place while the root is still the old one.
    "/dev/shm": "../tmp",
    "/var/tmp": "../tmp",
}
_BASE = "/proc"
"""Where the new tree is built: nothing that is taken along lies below it."""

OWN_PLACES = frozenset({"/", "/tmp", "/dev", "/proc", "/etc", "/var", "/dev/shm", "/var/tmp", *_SYSTEM})
"""What the tree has of its own: none of these can be a work dir."""


@dataclass(frozen=True)
class Taken:
    """A place here that will be there too."""

    path: str
    tree: int
    """From ``syscalls.open_tree``."""
    is_folder: bool


def take(view: View) -> tuple[list[Taken], dict[str, str]]:
    """All that is read-only, and symbolic links. The caller sees this file system yet, as the user it is here."""
    links = {path: os.readlink(path) for path in _SYSTEM if os.path.islink(path)}
    paths = [*_SYSTEM, *_SETTINGS, *(_NAMES if view.network else ()), *view.readable]
    taken = []
    for path in dict.fromkeys(paths):
        if path not in links and os.path.exists(path):
            taken.append(_take(path, syscalls.READ_ONLY | syscalls.NO_SUID | syscalls.NO_DEV))
    return taken + [_take(path, syscalls.NO_SUID) for path in _DEVICES], links


def take_work_dir(path: str, *, namespace: int | None) -> Taken:
    """The work dir, for writing; with ``namespace``, what user 0 owns on the disk belongs to its user."""
    tree = syscalls.open_tree(path, recursive=namespace is None)
    attributes = syscalls.NO_SUID | syscalls.NO_DEV
    if namespace is None:
        syscalls.set_tree(tree, attributes, recursive=True)
    else:
        syscalls.set_tree(tree, attributes | syscalls.ID_MAPPED, recursive=False, namespace=namespace)
    return Taken(path, tree, True)


def _take(path: str, attributes: int) -> Taken:
    tree = syscalls.open_tree(path, recursive=True)
    syscalls.set_tree(tree, attributes, recursive=True)
    return Taken(path, tree, os.path.isdir(path))


def enter(taken: list[Taken], links: dict[str, str], *, tmp_bytes: int, own_network: bool) -> None:
    """Build the tree and make it the root. Raises ``OSError`` that names the step."""
    syscalls.mount(None, "/", syscalls.PRIVATE | syscalls.RECURSIVE)
    syscalls.mount("tmpfs", _BASE, syscalls.NO_SUID | syscalls.NO_DEV, "size=1m,nr_inodes=4096,mode=755")
    os.chdir(_BASE)
    _write_settings()
    os.mkdir("proc")
    syscalls.mount("proc", "proc", syscalls.NO_SUID | syscalls.NO_DEV | syscalls.NO_EXEC)
    _forbid_namespaces()
    if own_network:
        _bound_buffers()
    syscalls.set_mount("proc", syscalls.READ_ONLY)
    os.mkdir("tmp")
    # One inode for 4 KiB: as on an ordinary disk.
    options = f"size={tmp_bytes},nr_inodes={max(tmp_bytes // 4096, 64)},mode=1777"
    syscalls.mount("tmpfs", "tmp", syscalls.NO_SUID | syscalls.NO_DEV, options)
    for folder in ("dev", "var"):
        os.mkdir(folder)
    for path, target in (*links.items(), *_LINKS.items()):
        os.symlink(target, f".{path}")
    # Sorted, so that a place within another one is mounted on top of it.
    for one in sorted(taken, key=lambda one: one.path):
        _make_place(f".{one.path}", one.is_folder)
        syscalls.attach_tree(one.tree, f".{one.path}")
    syscalls.pivot_root(".", ".")
    syscalls.unmount(".", syscalls.DETACH)
    os.chdir("/")
    syscalls.set_mount("/", syscalls.READ_ONLY)


def _write_settings() -> None:
    os.mkdir("etc")
    for name, text in (
        ("passwd", "root:x:0:0::/:/bin/sh\nsandbox:x:1000:1000::/tmp:/bin/sh\n"),
        ("group", "root:x:0:\nsandbox:x:1000:\n"),
        ("hosts", "127.0.0.1 localhost\n"),
    ):
        _write(f"etc/{name}", text)


def _forbid_namespaces() -> None:
    """A user namespace within this one would have rights there again, and with them more of the kernel in reach."""
    _write("proc/sys/user/max_user_namespaces", "0")


def _bound_buffers() -> None:
    """What lies in a TCP connection is the kernel's memory, counted for nobody: 64 KiB at most, and not megabytes."""
    for way in ("wmem", "rmem"):
        _write(f"proc/sys/net/ipv4/tcp_{way}", "4096 65536 65536")


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _make_place(path: str, is_folder: bool) -> None:
    if os.path.lexists(path):
        return
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        _write(path, "")
