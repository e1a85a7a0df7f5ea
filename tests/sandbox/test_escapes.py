"""Attacks on the process sandbox, each carried out for real; where it matters, a control shows that it would work."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.sandbox.conftest import Run, attacked, eventually, living

from firstchair.core.errors import RunFailed
from firstchair.sandbox import process
from firstchair.sandbox.base import SandboxEnd, SandboxLimits
from firstchair.sandbox.process import ProcessSandbox

EACCES, ENOSYS, EROFS = "PermissionError", "Function not implemented", "Read-only file system"


# --- processes

FORKS = """
import os, time
count = 0
try:
    while count < 200:
        if os.fork() == 0:
            time.sleep(60)
        count += 1
except BlockingIOError:
    print(count)
"""


def test_a_fork_bomb_gets_no_more_processes_than_its_limit(run: Run, token: str):
    result = run(FORKS, token, processes=8)
    assert (result.end, result.exit_code, result.stdout) == (SandboxEnd.EXITED, 0, "7\n")
    assert living(token) == []


def test_threads_count_as_processes(run: Run):
    start = "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    result = run(f"import threading, time\nfor _ in range(50): {start}", processes=8)
    assert "can't start new thread" in result.stderr


def test_a_fork_bomb_of_a_shell_is_dead_when_the_time_is_over(run: Run, token: str):
    bomb = ["sh", "-c", "b() { b | b & }; while :; do b; done", token]
    # It dies of its own failed forks, or of the clock.
    assert run(bomb, wall_s=0.2, processes=16).end in (SandboxEnd.TIMEOUT, SandboxEnd.EXITED)
    assert living(token) == []


def test_a_fork_bomb_is_killed_where_there_are_no_namespaces(unconfined: ProcessSandbox, work: Path, token: str):
    result = attacked(unconfined, work, FORKS + "\ntime.sleep(60)", token, processes=8, wall_s=20)
    assert (result.end, result.exit_code) == (SandboxEnd.EXITED, -9)
    assert living(token) == []


def test_a_background_child_is_dead_when_the_run_returns_and_does_not_hold_it_up(run_either: Run, token: str):
    result = run_either(["sh", "-c", f"sh -c 'sleep 60; : {token}' & echo started"])
    assert (result.end, result.exit_code, result.stdout) == (SandboxEnd.EXITED, 0, "started\n")
    assert living(token) == []


DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        for stream in range(3):
            os.close(stream)
        while True:
            time.sleep(60)
    os._exit(0)
open("left", "w")
if sys.argv[2:]:
    time.sleep(60)
"""


def test_a_daemon_that_forked_twice_and_ignores_all_signals_is_dead_when_the_command_exits(
    run_either: Run, token: str
):
    assert run_either(DAEMON, token).exit_code == 0
    assert living(token) == []


@pytest.mark.parametrize("kind", ["confined", "unconfined"])
def test_such_a_daemon_is_dead_when_the_run_is_cancelled(
    kind: str, request: pytest.FixtureRequest, work: Path, token: str
):
    sandbox: ProcessSandbox = request.getfixturevalue(kind)

    async def run() -> None:
        command = [sys.executable, "-I", "-S", "-c", DAEMON, token, "stay"]
        task = asyncio.create_task(sandbox.run(command, work_dir=work))
        assert await asyncio.to_thread(eventually, work.joinpath("left").exists)
        assert living(token) != []
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert living(token) == []

    asyncio.run(run())


def test_a_command_that_ignores_signals_or_stops_itself_ends_in_time(run_either: Run, token: str):
    ignore = "import signal, time\nfor s in set(signal.Signals) - {9, 19}: signal.signal(s, signal.SIG_IGN)\n"
    for attack in (ignore + "time.sleep(60)", "import os\nos.kill(os.getpid(), 19)"):
        result = run_either(attack, token, wall_s=0.2)
        assert (result.end, result.exit_code) == (SandboxEnd.TIMEOUT, None)
    assert living(token) == []


def test_processor_time_is_counted_over_all_children(run_either: Run, token: str):
    burn = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    result = run_either(burn, token, cpu_s=0.15, wall_s=60)
    assert result.end == SandboxEnd.TIMEOUT
    assert result.seconds < 30
    assert living(token) == []


