"""Attacks by the kernel's less usual doors: bits of files, kinds of sockets, memory that /proc does not show."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.sandbox.conftest import Run, attacked, living

from firstchair.sandbox.base import SandboxEnd
from firstchair.sandbox.process import ProcessSandbox

SET_ID = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    print(name, os.strerror(ctypes.get_errno()) if result < 0 else "done")
file = os.open("x", os.O_CREAT | os.O_RDWR)
for mode in (0o4755, 0o2755):
    tried("chmod", b"x", mode)
    tried("fchmod", file, mode)
    tried("fchmodat", -100, b"x", mode, 0)
    tried("open", b"a", os.O_CREAT | os.O_WRONLY, mode)
    tried("openat", -100, b"b", os.O_CREAT | os.O_WRONLY, mode)
    tried("open", b".", os.O_TMPFILE | os.O_WRONLY, mode)
    tried("creat", b"c", mode)
    tried("mknod", b"d", 0o100000 | mode, 0)
    tried("mkdir", b"e", mode)
"""


def test_no_file_is_left_that_runs_as_the_owner_of_the_work_dir(run: Run, work: Path):
    lines = run(SET_ID).stdout.splitlines()
    assert len(lines) == 18
    assert {line.partition(" ")[2] for line in lines} == {"Operation not permitted"}
    assert [path.name for path in work.iterdir()] == ["x"]
    assert work.joinpath("x").stat().st_mode & 0o6000 == 0


def test_modes_without_those_bits_are_set_and_what_opens_a_file_that_is_there_looks_at_none(run: Run, work: Path):
    ordinary = """
import ctypes, os
os.close(os.open("x", os.O_CREAT | os.O_WRONLY, 0o600)); os.chmod("x", 0o755)
os.mkdir("d"); os.chmod("d", 0o1777)
assert ctypes.CDLL(None).open(b"x", os.O_RDONLY, 0o6777) >= 0
"""
    result = run(ordinary)
    assert (result.exit_code, result.stderr) == (0, "")
    assert work.joinpath("x").stat().st_mode & 0o7777 == 0o755
    assert work.joinpath("d").stat().st_mode & 0o7777 == 0o1777


def test_there_are_no_sockets_but_those_that_a_network_namespace_holds_back(run: Run):
    families = """
import socket
for family in range(1, 46):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
        try:
            socket.socket(family, kind)
            print(family)
            break
        except OSError:
            pass
for make in (socket.socket, socket.socketpair):
    try:
        make(socket.AF_VSOCK)
    except OSError as error:
        print(error)
"""
    lines = run(families).stdout.splitlines()
    assert set(lines[:-2]) <= {"1", "2", "10", "16"}  # Unix, IPv4, IPv6 and netlink
    assert lines[-2:] == ["[Errno 97] Address family not supported by protocol"] * 2


# Its first thread has ended, so that /proc tells of no memory of the process as such.
WITHOUT_FIRST_THREAD = """
import ctypes, os, threading, time
for _ in range(2):
    os.fork()
def hold():
    held = bytearray(40 << 20)
    for n in range(0, len(held), 4096):
        held[n] = 1
    time.sleep(60)
threading.Thread(target=hold).start()
ctypes.CDLL(None).pthread_exit(0)
"""


def test_memory_is_seen_where_the_first_thread_has_ended(run_either: Run, token: str):
    result = run_either(WITHOUT_FIRST_THREAD, token, memory_mb=120, wall_s=30)
    assert (result.end, result.exit_code) == (SandboxEnd.MEMORY, None)
    assert living(token) == []


def test_threads_are_seen_where_there_are_no_namespaces(unconfined: ProcessSandbox, work: Path, token: str):
    start = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    bomb = f"import threading, time\nfor _ in range(20): {start}\ntime.sleep(60)"
    # Address space for all their stacks, or memory would refuse them first.
    result = attacked(unconfined, work, bomb, token, processes=8, memory_mb=8000, wall_s=30)
    assert (result.end, result.exit_code) == (SandboxEnd.EXITED, -9)
    assert living(token) == []


def test_a_connection_to_itself_holds_little(run: Run):
    fill = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
taken, _ = server.accept()
client.settimeout(0.05)
size = 0
try:
    while True:
        size += client.send(bytes(1 << 20))
except TimeoutError:
    print(size)
"""
    assert 0 < int(run(fill).stdout) < 1 << 19


X86_CALLS = {"semget": 64, "keyctl": 250, "io_uring_setup": 425, "openat2": 437, "bpf": 321, "setns": 308}
RIGHTS = {"pivot_root": 155, "fsopen": 430, "syslog": 103, "acct": 163, "fanotify_init": 300}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
def test_calls_into_the_kernels_inside_are_refused(run: Run):
    calls = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
path = ctypes.create_string_buffer(b"/tmp")
for number in {[*X86_CALLS.values(), *RIGHTS.values()]}:
    print(libc.syscall(number, path, path, path, 0, 0, 0), os.strerror(ctypes.get_errno()))
"""
    lines = run(calls).stdout.splitlines()
    assert lines == ["-1 Function not implemented"] * len(X86_CALLS) + ["-1 Operation not permitted"] * len(RIGHTS)


def test_memory_of_another_process_is_not_opened(run: Run):
    attack = """
import os
for path in ("/proc/1/mem", "/proc/1/root/etc/passwd", "/proc/1/cwd", "/proc/1/fd/0"):
    try:
        os.close(os.open(path, os.O_RDONLY))
        print("opened", path)
    except OSError as error:
        print(error.strerror)
print(sorted(map(int, os.listdir("/proc/self/fd")))[:-1])
"""
    assert run(attack).stdout.splitlines() == ["Permission denied"] * 4 + ["[0, 1, 2]"]


def test_names_and_arguments_without_end_are_the_commands_own_fault(run: Run):
    result = run([sys.executable, "x" * (1 << 21)])
    assert (result.end, result.exit_code) == (SandboxEnd.EXITED, 126)
    assert "Argument list too long" in result.stderr
