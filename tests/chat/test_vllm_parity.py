"""Parity with a real vLLM server. Slow: it needs 3.5 GB of packages and half a minute to start each server.

``FIRSTCHAIR_VLLM_PYTHON`` names the Python of an environment that ``make_vllm.sh`` made; without it the script
makes one under the user's cache directory.
"""

import json
import os
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from firstchair.cli.main import app
from firstchair.testing.tokenizers import make_tokenizer
from firstchair.train.tiny import build_model, save_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def vllm_python() -> Path:
    named = os.environ.get("FIRSTCHAIR_VLLM_PYTHON")
    if named:
        return Path(named)
    directory = Path.home() / ".cache" / "firstchair" / "vllm"
    if not (directory / "bin" / "python").exists():
        subprocess.run([Path(__file__).parent / "make_vllm.sh", directory], check=True)
    return directory / "bin" / "python"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serving(python: Path, model: Path, log: Path):
    port = free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "m"]
    command += ["--port", port, "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as out:
        server = subprocess.Popen(
            list(map(str, command)), stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            until = time.monotonic() + 600
            while True:
                assert server.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < until, "vLLM did not start in ten minutes"
                try:
                    if httpx.get(f"{url}/health").status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                time.sleep(1)
            yield url
        finally:
            os.killpg(server.pid, signal.SIGTERM)  # its engine is a child of its own
            server.wait(60)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", ["tiny", "qwen3"])
def test_every_built_in_case_has_the_prompt_that_vllm_makes(family, vllm_python, tmp_path):
    tokenizer = make_tokenizer(family)
    save_model(build_model(len(tokenizer)), tokenizer, tmp_path / "model")
    with serving(vllm_python, tmp_path / "model", tmp_path / "vllm.log") as url:
        result = CliRunner().invoke(app, ["parity", "--model", str(tmp_path / "model"), "--base-url", url, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    report = json.loads(result.stdout)
    differing = [one for one in report["comparisons"] if one["match"] != "equal"]
    assert differing == []
    assert len(report["comparisons"]) > 15
