"""The gateway's pages say what the code does: fields, failures, threats; and the start runs as it is written."""

import contextlib
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tests.services import missing

from firstchair.catalog import usage
from firstchair.gateway import (
    blobs,
    canary,
    ending,
    http_server,
    limits,
    logs,
    metrics,
    serve,
    spool,
    stitch,
    upstream,
)
from firstchair.gateway.attempts import Verdict, decide
from firstchair.gateway.breaker import TRIPS
from firstchair.gateway.console import access, app
from firstchair.gateway.control import ledger, slots, store
from firstchair.gateway.control.slots import Retries
from firstchair.gateway.dialects import failures, sse
from firstchair.gateway.dialects.base import Failure, FailureKind
from firstchair.gateway.dialects.failures import anthropic_error, openai_error
from firstchair.gateway.exchange import shown
from firstchair.testing.gate_records import gate_record
from firstchair.testing.scripted_upstream import scripted_upstream
from firstchair.traces import database

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
ADDRESS = "127.0.0.1:8400"
WAIT_S = 240


def text_of(name):
    return (DOCS / name).read_text(encoding="utf-8")


# --- gateway-config.md ------------------------------------------------------------------------------------------


def test_the_reference_of_the_configuration_is_up_to_date():
    spec = importlib.util.spec_from_file_location("generate_gateway_config", DOCS / "generate_gateway_config.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert text_of("gateway-config.md") == module.page(), (
        "docs/gateway-config.md is stale; run: python docs/generate_gateway_config.py"
    )


# --- gateway-operations.md --------------------------------------------------------------------------------------

MIB = 2**20
FIXED = [
    ("request's line and headers", f"{http_server.MAX_HEAD_BYTES // MIB} MiB"),
    ("client's head", f"{http_server.OWED_S:g} s each"),
    ("sends on behind a refusal", f"{http_server.MAX_UNREAD_BYTES // MIB} MiB"),
    ("an idle connection:", f"{http_server.KEEPALIVE_S} s"),
    ("connections that wait", f"{serve.BACKLOG} for the port"),
    ("one event of", f"{sse.MAX_EVENT_BYTES // MIB} MiB"),
    ("provider's error, and", f"{upstream.MAX_ERROR_BYTES // MIB} MiB"),
    ("behind the last event", f"{upstream.LINGER_S:g} s"),
    ("provider's `retry-after`", {86_400: "one day"}[failures.MAX_RETRY_AFTER_S]),
    ("message of a provider's error", f"{failures.MAX_MESSAGE} characters"),
    ("token count", {10**12: "10¹²"}[usage.MAX_COUNT]),
    ("charged to a budget", f"{ending.MAX_SETTLED_NANO // 10**9 // 10**6} million dollars"),
    ("one record of the spool", f"{spool.MAX_RECORD // MIB} MiB"),
    ("`spool/blobs`", f"{blobs.MAX_BLOB // MIB} MiB"),
    ("open branches", f"{stitch.MAX_BYTES // MIB} MiB"),
    ("canary is judged by", f"newest {canary.MAX_CALLS} of its last {canary.WINDOW_S / 60:g} minutes"),
    ("names in the ledger", f"{ledger.MAX_NAME} characters"),
    ("log lines", f"{logs.MAX_LINES:,} of a worker"),
    ("series of metrics", f"{metrics.MAX_SERIES} of a worker"),
    ("worker that is silent", f"{store.LIVE_S:g} s, then {store.GONE_S:g} s"),
    ("locked SQLite file", f"{database.BUSY_TIMEOUT_S} s"),
    ("budget that is asked for", f"{limits.BOOK_WAIT_S:g} s"),
    ("budget that is asked for", f"{limits.MAX_ASKING} calls"),
    (
        "admin port",
        f"{app.MAX_BODY // 10**6} MB; logins: {access.LOGIN_S // 3600} hours, {access.MAX_LOGINS} at a time",
    ),
    ("a slot:", f"{slots.MAX_FALLBACKS} fallbacks, {slots.MAX_SHADOWS} shadows"),
]


@pytest.mark.parametrize(("what", "value"), FIXED, ids=[what for what, _ in FIXED])
def test_a_fixed_limit_stands_on_the_page_as_it_is_in_the_code(what, value):
    page = text_of("gateway-operations.md").partition("## Limits")[2].partition("\n## ")[0]
    (row,) = (line for line in page.splitlines() if line.startswith("|") and what in line)
    assert value in row


# --- gateway-failures.md ----------------------------------------------------------------------------------------


