"""Containers by command line: what the engine is told, and what its answers mean.

The engine here is a script that writes down what it was told and runs the command in place of a container.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from tests.sandbox.conftest import eventually, living

from firstchair.core.errors import ConfigError, RunFailed
from firstchair.sandbox import container
from firstchair.sandbox.base import Sandbox, SandboxEnd, SandboxLimits, SandboxResult
from firstchair.sandbox.container import Container, ContainerSandbox, Engine, apptainer_arguments, docker_arguments
from firstchair.sandbox.launcher.client import Launcher

ENGINE = """#!/bin/sh
{{ for word; do echo "$word"; done; echo; }} >> {folder}/told
case "$1" in
run | exec)
    if [ -e {folder}/refusal ]; then cat {folder}/refusal >&2; exit 125; fi
    while [ "$1" != the-image ]; do
        if [ "$1" = --workdir ] || [ "$1" = --pwd ]; then cd "$2"; fi
        shift
    done
    shift
    echo $$ > {folder}/pid
    exec "$@" ;;
inspect) cat {folder}/state ;;
rm) if [ -e {folder}/rm-refusal ]; then cat {folder}/rm-refusal >&2; exit 1; fi
    kill -9 "$(cat {folder}/pid)" 2>/dev/null ;;
esac
exit 0
"""
DOWN = "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
HELP = "Run 'docker run --help' for more information"


class Script:
    """The engine's folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def calls(self) -> list[list[str]]:
        return [call.splitlines() for call in (self.folder / "told").read_text().split("\n\n") if call]


@pytest.fixture(scope="module")
def launcher() -> Launcher:
    """One for all, since to start one takes a while."""
    return Launcher()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: Launcher) -> Script:
    monkeypatch.setattr(container, "Launcher", lambda: launcher)
    folder = tmp_path / "engines"
    folder.mkdir()
    for name in ("docker", "podman", "apptainer"):
        script = folder / name
        script.write_text(ENGINE.format(folder=folder))
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Script(folder)


def run(work: Path, *command: str, kind: Engine = "docker", stdin: bytes = b"", **limits: object) -> SandboxResult:
    sandbox = ContainerSandbox(engine=kind, image="the-image")
    return asyncio.run(
        sandbox.run(command, work_dir=work, stdin=stdin, limits=SandboxLimits(**{"wall_s": 20, **limits}))  # type: ignore[arg-type]
    )


DOCKER = """
run --interactive --init --pull never --name the-name --label firstchair=sandbox --network none --user 7:8
--cap-drop ALL --security-opt no-new-privileges --read-only --tmpfs /tmp:rw,nosuid,nodev,size=2m,mode=1777
--mount type=bind,source=/work,target=/work --workdir /work --memory 100m --memory-swap 100m --pids-limit 6
--ulimit cpu=2 --ulimit fsize=2097152 --ulimit nofile=256 --ulimit core=0
--env HOME=/tmp --env TMPDIR=/tmp --env LANG=C.UTF-8 the-image echo x
"""
APPTAINER = """
exec --containall --no-home --no-privs --net --network none --bind /work:/work --pwd /work
--memory 100M --pids-limit 7 --env TMPDIR=/tmp,LANG=C.UTF-8 image.sif echo
"""


def test_docker_is_told_every_limit():
    it = Container("the-image", "the-name", "/work", "7:8")
    limits = SandboxLimits(memory_mb=100, processes=5, disk_mb=2, cpu_s=1.5)
    assert docker_arguments(it, ["echo", "x"], limits) == DOCKER.split()
    assert "bridge" in docker_arguments(it, [], SandboxLimits(network=True))
    assert "keep-id" in docker_arguments(it, [], SandboxLimits(), rootless=True)


def test_apptainer_is_told_what_it_can_do():
    it = Container("image.sif", "the-name", "/work", "7:8")
    assert apptainer_arguments(it, ["echo"], SandboxLimits(memory_mb=100, processes=5)) == APPTAINER.split()
    assert "--net" not in apptainer_arguments(it, [], SandboxLimits(network=True))


@pytest.mark.parametrize("kind", ["docker", "podman", "apptainer"])
def test_a_command_gives_its_streams_and_exit_code_and_the_container_is_removed(
    engine: Script, work: Path, kind: Engine
):
    result = run(work, "sh", "-c", "cat; pwd; echo oops >&2; exit 3", kind=kind, stdin=b"hello\n")
    assert (result.end, result.exit_code, result.output_cut) == (SandboxEnd.EXITED, 3, False)
    assert (result.stdout, result.stderr) == (f"hello\n{work}\n", "oops\n")
    assert isinstance(ContainerSandbox(engine=kind, image="x"), Sandbox)
    calls = engine.calls()
    if kind == "apptainer":
        assert len(calls) == 1
    else:
        name = calls[0][calls[0].index("--name") + 1]
        assert calls[1:] == [["rm", "--force", "--volumes", name]]


