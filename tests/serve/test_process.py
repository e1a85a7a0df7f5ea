"""``firstchair serve`` as a process: what it needs, what it says, and how it stops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from firstchair.chat.messages import ToolCall
from firstchair.core.config import load_recipe
from firstchair.core.errors import ConfigError
from firstchair.serve.config import ServeConfig, keys_of
from firstchair.serve.process import serve
from firstchair.testing.scripted_answers import Fault, Reply, Script, Seen
from firstchair.testing.scripted_upstream import ScriptedUpstream, scripted_upstream

CATALOG = """
experts: [{{model: lab/near-9b, category: local_open_source, summary: A small model.}}]
endpoints: {{near_9b: "{url}/v1"}}
"""
CONFIG = """
listen: {{port: 0}}
catalog: {folder}/catalog.yaml
experts: [near_9b]
tools: {{tools: [{{type: calculator}}]}}
policy: {{type: server, base_url: "{url}/v1", model: policy}}
policy_price: {{input: 1, output: 1}}
api_keys: [SERVE_TEST_KEY]
budget_usd: 0.5
drain_s: 120
"""
CALLS = (
    ToolCall.of("a", "near_9b", {"input": "What is 1 + 1?"}),
    ToolCall.of("b", "calculator", {"expression": "1 + 1"}),
)
CLIENTS = 6
START_S = 200


def reply(seen: Seen) -> Reply:
    """The expert's answer hangs until it is let go."""
    if seen.body["model"] == "lab/near-9b":
        return Reply(text="It is 2.", fault=Fault("hang_before_headers"))
    if seen.body["messages"][-1]["role"] == "user":
        return Reply(text="I ask.", calls=CALLS)
    return Reply(text="FINAL_ANSWER: 2")


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with scripted_upstream(Script(by=reply)) as running:
        yield running


@pytest.fixture
def config(tmp_path: Path, upstream: ScriptedUpstream) -> Path:
    (tmp_path / "catalog.yaml").write_text(CATALOG.format(url=upstream.base_url))
    path = tmp_path / "serve.yaml"
    path.write_text(CONFIG.format(folder=tmp_path, url=upstream.base_url))
    return path


@contextmanager
def process(config: Path, errors: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    with errors.open("w") as stderr:
        running = subprocess.Popen(
            [sys.executable, "-m", "firstchair", "serve", "--config", str(config)],
            env=os.environ | environ,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def leave(url: str, upstream: ScriptedUpstream) -> None:
    """Ask, and close the connection when an expert is being asked; until that call is ended too."""
    body = json.dumps({"model": "orchestrator", "messages": [{"role": "user", "content": "what is 1 + 1?"}]})
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as sock:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k1\r\n"
        sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        upstream.wait_until(lambda seen: seen.holding == 1, START_S)
    upstream.wait_until(lambda seen: seen.disconnects == 1, START_S)


def test_a_client_that_leaves_ends_its_calls_and_a_stop_under_load_loses_no_answer(
    config: Path, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    errors = tmp_path / "stderr"
    with process(config, errors, SERVE_TEST_KEY="k1") as running, ThreadPoolExecutor(CLIENTS) as threads:
        assert running.stdout is not None
        line = running.stdout.readline()
        found = re.fullmatch(
            r"orchestrator on (http://127\.0\.0\.1:\d+/v1)  "
            r"\(policy leads 1 expert and 1 tool; at most \$0\.5 a request; 1 key; Ctrl-C stops\)\n",
            line,
        )
        assert found, line

        leave(found[1], upstream)

        def ask(number: int) -> Any:
            with openai.OpenAI(base_url=found[1], api_key="k1", max_retries=0) as client:
                words: list[Any] = [{"role": "user", "content": f"Problem {number}: what is 1 + 1?"}]
                if number % 2:
                    return client.chat.completions.create(model="orchestrator", messages=words)
                with client.chat.completions.stream(model="orchestrator", messages=words) as stream:
                    return stream.get_final_completion()

        asked = [threads.submit(ask, number) for number in range(CLIENTS)]
        upstream.wait_until(lambda seen: seen.holding == CLIENTS, START_S)
        running.send_signal(signal.SIGTERM)
        while '"stopping"' not in errors.read_text():
            assert running.poll() is None
            time.sleep(0.02)
        with pytest.raises(openai.InternalServerError) as refused:
            ask(CLIENTS)
        assert (refused.value.status_code, refused.value.code) == (503, "overloaded")
        assert refused.value.response.headers["retry-after"] == "1"
        upstream.release()
        answers = [one.result() for one in asked]
        assert running.wait(150) == 0
    assert [answer.choices[0].message.content for answer in answers] == ["2"] * CLIENTS
    report = answers[1].model_extra["firstchair"]
    assert ([row["name"] for row in report["experts"]], report["cost_usd"]) == (["near_9b"], 0)
    assert ([row["name"] for row in report["tools"]], report["policy_cost_usd"] > 0) == (["calculator"], True)
    events = [json.loads(line) for line in errors.read_text().splitlines()]
    assert {event["event"] for event in events} == {"request", "stopping", "stopped"}
    assert [event["status"] for event in events if event["event"] == "request"] == [499, 503, *[200] * CLIENTS]
    assert "what is" not in errors.read_text()


def test_a_stop_that_cannot_wait_tells_the_client_and_the_exit_code(
    config: Path, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    config.write_text(config.read_text().replace("drain_s: 120", "drain_s: 1"))
    errors = tmp_path / "stderr"
    with process(config, errors, SERVE_TEST_KEY="k1") as running, ThreadPoolExecutor(1) as threads:
        assert running.stdout is not None
        url = re.search(r"http://\S+", running.stdout.readline())
        assert url
        body = {"model": "orchestrator", "messages": [{"role": "user", "content": "what is 1 + 1?"}]}
        headers = {"authorization": "Bearer k1"}
        asked = threads.submit(httpx.post, f"{url[0]}/chat/completions", json=body, headers=headers, timeout=START_S)
        upstream.wait_until(lambda seen: seen.holding == 1, START_S)
        running.send_signal(signal.SIGTERM)
        answer = asked.result()
        assert running.wait(START_S) == 1
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
    assert [row["calls"] for row in answer.json()["error"]["firstchair"]["experts"]] == [1]
    *_, stopped, told = errors.read_text().splitlines()
    assert json.loads(stopped)["cut"] == 1
    assert "1 request had no answer 1 s after the stop and was cut short" in told


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("timeout_s=1", "answer_after_s (480) is above timeout_s (1)"),
        ("budget_usd=0", "budget_usd: Input should be greater than 0"),
        ("polcy=1", "did you mean policy?"),
        ("experts=[nobody]", "nobody: no such expert"),
        ("preference={nobody: 1}", "preference.nobody: nothing has this name"),
        ("listen.host=203.0.113.1", "listen: cannot listen on 203.0.113.1:0"),
        ("policy.api_key_env=SERVE_TEST_NONE", "policy.api_key_env: the environment variable SERVE_TEST_NONE"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_served(config: Path, change: str, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        serve(load_recipe(ServeConfig, config, [change]), {"SERVE_TEST_KEY": "k"}, print)
    assert named in str(refused.value)


def test_keys_are_needed_where_others_can_connect_and_must_be_set(config: Path) -> None:
    with pytest.raises(ConfigError, match="SERVE_TEST_KEY is not set"):
        keys_of(load_recipe(ServeConfig, config), {})
    with pytest.raises(ConfigError, match=r"can be reached from elsewhere; name api_keys"):
        load_recipe(ServeConfig, config, ["listen.host=0.0.0.0", "api_keys=[]"])