def failure_rows():
    """Kind → the cells behind it, of the table of failures before content."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text_of("gateway-failures.md"), re.MULTILINE)
    return {kind: [cell.strip() for cell in rest.split("|")] for kind, rest in rows}


ROWS = failure_rows()


def test_every_kind_of_failure_has_a_row():
    assert ROWS.keys() == {kind.value for kind in FailureKind}


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_row_says_what_a_failure_leads_to(kind):
    _, again, following, breaker, *_ = ROWS[kind.value]
    failure = Failure(kind=kind, message="x", status=None)

    def verdict(tries, *, constrained=False):
        return decide(
            failure, tries=tries, constrained=constrained, retries=Retries(), left_s=60, rng=random.Random(0)
        ).verdict

    first = {Verdict.RETRY: "yes", Verdict.CONSTRAIN: "once, bound to the schemas"}
    assert again == first.get(verdict(1), "no")
    last = verdict(Retries().attempts, constrained=kind is FailureKind.MALFORMED_CALL)
    assert following == ("yes" if last is Verdict.NEXT else "no")
    assert breaker == ("counts" if kind in TRIPS else "no")


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_row_says_what_each_client_sees(kind):
    openai, anthropic = ROWS[kind.value][-2:]
    told = shown(Failure(kind=kind, message="x", status=401))
    status, body = openai_error(told)
    assert openai == f"{status if kind is not FailureKind.BAD_REQUEST else 400} `{body['error']['type']}`"
    status, body = anthropic_error(told)
    assert anthropic == f"{status if kind is not FailureKind.BAD_REQUEST else 400} `{body['error']['type']}`"


# --- gateway-security.md ----------------------------------------------------------------------------------------

THREATS = [
    (path, name)
    for path, names in re.findall(r"`(tests/[\w/.]+\.py)`: ((?:`test_\w+`(?:, )?)+)", text_of("gateway-security.md"))
    for name in re.findall(r"`(test_\w+)`", names)
]


def test_the_threats_name_their_tests():
    assert len(THREATS) > 20


@pytest.mark.parametrize(("path", "name"), THREATS)
def test_a_test_that_a_threat_names_exists(path, name):
    assert re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


# --- gateway.md -------------------------------------------------------------------------------------------------


def start_of(folder, upstream):
    """``gateway.yaml`` of the page, with the scripted upstream in the place of the vendors."""
    (text, *_) = [body for language, body in FENCE.findall(text_of("gateway.md")) if language == "yaml"]
    config = yaml.safe_load(text)
    for provider in config["providers"].values():
        provider["base_url"] = upstream.base_url + ("" if provider["type"] == "anthropic" else "/v1")
    (folder / "gateway.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


def environment():
    own = {name: value for name, value in os.environ.items() if not name.startswith(("FIRSTCHAIR_", "OPENAI_"))}
    keys = {"ANTHROPIC_API_KEY": "sk-ant-x", "OPENAI_API_KEY": "sk-x"}
    return {**own, **keys, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@contextlib.contextmanager
def served(folder):
    """``firstchair gateway serve`` as the page starts it, on a free port; its address."""
    command = ["gateway", "serve", "--set", "listen.port=0", "--set", "listen.admin_port=0"]
    log = folder / "serve.log"
    with log.open("w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "firstchair", *command], cwd=folder, env=environment(), stderr=stderr
        )
    try:
        deadline = time.monotonic() + WAIT_S
        while not ((folder / "traces.db").exists() and (folder / "spool" / "sink.json").exists()):
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
            time.sleep(0.05)
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        yield f"127.0.0.1:{next(line['port'] for line in lines if line['event'] == 'listening')}"
    finally:
        process.terminate()
        process.wait(WAIT_S)


@pytest.mark.timeout(1200)  # two dozen commands, each a process of its own; machines are not always free
def test_the_start_runs_as_written(tmp_path):
    if shutil.which("curl") is None:
        missing("curl", "install curl")
    shells = [body for language, body in FENCE.findall(text_of("gateway.md")) if language == "sh"]
    programs = [body for language, body in FENCE.findall(text_of("gateway.md")) if language == "python"]
    assert len(programs) == 2
    install, before, *after = shells
    assert "pip install" in install
    assert before.count("firstchair gateway serve\n") == 1
    script = tmp_path / "after.sh"
    with scripted_upstream() as upstream:
        start_of(tmp_path, upstream)
        record = gate_record("local/orchestrator-4b", "sonnet")
        (tmp_path / "gates.json").write_text(json.dumps(record), encoding="utf-8")
        run(["bash", "-euc", before.replace("firstchair gateway serve\n", "")], tmp_path)
        with served(tmp_path) as address:
            parts = [part.replace(ADDRESS, address) for part in after]
            for number, program in enumerate(programs):
                (tmp_path / f"agent{number}.py").write_text(program.replace(ADDRESS, address), encoding="utf-8")
            runnable = [number for number, program in enumerate(programs) if not absent(program)]
            parts.insert(1, "\n".join(f"python agent{number}.py" for number in runnable))
            script.write_text("\n".join(parts), encoding="utf-8")
            said = run(["bash", "-euo", "pipefail", str(script)], tmp_path)
            asked = len(upstream.requests)
    assert asked >= 1 + len(runnable)
    assert "Hello there." in said
    assert "sonnet version" in said
    assert "the drill is over" in said or "slot.promote" in said


def absent(program):
    names = re.findall(r"^(?:from|import) (\w+)", program, re.MULTILINE)
    return [name for name in names if importlib.util.find_spec(name) is None]


def run(command, folder):
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout
