"""A reload: the file is read again by a gateway that runs, wholly or not at all."""

import asyncio
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import yaml
from tests.gateway.served import WAIT_S, served

from firstchair.core.config import validate
from firstchair.core.errors import ConfigError
from firstchair.gateway.config import GatewayConfig
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.metrics import metrics_text
from firstchair.gateway.reload import SOCKET, Control, ask_reload, changeable_fields, plan
from firstchair.gateway.upstream import Upstream
from firstchair.gateway.worker import Worker
from firstchair.testing.gateway_server import provider
from firstchair.testing.scripted_upstream import Fault, Reply, Script

UP = {"type": "anthropic", "base_url": "http://127.0.0.1:9"}
SLOT = {"slot": "main", "primary": {"provider": "up", "model": "m"}}


def config_of(**fields):
    return validate(GatewayConfig, {"providers": {"up": UP}, **fields}, source="test")


def test_a_plan_takes_what_can_change_and_names_the_rest():
    running = config_of(workers=2, recording={"idle_s": 5}, slots=[SLOT])
    read = config_of(
        workers=3,
        listen={"port": 9000},
        database="other.db",
        drain_s=1,
        providers={"up": {**UP, "context_window": 9}, "new": UP},
        prices="prices.yaml",
        limits={"max_depth": 9},
        recording={"idle_s": 6, "patterns": ["x"], "redact": False},
    )
    made = plan(running, read)
    assert made.needs_restart == ("listen.port", "workers", "database", "recording.idle_s", "drain_s")
    assert made.changed == (
        "prices",
        "providers.new",
        "providers.up",
        "limits.max_depth",
        "recording.redact",
        "recording.patterns",
    )
    assert (made.config.workers, made.config.database, made.config.recording.idle_s) == (2, "gateway.db", 5)
    assert (made.config.providers, made.config.limits.max_depth) == (read.providers, 9)
    assert made.config.recording.patterns == ("x",)
    again = plan(made.config, read)
    assert (again.changed, again.needs_restart) == ((), made.needs_restart)
    assert {name.partition(".")[0] for name in made.changed} <= {
        name.partition(".")[0] for name in changeable_fields()
    }


def test_a_removed_provider_is_a_change():
    assert plan(config_of(providers={"up": UP, "old": UP}), config_of()).changed == ("providers.old",)


def test_connections_are_closed_behind_the_last_call_that_began_with_them(tmp_path, monkeypatch):
    closed, close = [], Upstream.close

    async def closing(upstream):
        closed.append(upstream)
        await close(upstream)

    monkeypatch.setattr(Upstream, "close", closing)
    config = config_of(database=str(tmp_path / "g.db"), spool=tmp_path / "spool")
    changed = config_of(database=config.database, spool=config.spool, providers={"up": UP, "new": UP})

    def is_closed(setup):
        return [upstream in closed for upstream in setup.upstreams.values()]

    async def reload():
        with ControlStore.open(config.database) as store:
            worker = Worker(config, "w0", store)
            await worker.open()
            old, kept = worker.take_setup(), worker.setup.breakers["up"]
            lane = old.lane()
            await worker.prepare(changed)
            assert worker.setup is old
            worker.use()
            assert sorted(worker.setup.upstreams) == ["new", "up"]
            assert worker.setup.breakers["up"] is kept  # what is known of a provider that stays is kept
            await asyncio.gather(*worker._closing)
            assert is_closed(old) + is_closed(lane) == [False, False]
            worker.give_back(old)
            await asyncio.gather(*worker._closing)
            assert is_closed(old) + is_closed(lane) == [True, True]
            await worker.prepare(config)
            dropped = worker._next
            await worker.drop()
            worker.use()
            assert is_closed(dropped) == [True]
            assert sorted(worker.setup.upstreams) == ["new", "up"]
            await worker.close()

    asyncio.run(reload())


def test_nobody_is_asked_where_no_gateway_runs(tmp_path):
    with pytest.raises(ConfigError, match="no gateway runs on the spool"):
        ask_reload(tmp_path, who="ann")
    control = Control(tmp_path)
    assert (tmp_path / SOCKET).stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="another gateway"):
        Control(tmp_path)
    control.forget()  # as a kill leaves it
    with pytest.raises(ConfigError, match="no gateway runs on the spool"):
        ask_reload(tmp_path, who="ann")
    Control(tmp_path).close()
    assert not (tmp_path / SOCKET).exists()