def test_neither_its_first_process_nor_ours_can_be_killed_or_traced(run: Run):
    attack = f"""
import ctypes, os, signal
for pid in (1, os.getppid(), {os.getpid()}, {os.getppid()}):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        print(type(error).__name__)
libc = ctypes.CDLL(None, use_errno=True)
for pid in (0, 1, {os.getpid()}):
    print(libc.ptrace(16, pid, 0, 0), os.strerror(ctypes.get_errno()))
print(open("/proc/1/status").readline())
if os.fork() == 0:
    signal.pause()
os.kill(-1, signal.SIGKILL)
print("alive")
"""
    result = run(attack)
    assert result.stdout.count("ProcessLookupError") == 2
    assert result.stdout.count(ENOSYS) == 3
    assert (result.end, result.exit_code) == (SandboxEnd.EXITED, 0)
    assert result.stdout.endswith("alive\n")


# --- memory and disk


def test_one_process_is_refused_more_memory(run: Run):
    result = run("bytearray(300 << 20)", memory_mb=200)
    assert (result.end, result.exit_code) == (SandboxEnd.EXITED, 1)
    assert "MemoryError" in result.stderr


def test_processes_together_are_killed_over_the_memory(run_either: Run, token: str):
    attack = (
        "import os, time\nfor _ in range(3): os.fork()\nheld = bytearray(os.urandom(1 << 20) * 40)\ntime.sleep(60)"
    )
    result = run_either(attack, token, memory_mb=150)
    assert (result.end, result.exit_code) == (SandboxEnd.MEMORY, None)
    assert living(token) == []


def test_memory_that_children_share_counts_once(run: Run):
    attack = "import os, time\nheld = bytearray(80 << 20)\nfor _ in range(2): os.fork()\ntime.sleep(0.2)"
    assert run(attack, memory_mb=200).end == SandboxEnd.EXITED


def test_there_is_no_memory_behind_descriptors_and_keys(run: Run):
    attack = """
import ctypes, os
try:
    os.memfd_create("hidden")
except OSError as error:
    print(error)
libc = ctypes.CDLL(None, use_errno=True)
print(libc.shmget(0, 1 << 20, 0o1600), os.strerror(ctypes.get_errno()))
"""
    assert run(attack).stdout.count(ENOSYS) == 2


DISK_FILLS = {
    "many files": "import os\nfor n in range(10**6): open(str(n), 'wb').write(bytes(1 << 20))",
    "empty files": "for n in range(10**6): open(str(n), 'wb')",
    "names of one file": "import os\nopen('x', 'w')\nfor n in range(10**6): os.link('x', str(n))",
    "files without a name": """
import os, time
held = []
for n in range(40):
    held.append(open("x", "wb", buffering=0)); held[-1].write(bytes(1 << 20)); os.unlink("x")
    time.sleep(0.01)
time.sleep(60)
""",
    "folders below the longest path": """
import os
for n in range(10**6):
    os.mkdir("d" * 200); os.chdir("d" * 200)
    open("x", "wb").write(bytes(1 << 19))
""",
}


@pytest.mark.parametrize("attack", DISK_FILLS.values(), ids=DISK_FILLS)
def test_who_fills_the_disk_is_killed(run: Run, work: Path, attack: str, token: str):
    result = run(attack, token, disk_mb=2, wall_s=60)
    assert (result.end, result.exit_code) == (SandboxEnd.DISK, None)
    assert living(token) == []


def test_a_file_and_tmp_have_a_size(run: Run, work: Path):
    attack = """
import os
def fill(path):
    try:
        with open(path, "wb", buffering=0) as file:
            while True: file.write(bytes(1 << 20))
    except OSError as error:
        print(error.strerror, os.path.getsize(path) >> 20)
        os.unlink(path)
fill("file"); fill("/tmp/file"); fill("/dev/shm/file"); fill("/var/tmp/file")
"""
    result = run(attack, disk_mb=4)
    assert result.stdout.splitlines()[0] == "File too large 4"
    assert result.exit_code == 0
    assert (
        "No space left on device"
        in run(
            attack.replace(
                'fill("file")', "fill('/tmp/1'[:0] or '/tmp/a'); open('/tmp/b', 'wb').write(bytes(3 << 20))"
            ),
            disk_mb=4,
        ).stdout
    )
    assert [*work.iterdir()] == []


