"""Parity with a real vLLM server. Slow: it needs 3.5 GB of packages (``make slow-env``) and half a minute to start
each server."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from firstchair.cli.main import app
from firstchair.testing.tokenizers import make_tokenizer
from firstchair.testing.vllm_server import running_vllm
from firstchair.train.tiny import build_model, save_model

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", ["tiny", "qwen3"])
def test_every_built_in_case_has_the_prompt_that_vllm_makes(family: str, tmp_path: Path):
    tokenizer = make_tokenizer(family)
    save_model(build_model(len(tokenizer)), tokenizer, tmp_path / "model")
    with running_vllm(tmp_path / "model", tmp_path / "vllm.log") as server:
        url = server.openai_url.removesuffix("/v1")
        result = CliRunner().invoke(app, ["parity", "--model", str(tmp_path / "model"), "--base-url", url, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    report = json.loads(result.stdout)
    differing = [one for one in report["comparisons"] if one["match"] != "equal"]
    assert differing == []
    assert len(report["comparisons"]) > 15
