"""What large requests take of a worker's memory: refused in words, and never more than the configuration says."""

import json
import re
import subprocess
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import httpx
import pytest
from tests.gateway.test_serve import WAIT_S, served

from firstchair.testing.scripted_upstream import Fault, Reply, Script

MIB = 2**20
CALLS = 20


def peak_mb(gateway):
    """The most that any process of the gateway had of physical memory, so far."""
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(gateway.process.pid)], capture_output=True, text=True, check=True
    )
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in children.stdout.split()]
    return max(int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) for status in statuses) / 1024


def post(gateway, path, body, *, chunked):
    content = (body[at : at + MIB] for at in range(0, len(body), MIB)) if chunked else body
    headers = {"x-api-key": gateway.key, "content-type": "application/json"}
    return httpx.post(gateway.url + path, content=content, headers=headers, timeout=WAIT_S)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens"])
def test_a_hundred_megabytes_are_refused_and_take_no_more_than_the_limit(tmp_path, upstream, path):
    body = json.dumps({"model": "main", "messages": [{"role": "user", "content": "x" * 100_000_000}]}).encode()
    with served(tmp_path, upstream) as gateway:
        assert gateway.ask().status_code == 200
        before = peak_mb(gateway)
        answers = [post(gateway, path, body, chunked=False)]
        assert peak_mb(gateway) - before < 16
        answers.append(post(gateway, path, body, chunked=True))
        assert peak_mb(gateway) - before < 64 + 32
        assert gateway.ask().status_code == 200
    for answer in answers:
        assert answer.status_code == 413
        assert answer.json()["error"]["message"] == "the body is longer than 64000000 bytes; send less"
    assert len(upstream.requests) == 2


def test_many_large_bodies_at_once_take_no_more_than_all_may_together(tmp_path, upstream):
    """Of twenty bodies of 8 MB three have room at once; the others are told to come again."""
    upstream.script = Script((Reply(text="Hello.", fault=Fault("hang_before_headers")),), record=False)
    # Many small values take most: some fourteen times their text.
    messages = [{"role": "user", "content": "Hi"}] * 240_000
    body = json.dumps({"model": "main", "max_tokens": 5, "messages": messages}, separators=(",", ":")).encode()
    assert 7_000_000 < len(body) < 8_000_000
    limits = {"max_body_mb": 8, "max_bodies_mb": 24}
    with served(tmp_path, upstream, limits=limits) as gateway, ThreadPoolExecutor(CALLS) as pool:
        before = peak_mb(gateway)
        waiting = {pool.submit(post, gateway, "/v1/messages", body, chunked=number % 2) for number in range(CALLS)}
        answers = []
        while waiting:
            done, waiting = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
            answers += [call.result() for call in done]
            if len(waiting) <= 3:
                upstream.release()
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {200, 529}
        assert statuses.count(200) <= 3
        refused = answers[statuses.index(529)]
        assert refused.json()["error"]["type"] == "overloaded_error"
        assert "24000000 bytes together already" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1
        assert peak_mb(gateway) - before < 20 * 24
        # What was held is let go.
        upstream.script = Script((Reply(text="Hello."),), record=False)
        assert post(gateway, "/v1/messages", body, chunked=True).status_code == 200