def test_disk_blocks_cannot_be_taken_without_writing(run: Run):
    attack = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
file = os.open("x", os.O_CREAT | os.O_WRONLY)
print(libc.fallocate(file, 0, 0, 1 << 20), os.strerror(ctypes.get_errno()))
os.posix_fallocate(file, 0, 1 << 16)
print(os.fstat(file).st_size)
"""
    assert run(attack).stdout == "-1 Operation not supported\n65536\n"


# --- files

READS = """
import os, sys
secret, depth = sys.argv[1], "../" * 40
os.symlink(secret, "link"); os.symlink(depth, "up")
for path in (secret, "../secret", depth + secret, "link", "up" + secret, "/proc/self/root" + secret,
             "/proc/1/root" + secret, "/proc/1/cwd/../secret", "/proc/self/cwd/../secret"):
    try:
        print(open(path).read())
    except OSError as error:
        print(type(error).__name__)
    try:
        open(path, "a").write("tampered")
    except OSError:
        pass
"""


def test_no_path_leads_out_of_the_work_dir(run: Run, unconfined: ProcessSandbox, work: Path, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    result = run(READS, str(secret))
    assert result.exit_code == 0, result.stderr
    assert "s3cret" not in result.stdout
    assert secret.read_text() == "s3cret"
    for link in ("link", "up"):
        (work / link).unlink()
    assert "s3cret" in attacked(unconfined, work, READS, str(secret)).stdout


def test_nothing_is_written_but_the_work_dir_and_a_private_tmp(run: Run, work: Path, tmp_path: Path):
    attack = f"""
import os, sys
for folder in ("/", "/usr", "/usr/bin", "/etc", "/dev", "/var", "/proc", {sys.prefix!r}, {sys.base_prefix!r}):
    try:
        open(os.path.join(folder, "written"), "w")
        print("WROTE", folder)
    except OSError:
        pass
    try:
        os.chmod(folder, 0o777)
        print("CHANGED", folder)
    except OSError:
        pass
open("kept", "w").write("x"); open("/tmp/private", "w").write("x")
"""
    result = run(attack)
    assert (result.stdout, result.stderr) == ("", "")
    assert [path.name for path in work.iterdir()] == ["kept"]
    assert work.joinpath("kept").stat().st_uid == os.geteuid()
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert not Path("/tmp/private").exists()
    assert run("import os; print(os.listdir('/tmp'))").stdout == run("import os; print(os.listdir('/tmp'))").stdout


def test_no_file_of_the_host_is_there_but_the_system_and_python(run: Run):
    result = run(
        ["sh", "-c", "ls -A / /etc /root /home /run /var /srv /mnt 2>/dev/null; cat /etc/shadow /dev/mem /dev/vda"]
    )
    assert "shadow" not in result.stdout
    assert result.stderr.count("No such file or directory") == 3


def test_settings_of_the_kernel_cannot_be_written(run: Run):
    attack = """
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches",
             "/proc/sys/user/max_user_namespaces", "/proc/self/oom_score_adj", "/proc/1/oom_score_adj"):
    try:
        open(path, "w").write("1")
        print("WROTE", path)
    except OSError as error:
        print(error.strerror)
