"""The admin port of a running gateway."""

import json
import signal
import subprocess
import sys

import httpx
import yaml

from firstchair.gateway.control.store import ControlStore


def test_a_promote_by_the_api_returns_when_every_worker_serves_by_it(tmp_path):
    config = {
        "listen": {"port": 0, "admin_port": 0},
        "providers": {"up": {"type": "openai-compatible", "base_url": "http://127.0.0.1:9/v1"}},
        "slots": [{"slot": "main", "primary": {"provider": "up", "model": "a"}}],
        "workers": 2,
    }
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(config))
    with ControlStore.open(tmp_path / "gateway.db") as store:
        secret = store.create_key("boss", ["admin"], who="test").secret
    process = subprocess.Popen(
        [sys.executable, "-m", "firstchair", "gateway", "serve", "--config", str(tmp_path / "gateway.yaml")],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = (json.loads(line) for line in process.stderr if line.startswith("{"))
        port = next(line["admin_port"] for line in lines if line["event"] == "listening")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"x-api-key": secret}, timeout=120) as client:
            body = {"route": "up/b", "override": "test"}
            made = client.post("/api/slots/main/promote", json=body).json()
            assert made["workers_behind"] == []
            status = client.get("/api/status").json()
            assert status["workers_behind"] == []
            assert client.get("/login").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