def rewritten(gateway, **fields):
    """``gateway.yaml`` with other fields."""
    path = gateway.folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | fields))


def sent_keys(upstream):
    """The gateway's keys that a provider was sent."""
    return {dict(seen.headers).get("x-api-key") for seen in upstream.requests}


@pytest.fixture
def keyed(tmp_path, upstream):
    """A gateway of two workers whose provider's key lies in a file."""
    (tmp_path / "key").write_text("first-key")
    up = provider(upstream.base_url, "anthropic", api_key_file="key")
    with served(tmp_path, upstream, workers=2, providers={"up": up}) as gateway:
        gateway.up = up
        yield gateway


def asked_often(gateway, times=8):
    """Calls on connections of their own, so that both workers get some; who answered."""
    return {gateway.ask().headers["x-firstchair-provider"] for _ in range(times)}


def test_new_keys_and_providers_hold_in_every_worker_and_calls_under_way_finish_as_they_began(
    tmp_path, upstream, backup, keyed
):
    upstream.script = Script((Reply(text="Hello.", fault=Fault("hang_before_headers")),))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(keyed.ask)
        upstream.wait_until(lambda it: it.holding == 1)
        (tmp_path / "key").write_text("second-key\n")
        moved = {**keyed.up, "base_url": backup.base_url}
        rewritten(
            keyed,
            providers={"up": moved, "new": provider(backup.base_url, "anthropic")},
            workers=5,
            limits={"max_depth": 9},
            slots=[{"slot": "main", "primary": {"provider": "new", "model": "other"}}],
        )
        done = ask_reload(tmp_path / "spool", who="ann", why="the key leaked")
        assert done.changed == ("providers.new", "providers.up", "limits.max_depth")
        assert (done.needs_restart, done.slots_not_applied, done.behind) == (("workers",), ("main",), ())
        assert asked_often(keyed) == {"up/claude-sonnet-4-6"}
        upstream.release()
        assert running.result().status_code == 200
    assert sent_keys(upstream) == {"first-key"}
    assert len(upstream.requests) == 1
    assert sent_keys(backup) == {"second-key"}
    with ControlStore.open(tmp_path / "gateway.db") as store:
        entry = store.audit_log(1)[0]
        assert (entry.who, entry.action, entry.why) == ("ann", "config.reload", "the key leaked")
        assert entry.details == {"changed": list(done.changed), "needs_restart": ["workers"]}
    line = keyed.event("reloaded")
    assert (line["who"], line["needs_restart"]) == ("ann", ["workers"])
    assert "second-key" not in str(keyed.lines)
    # A worker that is started again begins by it too.
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(keyed.process.pid)], capture_output=True, text=True, check=True
    )
    for pid in map(int, children.stdout.split()):
        os.kill(pid, signal.SIGKILL)
    keyed.event("restarting")
    assert asked_often(keyed) == {"up/claude-sonnet-4-6"}
    assert len(upstream.requests) == 1
    keyed.stop()
    assert not (tmp_path / "spool" / SOCKET).exists()


def test_a_wrong_file_changes_nothing_and_says_why(tmp_path, upstream, backup, keyed):
    path = tmp_path / "gateway.yaml"
    whole = path.read_text()
    moved = {**keyed.up, "base_url": backup.base_url}
    wrong = [
        ({"provides": {}}, "provides: unknown field; did you mean providers"),
        ({"providers": {"other": moved}, "slots": []}, "provider up is unknown; expected one of other; leave"),
        ({"providers": {"up": {**moved, "api_key_file": "gone"}}}, "providers.up.api_key_file"),
        ({"providers": {"up": moved}, "recording": {"patterns": ["("]}}, r"recording.patterns\[0\]"),
        # Only the workers import a hook: one that cannot be imported is refused by them.
        ({"providers": {"up": moved}, "recording": {"redact_hook": "no_such.module:f"}}, "redact_hook.*imported"),
        ({"providers": {"up": moved}, "prices": "none.yaml"}, "prices: .*none.yaml"),
    ]
    for fields, words in wrong:
        rewritten(keyed, **fields)
        with pytest.raises(ConfigError, match=f"not reloaded, the gateway runs on as it did: (?s:.*){words}"):
            ask_reload(tmp_path / "spool", who="ann")
        path.write_text(whole)
    assert asked_often(keyed) == {"up/claude-sonnet-4-6"}
    assert sent_keys(upstream) == {"first-key"}
    assert backup.requests == []
    assert keyed.event("reload_refused")["who"] == "ann"
    with ControlStore.open(tmp_path / "gateway.db") as store:
        assert [entry.action for entry in store.audit_log()].count("config.reload") == 0


