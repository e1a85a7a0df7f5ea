"""What is measured, each as processes of its own in front of the same upstream: started, paused, measured, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.sink import SinkStatus, read_status

HERE = Path(__file__).parent
MODEL = "gpt-4o-mini"
"""What providers are asked for: a name that every gateway's price table has."""
START_S = 600.0


class NotInstalled(Exception):
    """A target that this machine has not."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A process group of its own, which ends when its input does or when it is told."""
    environment = {**os.environ, **(env or {})}
    with log.open("w") as errors:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,
        )


def end(process: subprocess.Popen[str], wait_s: float = 20.0) -> None:
    """SIGTERM to the leader, SIGKILL to what is left of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGCONT)
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Upstreams:
    """The process of ``upstream.py``."""

    def __init__(self, folder: Path):
        self.process = start([sys.executable, str(HERE / "upstream.py")], folder / "upstream.log")
        assert self.process.stdout is not None
        self.urls: dict[str, str] = json.loads(self.process.stdout.readline())


@dataclass
class Target:
    """One running target."""

    name: str
    ports: Mapping[str, int]
    """By kind of answer; the upstreams themselves have one each."""
    headers: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    """Of its routes."""
    model: str = "{}"
    """How a client names the model of a kind."""
    process: subprocess.Popen[str] | None = None
    speaks: frozenset[str] = frozenset({"openai", "anthropic"})
    spool: Path | None = None
    """Firstchair's."""
    start_s: float = 0.0
    calls: int = 0
    """Sent so far, the first one that waits for the start too."""

    def processes(self) -> list[psutil.Process]:
        if self.process is None:
            return []
        leader = psutil.Process(self.process.pid)
        return [leader, *leader.children(recursive=True)]

    def sink_pid(self) -> int | None:
        status = self.status()
        return None if status is None else status.pid

    def status(self) -> SinkStatus | None:
        return None if self.spool is None else read_status(self.spool)

    def cpu(self) -> tuple[float, float]:
        """Seconds of everything but the sink, and of the sink."""
        sink, used = self.sink_pid(), [0.0, 0.0]
        for process in self.processes():
            times = process.cpu_times()
            used[process.pid == sink] += times.user + times.system
        return used[0], used[1]

    def rss_mb(self) -> tuple[float, float]:
        """Of the largest process that is no sink, and of the sink."""
        sink, most = self.sink_pid(), [0.0, 0.0]
        for process in self.processes():
            place = int(process.pid == sink)
            most[place] = max(most[place], process.memory_info().rss / 1e6)
        return most[0], most[1]

    def pause(self) -> None:
        """What a target does later of its own accord must not fall into the rounds of another."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, number)

    def settle(self, wait_s: float = 10.0) -> None:
        """Wait until the sink has put every call into the ledger."""
        deadline = time.monotonic() + wait_s
        asked_us = time.time_ns() // 1000
        while self.spool is not None and time.monotonic() < deadline:
            status = self.status()
            if status is not None and status.at_us > asked_us and not status.waiting_bytes:
                return
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            end(self.process, 70.0)


def body(model: str, text: str = "Hi") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


def wait_for_answer(target: Target, began: float, log: Path) -> None:
    """Until a chat is answered; that is the start-up time."""
    kind = next(iter(target.ports))
    data = json.dumps(body(target.model.format(kind))).encode()
    headers = {"content-type": "application/json", **target.headers}
    url = f"http://127.0.0.1:{target.ports[kind]}{target.prefix}/v1/chat/completions"
    while time.perf_counter() - began < START_S:
        if target.process is not None and target.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=5):
                target.start_s = time.perf_counter() - began
                target.calls += 1
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.01)
    target.stop()
    raise NotInstalled(f"it does not answer; the end of its log: {log.read_text(errors='replace')[-1000:]}")


# --- the targets --------------------------------------------------------------------------------------------------


def direct(upstreams: Upstreams) -> Target:
    return Target("direct", {kind: int(url.rpartition(":")[2]) for kind, url in upstreams.urls.items()})


def gateway_yaml(folder: Path, urls: Mapping[str, str], **more: Any) -> tuple[Path, str]:
    """A configuration with a slot for each kind of answer and everything on, and a key."""
    kind = {"type": "openai-compatible"}
    data = {
        "listen": {"port": free_port(), "admin_port": free_port()},
        "workers": 1,
        "providers": {name: {**kind, "base_url": f"{url}/v1"} for name, url in urls.items()},
        "slots": [{"slot": name, "primary": {"provider": name, "model": MODEL}} for name in urls],
        **more,
    }
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    with ControlStore.open(folder / "gateway.db") as store:
        return path, store.create_key("bench", who="bench").secret


def firstchair(folder: Path, urls: Mapping[str, str]) -> Target:
    path, key = gateway_yaml(folder, urls)
    port = yaml.safe_load(path.read_text())["listen"]["port"]
    log, began = folder / "firstchair.log", time.perf_counter()
    process = start([sys.executable, "-m", "firstchair", "gateway", "serve", "--config", str(path)], log)
    target = Target(
        "firstchair",
        dict.fromkeys(urls, port),
        headers={"authorization": f"Bearer {key}"},
        process=process,
        spool=folder / "spool",
    )
    wait_for_answer(target, began, log)
    target.settle()
    return target


def passthrough(folder: Path, upstreams: Upstreams) -> Target:
    port, log, began = free_port(), folder / "passthrough.log", time.perf_counter()
    process = start([sys.executable, str(HERE / "passthrough.py"), str(port), json.dumps(upstreams.urls)], log)
    # It cannot translate, so it is no peer for that.
    target = Target("passthrough", dict.fromkeys(upstreams.urls, port), process=process, speaks=frozenset({"openai"}))
    wait_for_answer(target, began, log)
    return target


def litellm(folder: Path, upstreams: Upstreams, executable: Path) -> Target:
    if not executable.exists():
        raise NotInstalled("python -m venv .venv-litellm && .venv-litellm/bin/pip install 'litellm[proxy]==1.108.7'")
    models = [
        {
            "model_name": kind,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "unused"},
        }
        for kind, url in upstreams.urls.items()
    ]
    config, log, port = folder / "litellm.yaml", folder / "litellm.log", free_port()
    config.write_text(yaml.safe_dump({"model_list": models, "general_settings": {"master_key": "sk-bench"}}))
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        # Without it the Anthropic endpoint asks OpenAI's Responses API; all targets translate to chat completions.
        "LITELLM_USE_CHAT_COMPLETIONS_URL_FOR_ANTHROPIC_MESSAGES": "true",
    }
    command = [str(executable), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    began = time.perf_counter()
    process = start([*command, "--num_workers", "1", "--telemetry", "False"], log, env=environment)
    target = Target(
        "litellm",
        dict.fromkeys(upstreams.urls, port),
        headers={"authorization": "Bearer sk-bench", "x-api-key": "sk-bench"},
        process=process,
    )
    wait_for_answer(target, began, log)
    return target


def tensorzero(folder: Path, upstreams: Upstreams, python: Path) -> Target:
    if not python.exists():
        raise NotInstalled("python -m venv .venv-tensorzero && .venv-tensorzero/bin/pip install tensorzero openai")
    config, log = folder / "tensorzero.toml", folder / "tensorzero.log"
    lines = ["[gateway]", "observability.enabled = false"]
    for kind, url in upstreams.urls.items():
        lines += [f"[models.{kind}]", 'routing = ["up"]', f"[models.{kind}.providers.up]", 'type = "openai"']
        lines += [f'model_name = "{MODEL}"', f'api_base = "{url}/v1/"', 'api_key_location = "env::BENCH_KEY"']
    config.write_text("\n".join(lines) + "\n")
    began = time.perf_counter()
    command = [str(python), str(HERE / "tensorzero_gateway.py"), str(config)]
    process = start(command, log, env={"BENCH_KEY": "unused"})
    assert process.stdout is not None
    # It logs to the same stream.
    line = next((line for line in process.stdout if line.startswith('{"base_url"')), None)
    if line is None:
        end(process)
        raise NotInstalled(f"it does not start; the end of its log: {log.read_text(errors='replace')[-1000:]}")
    port = int(json.loads(line)["base_url"].split(":")[2].partition("/")[0])
    target = Target(
        "tensorzero",
        dict.fromkeys(upstreams.urls, port),
        model="tensorzero::model_name::{}",
        process=process,
        speaks=frozenset({"openai"}),
        prefix="/openai",
    )
    wait_for_answer(target, began, log)
    return target
