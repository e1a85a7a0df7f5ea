"""What ``deploy/`` holds: files that parse, say what the gateway takes, and fit one another."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
import yaml
from tests.services import missing

from firstchair.cli import gateway as gateway_cli
from firstchair.gateway.config import is_loopback, load_config
from firstchair.gateway.serve import _MARGIN_S, SINK_STOP_S
from firstchair.traces.database import store_url

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "firstchair-gateway.service"
EXAMPLES = ["gateway.yaml", "compose/gateway.yaml"]


def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def longest_stop_s(config):
    """What a supervisor must leave the gateway after SIGTERM."""
    return config.drain_s + _MARGIN_S + SINK_STOP_S


def unit():
    pairs = [line.split("=", 1) for line in UNIT.read_text(encoding="utf-8").splitlines() if re.match(r"\w+=", line)]
    return dict(pairs)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_configuration(name):
    config = load_config(DEPLOY / name)
    assert {"anthropic", "openai"} <= config.providers.keys()
    assert config.auth.require_keys
    for slot in config.slots:
        assert any(pattern.endswith("*") for pattern in slot.match), slot.slot
    store_url(config.database)
    store_url(config.recording.store)


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_example_holds_a_secret(name):
    config = load_config(DEPLOY / name)
    for provider in config.providers.values():
        assert provider.api_key_env or provider.api_key_file
    assert store_url(config.database).password is None


def test_the_example_listens_on_this_machine_only():
    listen = load_config(DEPLOY / "gateway.yaml").listen
    assert is_loopback(listen.host)
    assert is_loopback(listen.admin_host)


def test_both_examples_have_the_same_slots():
    first, second = (load_config(DEPLOY / name).slots for name in EXAMPLES)
    assert first == second


# --- Compose ----------------------------------------------------------------------------------------------------


def test_the_container_can_do_little():
    gateway = compose()["services"]["gateway"]
    assert gateway["read_only"] is True
    assert gateway["cap_drop"] == ["ALL"]
    assert gateway["security_opt"] == ["no-new-privileges:true"]
    user = gateway["user"].split(":")[0]
    assert int(user) > 0
    assert f"USER {gateway['user']}" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert all(port.startswith("127.0.0.1:") for port in gateway["ports"])


def test_what_the_gateway_reads_and_writes_is_mounted():
    services, config = compose()["services"], load_config(DEPLOY / "compose/gateway.yaml")
    mounts = dict(volume.split(":")[:2] for volume in services["gateway"]["volumes"])
    # A folder: an editor puts a new file in the place of the old one, and a mount of the old one would not show it.
    assert mounts["./compose"] == "/etc/firstchair"
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert f"FIRSTCHAIR_GATEWAY_CONFIG={mounts['./compose']}/gateway.yaml" in image
    assert str(config.spool).startswith(mounts["state"] + "/")
    socket = Path(str(store_url(config.database).query["unix_sock"]))
    assert str(socket.parent) == mounts["socket"]
    assert f"socket:{socket.parent}" in services["db"]["volumes"]
    for provider in config.providers.values():
        assert provider.api_key_file.parent == Path("/run/secrets")
        assert provider.api_key_file.name in services["gateway"]["secrets"]
    environment, url = services["db"]["environment"], store_url(config.database)
    assert (environment["POSTGRES_USER"], environment["POSTGRES_DB"]) == (url.username, url.database)


def test_every_secret_and_volume_of_compose_is_declared():
    file = compose()
    for service in file["services"].values():
        assert set(service.get("secrets", [])) <= file["secrets"].keys()
        named = {volume.split(":")[0] for volume in service.get("volumes", [])}
        assert {name for name in named if not name.startswith(".")} <= file["volumes"].keys()


def test_compose_waits_for_the_drain_and_asks_the_port_that_is_served():
    gateway, config = compose()["services"]["gateway"], load_config(DEPLOY / "compose/gateway.yaml")
    assert int(gateway["stop_grace_period"].removesuffix("s")) > longest_stop_s(config)
    assert f":{config.listen.port}/readyz" in gateway["healthcheck"]["test"][-1]
    assert gateway["ports"] == [f"127.0.0.1:{port}:{port}" for port in (config.listen.port, config.listen.admin_port)]
    assert config.listen.admin_host == config.listen.host
    compile(gateway["healthcheck"]["test"][-1], "healthcheck", "exec")


def test_the_image_copies_what_there_is_and_starts_a_command():
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    for line in (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines():
        if line.startswith("!"):
            assert (DEPLOY.parent / line[1:]).exists(), line
    entry = yaml.safe_load(re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[1])
    words = yaml.safe_load(re.search(r"^CMD (.*)$", text, re.MULTILINE)[1])
    assert entry == ["firstchair"]
    parse(words)
    assert "FIRSTCHAIR_GATEWAY_CONFIG=/etc/firstchair/gateway.yaml" in text


# --- systemd ----------------------------------------------------------------------------------------------------


def parse(words):
    """``words`` after ``firstchair`` as the command line reads them."""
    assert words[0] == "gateway"
    group = typer.main.get_command(gateway_cli.app)
    return group.commands[words[1]].make_context(words[1], list(words[2:]))


def test_the_unit_starts_a_command_that_exists():
    program, *words = shlex.split(unit()["ExecStart"])
    assert Path(program).name == "firstchair"
    assert str(parse(words).params["config"]) == "/etc/firstchair/gateway.yaml"


def test_the_unit_stops_the_parent_and_waits_for_the_drain():
    settings = unit()
    assert settings["KillSignal"] == "SIGTERM"
    assert settings["KillMode"] == "mixed"  # SIGTERM to the sink would end it before the workers
    assert int(settings["TimeoutStopSec"]) > longest_stop_s(load_config(DEPLOY / "gateway.yaml"))


def test_the_unit_is_started_again_however_long_its_database_is_away():
    settings = unit()
    assert (settings["Restart"], settings["StartLimitIntervalSec"]) == ("on-failure", "0")
    assert int(settings["RestartSec"]) >= 1


def test_the_unit_gives_nothing_away():
    settings = unit()
    assert settings["NoNewPrivileges"] == "yes"
    assert settings["ProtectSystem"] == "strict"
    assert settings["StateDirectory"] == "firstchair"
    assert settings["CapabilityBoundingSet"] == ""
    assert settings["User"] != "root"


def test_systemd_reads_the_unit(tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        missing("systemd-analyze", "install systemd")
    copy = tmp_path / UNIT.name
    program = tmp_path / "firstchair"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    copy.write_text(
        UNIT.read_text(encoding="utf-8").replace("/opt/firstchair/bin/firstchair", str(program)), encoding="utf-8"
    )
    done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert UNIT.name not in done.stderr, done.stderr