def test_another_budget_of_shadows_holds_in_the_worker_and_the_console_without_a_restart(tmp_path, upstream, backup):
    providers = {name: provider(to.base_url, "anthropic") for name, to in (("up", upstream), ("next", backup))}
    shadow = {"provider": "next", "model": "claude-haiku-4-5"}
    slot = {"slot": "main", "primary": {"provider": "up", "model": "claude-sonnet-4-6"}, "shadow": [shadow]}
    with served(tmp_path, upstream, providers=providers, slots=[slot], shadow={"budget_usd": 0}) as gateway:
        assert gateway.ask().status_code == 200
        deadline = time.monotonic() + WAIT_S
        while 'firstchair_shadow_dropped_total{reason="budget"} 1' not in metrics_text(tmp_path / "spool"):
            assert time.monotonic() < deadline, gateway.lines
            time.sleep(0.05)
        rewritten(gateway, shadow={"budget_usd": 1, "budget_period": "total", "at_once": 2})
        done = ask_reload(tmp_path / "spool", who="ann")
        assert (done.changed, done.needs_restart) == (
            ("shadow.at_once", "shadow.budget_usd", "shadow.budget_period"),
            (),
        )
        assert gateway.ask().status_code == 200
        backup.wait_until(lambda it: len(it.requests) == 1)
        with ControlStore.open(tmp_path / "gateway.db") as store:
            boss = store.create_key("boss", ["admin"], who="test").secret
        base = f"http://127.0.0.1:{gateway.event('listening')['admin_port']}"
        told = httpx.get(base + "/api/shadow", headers={"x-api-key": boss}, timeout=WAIT_S).json()["budget"]
        assert (told["budget_nano"], told["budget_period"]) == (10**9, "total")


def test_a_hangup_and_the_admin_api_reload_too(tmp_path, upstream, backup, keyed):
    rewritten(keyed, providers={"up": {**keyed.up, "base_url": backup.base_url}})
    keyed.process.send_signal(signal.SIGHUP)
    assert keyed.event("reloaded")["changed"] == ["providers.up"]
    assert asked_often(keyed, 4) == {"up/claude-sonnet-4-6"}
    assert upstream.requests == []
    with ControlStore.open(tmp_path / "gateway.db") as store:
        assert store.audit_log(1)[0].who == "SIGHUP"
        boss = store.create_key("boss", ["admin"], who="test").secret
    new = provider(upstream.base_url, "anthropic")
    rewritten(keyed, providers={"up": {**keyed.up, "base_url": backup.base_url}, "new": new})
    base = f"http://127.0.0.1:{keyed.event('listening')['admin_port']}"
    with httpx.Client(base_url=base, headers={"x-api-key": boss}, timeout=WAIT_S) as admin:
        slot = {"config": {"slot": "main", "primary": {"provider": "new", "model": "m"}}}
        assert admin.put("/api/slots/main", json=slot).status_code == 409
        done = admin.post("/api/reload", json={"why": "a second vendor"}).json()
        assert (done["changed"], done["behind"]) == (["providers.new"], [])
        assert admin.put("/api/slots/main", json=slot).json()["workers_behind"] == []
        rewritten(keyed, provides=1)
        refused = admin.post("/api/reload", json={})
        assert refused.status_code == 409
        assert "provides: unknown field" in refused.json()["error"]["message"]
    assert asked_often(keyed, 4) == {"new/m"}
