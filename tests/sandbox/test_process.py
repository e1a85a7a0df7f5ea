"""The process sandbox as a caller knows it: results, refusals, what it says of itself."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.sandbox.conftest import Run, attacked

from firstchair.core.errors import ConfigError, RunFailed
from firstchair.sandbox import process
from firstchair.sandbox.base import Sandbox, SandboxEnd, SandboxLimits
from firstchair.sandbox.launcher import syscalls
from firstchair.sandbox.launcher.client import Launcher
from firstchair.sandbox.launcher.filter import program
from firstchair.sandbox.launcher.job import Caps, Job, View
from firstchair.sandbox.launcher.server import serve
from firstchair.sandbox.process import ProcessSandbox

NOBODY = 65534


def test_it_is_a_sandbox(confined: ProcessSandbox):
    assert isinstance(confined, Sandbox)


def test_a_result_holds_streams_exit_code_and_time(run_either: Run, work: Path):
    result = run_either(["sh", "-c", "cat; pwd; echo oops >&2; exit 3"], stdin=b"hello\n")
    assert (result.end, result.exit_code, result.output_cut) == (SandboxEnd.EXITED, 3, False)
    assert (result.stdout, result.stderr) == (f"hello\n{work}\n", "oops\n")
    assert 0 < result.seconds < 20


def test_a_signal_is_a_negative_exit_code(run: Run):
    assert run("import os\nos.kill(os.getpid(), 11)").exit_code == -11
    # Python ignores the signal of a broken pipe, and what it starts must not.
    assert run(["sh", "-c", "kill -PIPE $$"]).exit_code == -13


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["no-such-command"], 127, "no-such-command: No such file or directory"),
        (["/etc"], 126, "/etc: Permission denied"),
        (["echo", "\0"], 126, "echo: embedded null byte"),
        (["sh", "-c", "x" * 140_000], 126, "sh: Argument list too long"),
    ],
)
def test_a_command_that_cannot_be_run_says_so_like_in_a_shell(run: Run, command: list[str], code: int, words: str):
    result = run(command)
    assert (result.end, result.exit_code, result.stderr.strip()) == (SandboxEnd.EXITED, code, words)


def test_files_are_kept_in_the_work_dir_between_runs(run: Run, work: Path):
    work.joinpath("given").write_text("1")
    run(["sh", "-c", "cp given kept && mkdir -p a/b && echo 2 > a/b/c && ln -s kept link"])
    assert run(["sh", "-c", "cat kept link a/b/c"]).stdout == "112\n"
    assert work.joinpath("a/b/c").stat().st_uid == os.geteuid()


def test_the_interpreter_with_its_packages_is_there(run: Run):
    found = run([sys.executable, "-c", "import pydantic, sys; print(sys.prefix)"], memory_mb=1024)
    assert (found.stdout, found.stderr) == (f"{sys.prefix}\n", "")


def test_what_is_named_as_readable_can_be_read_and_not_written(work: Path, tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "table").write_text("rows")
    look = ["sh", "-c", f"cat {data}/table; echo x > {data}/new"]
    result = attacked(ProcessSandbox(readable=[data]), work, look)
    assert result.stdout == "rows"
    assert "Read-only file system" in result.stderr


@pytest.mark.parametrize(
    ("folder", "words"),
    [("/no/such/folder", "no such directory"), ("/tmp", "has a /tmp of its own"), ("/", "has a / of its own")],
)
def test_a_work_dir_that_cannot_be_is_refused(confined: ProcessSandbox, folder: str, words: str):
    with pytest.raises(ConfigError, match=words):
        attacked(confined, Path(folder), ["true"])


@pytest.mark.parametrize("place", ["/dev/shm", "/var/tmp"])
def test_a_work_dir_may_lie_where_the_sandbox_has_a_link(confined: ProcessSandbox, place: str):
    with TemporaryDirectory(dir=place) as folder:
        result = attacked(confined, Path(folder), ["sh", "-c", f"echo 1 > kept; cat {folder}/kept"])
        assert (result.stdout, result.stderr) == ("1\n", "")
        assert Path(folder, "kept").read_text() == "1\n"
        assert not Path("/tmp", Path(folder).name).exists()


def test_a_work_dir_of_another_user_is_not_opened_to_it(run: Run, work: Path):
    if os.geteuid() == 0:
        os.chown(work, NOBODY, NOBODY)
        assert run(["touch", "x"]).exit_code == 1


def test_a_fault_of_the_set_up_is_raised_and_not_an_exit_code(run_either: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "_work_dir", lambda path: "/no/such/folder")
    with pytest.raises(RunFailed, match=r"process sandbox: .*No such file or directory"):
        run_either(["true"])


def test_limits_out_of_range_are_refused():
    for wrong in ({"wall_s": 0}, {"memory_mb": -1}, {"processes": 0}, {"cpu_s": float("inf")}):
        with pytest.raises(ValueError, match="validation error"):
            SandboxLimits(**wrong)  # type: ignore[arg-type]


def test_it_says_what_it_holds_with_namespaces_and_without(confined: ProcessSandbox, unconfined: ProcessSandbox):
    assert all(protection.holds for protection in asyncio.run(confined.describe()))
    lacking = {protection.what for protection in asyncio.run(unconfined.describe()) if not protection.holds}
    assert lacking == {
        "number of processes",
        "writes only to the work dir and a private /tmp",
        "files and sockets of the host",
        "other processes",
        "network",
        "rights on the machine",
    }


@contextmanager
def launcher_after(prepare: Callable[[], None]) -> Iterator[Launcher]:
    """A launcher whose server has done ``prepare`` first."""
    ours, theirs = socket.socketpair()
    server = os.fork()
    if server == 0:
        try:
            ours.close()
            prepare()
            serve(theirs.detach())
        finally:
            os._exit(0)
    theirs.close()
    launcher = Launcher()
    launcher._control = ours
    try:
        yield launcher
    finally:
        for end in (*launcher._idle, ours):
            end.close()
        os.waitpid(server, 0)


def _lose_namespaces() -> None:
    syscalls.renounce_privileges()
    syscalls.filter_system_calls(program(os.uname().machine))


def test_where_there_are_no_namespaces_it_refuses_unless_weaker_isolation_is_accepted(
    work: Path, monkeypatch: pytest.MonkeyPatch
):
    with launcher_after(_lose_namespaces) as launcher:
        strict, weaker = ProcessSandbox(), ProcessSandbox(namespaces="if_available")
        for sandbox in (strict, weaker):
            monkeypatch.setattr(sandbox, "_launcher", launcher)
        with pytest.raises(
            RunFailed, match=r"mount options at /: Function not implemented; .*namespaces: if_available"
        ):
            attacked(strict, work, ["true"])
        assert attacked(weaker, work, ["echo", "ran"]).stdout == "ran\n"
        found = {protection.what: protection for protection in asyncio.run(weaker.describe())}
        assert not found["network"].holds
        assert "Function not implemented" in asyncio.run(strict.describe())[-1].how


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    syscalls.show_in_proc()


def test_an_ordinary_user_gets_the_same(work: Path):
    """Root's commands run as a spare user; here is what others have: their own user, alone in its namespace."""
    if os.geteuid() != 0:
        return  # then every other test shows it
    os.chown(work, NOBODY, NOBODY)
    for folder in work.parents[: -len(Path(tempfile.gettempdir()).parts)]:
        folder.chmod(0o755)
    attack = (
        "id -u; touch kept; touch /usr/x; cat /proc/1/environ; for n in 1 2 3 4 5 6 7 8; do sleep 60 & done; echo x"
    )
    job = Job(
        command=("sh", "-c", attack),
        environment={"PATH": "/usr/bin:/bin"},
        work_dir=str(work),
        wall_s=20,
        output_bytes=10_000,
        caps=Caps(cpu_s=10, memory_bytes=1 << 28, processes=6, disk_bytes=1 << 20),
        view=View(readable=(), network=False),
    )
    with launcher_after(_become_nobody) as launcher:
        outcome = asyncio.run(launcher.run(job))
    assert outcome.stdout == b"1000\n"
    for words in (b"Read-only file system", b"/proc/1/environ: Permission denied", b"Cannot fork"):
        assert words in outcome.stderr
    assert work.joinpath("kept").stat().st_uid == NOBODY