"""
    assert set(run(attack).stdout.splitlines()) <= {EROFS, "Permission denied"}


def test_no_rights_are_gained_by_namespaces_mounts_or_set_user_id_programs(run: Run):
    attack = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x20000, 0x40000000):
    print(libc.unshare(flags), os.strerror(ctypes.get_errno()))
CLONE, NEW_USER, SIGCHLD = 56 if os.uname().machine == "x86_64" else 220, 0x10000000, 17
print(libc.syscall(CLONE, NEW_USER | SIGCHLD, 0, 0, 0, 0), os.strerror(ctypes.get_errno()))
print(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None), os.strerror(ctypes.get_errno()))
print(libc.umount2(b"/usr", 2), libc.chroot(b"/tmp"), libc.setuid(0), libc.sethostname(b"x", 1))
print([line for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm", "NoNewPrivs"))])
"""
    lines = run(attack).stdout.splitlines()
    assert lines[:3] == [f"-1 {ENOSYS}"] * 3
    assert lines[3] == "-1 No space left on device"
    assert lines[4] == f"-1 {ENOSYS}"
    assert lines[5] == "-1 -1 -1 -1"
    assert lines[6] == str(["CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "NoNewPrivs:\t1\n"])


def test_the_environment_of_this_process_is_not_read(token: str, work: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", token)
    fresh = ProcessSandbox()
    attack = """
import glob, os
print(dict(os.environ))
for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/task/*/environ") + glob.glob("/proc/*/mem"):
    try:
        print(open(path, "rb").read(1 << 16))
    except OSError as error:
        print(path, error)
"""
    result = attacked(fresh, work, attack)
    assert "'HOME': '/tmp'" in result.stdout
    assert token not in result.stdout
    assert "/proc/1/environ [Errno 13]" in result.stdout
    assert f"/proc/{os.getpid()}/" not in result.stdout
    # Not even the processes outside that it is forked from have it.
    launchers = _launcher_processes()
    assert launchers
    assert not [pid for pid in launchers if token.encode() in Path(f"/proc/{pid}/environ").read_bytes()]
    # Without namespaces it is at least not handed on.
    assert token not in attacked(ProcessSandbox(namespaces="off"), work, "import os; print(dict(os.environ))").stdout


# --- network


def test_no_socket_of_the_host_is_reached_unless_the_network_is_allowed(run: Run, tmp_path: Path, token: str):
    attack = """
import socket, sys
port, path, name = int(sys.argv[1]), sys.argv[2], "\\0" + sys.argv[3]
for family, address in ((socket.AF_INET, ("127.0.0.1", port)), (socket.AF_UNIX, path), (socket.AF_UNIX, name)):
    try:
        socket.socket(family).connect(address)
        print("connected")
    except OSError as error:
        print(error.strerror)
"""
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        abstract.bind(f"\0{token}")
        abstract.listen()
        arguments = (str(tcp.getsockname()[1]), str(tmp_path / "socket"), token)
        assert run(attack, *arguments).stdout.splitlines() == [
            "Connection refused",
            "No such file or directory",
            "Connection refused",
        ]
        tcp.settimeout(0)
        with pytest.raises(BlockingIOError):
            tcp.accept()
        opened = run(attack, *arguments, network=True).stdout.splitlines()
        assert opened == ["connected", "No such file or directory", "connected"]


def test_its_own_loopback_works(run: Run):
    talk = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
server.accept()[0].sendall(b"hello")
print(client.recv(5))
"""
    assert run(talk).stdout == "b'hello'\n"


# --- streams


def test_a_flood_of_output_is_read_and_thrown_away(run_either: Run, token: str):
    both = f"yes {token} & yes {token} >&2"
    result = run_either(["sh", "-c", both], wall_s=0.25, output_bytes=1000)
    assert (result.end, result.output_cut) == (SandboxEnd.TIMEOUT, True)
    assert (len(result.stdout), len(result.stderr)) == (1000, 1000)
    assert living(token) == []
    finished = run_either("import sys\nfor _ in range(100): sys.stdout.write('x' * 65536)", output_bytes=10)
    assert (finished.end, finished.exit_code, finished.stdout) == (SandboxEnd.EXITED, 0, "x" * 10)


def test_a_flood_of_input_is_taken_in_full_or_left_unread(run_either: Run):
    flood = bytes(3 << 20)
    assert run_either(["wc", "-c"], stdin=flood).stdout.split() == [str(3 << 20)]
    assert run_either(["true"], stdin=flood).exit_code == 0
    assert run_either(["sleep", "60"], stdin=flood, wall_s=0.2).end == SandboxEnd.TIMEOUT


def test_bytes_that_are_no_text_are_replaced(run: Run):
    assert run(["printf", r"a\377\n"]).stdout == "a\ufffd\n"


# --- cancelled, abandoned


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", ["confined", "unconfined"])
def test_many_cancelled_runs_leave_no_process_descriptor_or_file(
    kind: str, request: pytest.FixtureRequest, work: Path, token: str
):
    sandbox: ProcessSandbox = request.getfixturevalue(kind)
    attack = "import os, time\nos.fork()\nif os.fork() == 0: os.setsid()\nopen('/tmp/mark', 'w')\ntime.sleep(60)"

    async def cancelled(after_s: float) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(after_s):
                await sandbox.run([sys.executable, "-I", "-S", "-c", attack, token], work_dir=work)
        # The moment that it is over everything is gone, not only in a while.

    async def run() -> None:
        await sandbox.run(["true"], work_dir=work)
        before = _open_descriptors()
        await asyncio.gather(*(cancelled(0.006 * n) for n in range(24)))
        assert living(token) == []
        assert _open_descriptors() <= before

    files = set(os.listdir("/tmp"))
    asyncio.run(run())
    assert not [name for name in set(os.listdir("/tmp")) - files if name.startswith("firstchair-sandbox")]


def test_runs_end_when_their_caller_is_killed(work: Path, token: str):
    caller = textwrap.dedent(f"""
        import asyncio, pathlib
        from firstchair.sandbox.process import ProcessSandbox
        attack = "trap '' TERM INT HUP; (setsid sleep 61 &); while :; do sleep 1; done # " + {token!r}
        command, work = ["sh", "-c", attack], pathlib.Path({str(work)!r})
        async def main():
            sandboxes = ProcessSandbox(), ProcessSandbox(namespaces="off")
            await asyncio.gather(*(sandbox.run(command, work_dir=work) for sandbox in sandboxes))
        asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", caller]) as caller_process:
        assert eventually(lambda: len(living(token)) > 2)  # the caller, and both attacks
        caller_process.kill()
    assert eventually(lambda: living(token) == [])


def _launcher_processes() -> set[int]:
    """The servers that this process started, and their keepers."""
    found, parents = set(), [os.getpid()]
    while parents:
        parent = parents.pop()
        with contextlib.suppress(OSError):
            for child in map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()):
                if b"firstchair.sandbox.launcher" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.add(child)
                    parents.append(child)
    return found


def test_a_run_after_the_launcher_was_killed_starts_a_new_one(work: Path):
    before = _launcher_processes()
    sandbox = ProcessSandbox()
    assert attacked(sandbox, work, ["true"]).exit_code == 0
    ours = _launcher_processes() - before
    assert len(ours) == 2  # the server, and a keeper that waits for the next run
    for pid in ours:
        os.kill(pid, 9)
    assert eventually(lambda: all(map(_has_ended, ours)))
    assert attacked(sandbox, work, ["true"]).exit_code == 0


def _has_ended(pid: int) -> bool:
    """Whether a process has closed its files: one that is dying loses its command line first."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_launcher_ends_with_its_sandbox_and_keeps_no_descriptors(work: Path, monkeypatch: pytest.MonkeyPatch):
    before = _launcher_processes()
    sandbox = ProcessSandbox()
    attacked(sandbox, work, ["true"])
    ours = _launcher_processes() - before
    keeper = max(ours)
    held = os.listdir(f"/proc/{keeper}/fd")
    for _ in range(3):
        attacked(sandbox, work, ["true"])
        with monkeypatch.context() as patch, pytest.raises(RunFailed):
            patch.setattr(process, "_work_dir", lambda path: "/no/such/folder")
            attacked(sandbox, work, ["true"])
    assert os.listdir(f"/proc/{keeper}/fd") == held
    del sandbox
    gc.collect()  # what pytest keeps of the errors holds it
    assert not (_launcher_processes() - before) & ours


def test_eight_runs_at_once_do_not_get_in_each_others_way(confined: ProcessSandbox, work: Path):
    attack = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        time.sleep(60)
print(sum(map(str.isdigit, os.listdir("/proc"))))
"""

    async def run() -> list[str]:
        limits = SandboxLimits(processes=8, wall_s=60)
        command = [sys.executable, "-I", "-S", "-c", attack]
        results = await asyncio.gather(*(confined.run(command, work_dir=work, limits=limits) for _ in range(8)))
        return [result.stdout for result in results]

    assert asyncio.run(run()) == ["8\n"] * 8