def test_output_is_cut_without_the_mark(engine: Script, work: Path):
    result = run(work, "sh", "-c", "printf 0123456789", output_bytes=4)
    assert (result.stdout, result.output_cut) == ("0123", True)


def test_a_container_that_takes_too_long_is_killed(engine: Script, work: Path, token: str):
    result = run(work, "sh", "-c", f"echo begun; sleep 60; : {token}", wall_s=1.5)
    assert (result.end, result.exit_code, result.stdout) == (SandboxEnd.TIMEOUT, None, "begun\n")
    assert engine.calls()[-1][:2] == ["rm", "--force"]
    assert living(token) == []


def test_a_cancelled_run_removes_its_container(engine: Script, work: Path, token: str):
    async def cancelled() -> None:
        sandbox = ContainerSandbox(image="the-image")
        task = asyncio.create_task(sandbox.run(["sh", "-c", f"touch begun; sleep 60; : {token}"], work_dir=work))
        assert await asyncio.to_thread(eventually, work.joinpath("begun").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert [call[0] for call in engine.calls()] == ["run", "rm"]
    assert living(token) == []


def test_who_is_killed_for_memory_is_told_from_who_is_killed(engine: Script, work: Path):
    (engine.folder / "state").write_text('{"OOMKilled": true, "ExitCode": 137}')
    result = run(work, "sh", "-c", "exit 137")
    assert (result.end, result.exit_code) == (SandboxEnd.MEMORY, None)
    (engine.folder / "state").write_text('{"OOMKilled": false, "ExitCode": 137}')
    assert run(work, "sh", "-c", "exit 137").exit_code == 137


def test_who_fills_the_work_dir_is_killed(engine: Script, work: Path, token: str):
    fill = f"dd if=/dev/zero of=filled bs=1M count=4 2>/dev/null; sleep 60; : {token}"
    assert run(work, "sh", "-c", fill, disk_mb=2, wall_s=60).end == SandboxEnd.DISK
    assert living(token) == []


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (f"{DOWN}\n\n{HELP}", "docker daemon running?; start its service"),
        ("docker: Error response from daemon: No such image: the-image", "run: docker pull the-image"),
        (
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
            "let this user use it",
        ),
        ("INFO: Mounting\nFATAL: no such thing", "docker: the container did not start: FATAL: no such thing"),
        ("", "exit code 125, without a word"),
    ],
)
def test_an_engine_that_does_not_start_the_command_is_no_result(engine: Script, work: Path, refusal: str, words: str):
    (engine.folder / "refusal").write_text(refusal)
    with pytest.raises(RunFailed) as failed:
        run(work, "true")
    assert words in str(failed.value)


def test_a_command_cannot_pass_for_a_broken_engine(engine: Script, work: Path):
    (engine.folder / "state").write_text('{"OOMKilled": false, "ExitCode": 125}')
    result = run(work, "sh", "-c", f"echo '{DOWN}' >&2; exit 125")
    assert (result.end, result.exit_code) == (SandboxEnd.EXITED, 125)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo 'docker: error waiting for container: unexpected EOF' >&2; exit 125", "unexpected EOF"),
        ("kill -9 $$", "exit code -9"),
    ],
)
def test_an_engine_that_breaks_while_the_command_runs_is_no_result(
    engine: Script, work: Path, command: str, words: str
):
    """Here the command plays the engine: its exit code is the engine's, and the container knows of none."""
    (engine.folder / "state").write_text("[" * 5_000)
    with pytest.raises(RunFailed, match=f"docker: broke off, .*{words}"):
        run(work, "sh", "-c", command)
    assert engine.calls()[-1][:2] == ["rm", "--force"]


@pytest.mark.parametrize("refusal", ["Error: device or resource\nbusy", DOWN])
def test_a_container_that_may_run_on_is_told(engine: Script, work: Path, refusal: str):
    (engine.folder / "rm-refusal").write_text(refusal)
    with pytest.raises(RunFailed, match=r"(resource busy|daemon running\?); remove it by hand"):
        run(work, "true")


def test_a_container_that_is_being_removed_is_gone(engine: Script, work: Path):
    (engine.folder / "rm-refusal").write_text("removal of container x is already in progress")
    assert run(work, "true").exit_code == 0


def test_the_real_docker_without_its_service_is_no_result(work: Path, monkeypatch: pytest.MonkeyPatch):
    if shutil.which("docker"):
        monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
        with pytest.raises(RunFailed, match="start its service"):
            run(work, "true")


def test_an_engine_that_is_not_installed_and_a_folder_it_would_misread_are_refused(
    engine: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "a,b"
    folder.mkdir()
    with pytest.raises(ConfigError, match="holds a comma"):
        run(folder, "true")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"sandbox\.engine: podman: not on PATH"):
        ContainerSandbox(engine="podman", image="x")
