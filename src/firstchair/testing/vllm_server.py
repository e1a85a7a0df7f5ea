"""A real vLLM server on the CPU for slow tests: its own virtual environment, a free port, gone afterwards.

``make slow-env`` makes the environment ``.venv-vllm``; ``FIRSTCHAIR_VLLM_PYTHON`` names another interpreter that has
vLLM.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from firstchair.core.errors import RunFailed

MODEL = "m"
START_S = 300.0


@dataclass(frozen=True)
class VllmServer:
    """A running server."""

    port: int
    pid: int
    """Of the process group's leader."""
    log: Path

    @property
    def openai_url(self) -> str:
        """With ``/v1``."""
        return f"http://127.0.0.1:{self.port}/v1"

    def kill(self) -> None:
        """SIGKILL to the server and its workers, as a machine that dies would."""
        os.killpg(self.pid, signal.SIGKILL)


def vllm_python() -> Path:
    """The interpreter that has vLLM. Raises ``RunFailed`` saying how to get one."""
    named = os.environ.get("FIRSTCHAIR_VLLM_PYTHON", ".venv-vllm/bin/python")
    path = Path(named).absolute()
    if not path.exists():
        raise RunFailed(f"{path}: no interpreter with vLLM; make one with: make slow-env")
    return path


@contextmanager
def running_vllm(
    model_dir: Path, log: Path, *, max_model_len: int = 2048, extra: Sequence[str] = ()
) -> Iterator[VllmServer]:
    """Serve ``model_dir`` in fp32 under the name ``m``; its output goes to ``log``.

    Raises ``RunFailed`` with the log's end when it does not come up.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    # A request's seed together with chunked prefill kills vLLM's engine on the CPU.
    command += ["--enforce-eager", "--max-model-len", str(max_model_len), "--no-enable-chunked-prefill"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", *extra]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    server = VllmServer(port=port, pid=process.pid, log=log)
    try:
        _wait(server, process)
        yield server
    finally:
        _end(process)


def _wait(server: VllmServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RunFailed(f"vLLM ended with exit code {process.returncode}: {_tail(server.log)}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=2):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
    raise RunFailed(f"vLLM did not answer within {START_S:g} s: {_tail(server.log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    for sign, wait_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]
