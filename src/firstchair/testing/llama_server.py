"""A real llama.cpp server for slow tests: its own virtual environment, a free port, gone afterwards.

``make llama-env`` builds it from source into ``.venv-llama`` (ten minutes on two cores); ``FIRSTCHAIR_LLAMA_SERVER``
names another server that takes the same flags.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firstchair.core.errors import RunFailed
from firstchair.testing.engine_process import EngineProcess, free_port, running_engine


def llama_server() -> Path:
    """The server's executable. Raises ``RunFailed`` saying how to get one."""
    named = os.environ.get("FIRSTCHAIR_LLAMA_SERVER", ".venv-llama/bin/llama-cpp-server")
    path = Path(named).absolute()
    if not path.exists():
        raise RunFailed(f"{path}: no llama.cpp server; build one with: make llama-env")
    return path


@contextmanager
def running_llama(gguf: Path, log: Path, *, context: int = 2048) -> Iterator[EngineProcess]:
    """Serve ``gguf`` with the chat template it carries; its output goes to ``log``."""
    port = free_port()
    command = [str(llama_server()), "--model", str(gguf), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--ctx-size", str(context)]
    # Weights packed anew for AMX end in an illegal instruction where a virtual machine grants no tiles.
    environment = {"LLAMA_ARG_REPACK": "0"}
    with running_engine("llama.cpp", command, port, log, environment=environment) as server:
        yield server
