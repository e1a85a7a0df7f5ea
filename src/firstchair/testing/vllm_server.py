"""A real vLLM server on the CPU for slow tests: its own virtual environment, a free port, gone afterwards.

``make slow-env`` makes the environment ``.venv-vllm``; ``FIRSTCHAIR_VLLM_PYTHON`` names another interpreter that has
vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from firstchair.core.errors import RunFailed
from firstchair.testing.engine_process import EngineProcess, free_port, running_engine

MODEL = "m"
VllmServer = EngineProcess


def vllm_python() -> Path:
    """The interpreter that has vLLM. Raises ``RunFailed`` saying how to get one."""
    named = os.environ.get("FIRSTCHAIR_VLLM_PYTHON", ".venv-vllm/bin/python")
    path = Path(named).absolute()
    if not path.exists():
        raise RunFailed(f"{path}: no interpreter with vLLM; make one with: make slow-env")
    return path


@contextmanager
def running_vllm(
    model_dir: Path,
    log: Path,
    *,
    max_model_len: int = 2048,
    extra: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[VllmServer]:
    """Serve ``model_dir`` in fp32 under the name ``m``; its output goes to ``log``.

    Raises ``RunFailed`` with the log's end when it does not come up.
    """
    port = free_port()
    command = [str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    # A request's seed together with chunked prefill kills vLLM's engine on the CPU.
    command += ["--enforce-eager", "--max-model-len", str(max_model_len), "--no-enable-chunked-prefill"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", *extra]
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with running_engine("vLLM", command, port, log, environment={**own, **(environment or {})}) as server:
        yield server
