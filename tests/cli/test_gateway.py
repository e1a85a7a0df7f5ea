import json
import threading

import pytest
import yaml

from firstchair.catalog.token_counts import TokenCounts
from firstchair.cli.gateway_view import nano_of, usd
from firstchair.core.errors import ConfigError
from firstchair.gateway.control.ledger import insert_records
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.dialects.base import FailureKind
from firstchair.gateway.records import CallRecord, Outcome
from firstchair.gateway.reload import Control, Reloaded
from firstchair.testing.gate_records import gate_record

SLOT = {
    "slot": "desk",
    "match": ["claude-*"],
    "primary": {"provider": "anthropic", "model": "claude-sonnet-4-6"},
    "canary": {"route": {"provider": "local", "model": "small"}, "percent": 5},
}
CONFIG = {
    "database": "state/gateway.db",
    "providers": {
        "anthropic": {
            "type": "anthropic",
            "base_url": "https://api.anthropic.com",
            "api_key_env": "TEST_ANTHROPIC_KEY",
        },
        "local": {"type": "openai-compatible", "base_url": "http://127.0.0.1:8000/v1"},
    },
}


@pytest.fixture
def gateway(run, tmp_path, monkeypatch):
    """Runs `firstchair gateway …` beside a gateway.yaml: stdout, after the exit code was checked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FIRSTCHAIR_WHO", "ann")
    monkeypatch.setenv("TEST_ANTHROPIC_KEY", "sk-canary-secret")
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(CONFIG))
    (tmp_path / "slot.yaml").write_text(yaml.safe_dump(SLOT))

    def call(*arguments, code=0):
        found, out, err = run("gateway", *arguments)
        assert found == code, out + err
        assert "sk-canary-secret" not in out + err
        return out if code == 0 else err

    return call


@pytest.fixture
def store(gateway, tmp_path):
    with ControlStore.open(tmp_path / "state" / "gateway.db") as opened:
        yield opened


def test_a_slot_is_set_shown_and_set_again_from_what_was_shown(gateway, store, tmp_path):
    assert "desk version 1 (set): anthropic/claude-sonnet-4-6" in gateway(
        "slots", "set", "slot.yaml", "--why", "first"
    )
    shown = gateway("slots", "show", "desk")
    assert yaml.safe_load(shown) == {**SLOT}
    (tmp_path / "again.yaml").write_text(shown)
    assert gateway("slots", "set", "again.yaml", "--if-version", 1) == "desk: stands so already\n"
    (first,) = store.history("desk")
    assert (first.who, first.why) == ("ann", "first")
    listing = gateway("slots", "ls")
    assert "local/small 5%" in listing
    assert "1 slot in sqlite:///" in listing
    assert "changed meanwhile" in gateway("slots", "set", "again.yaml", "--if-version", 0, code=2)
    assert json.loads(gateway("slots", "ls", "--json"))[0]["config"]["timeouts"]["total_s"] == 600


def test_the_slots_of_one_file_are_set_together_and_what_changes_is_shown(gateway, store, tmp_path):
    gateway("slots", "set", "slot.yaml")
    local = {"provider": "local", "model": "small"}
    moved = {**SLOT, "match": [], "canary": None, "primary": local}
    plan = {"slot": "plan", "match": ["claude-*"], "primary": SLOT["primary"]}
    notes = {"slot": "notes", "primary": local}
    (tmp_path / "all.yaml").write_text(yaml.safe_dump({"slots": [plan, moved, notes]}))
    revision = store.revision()
    tried = gateway("slots", "set", "all.yaml", "--dry-run")
    assert "--- desk version 1" in tried
    assert "-  model: claude-sonnet-4-6\n" in tried
    assert "+  model: small\n" in tried
    assert "--- (no slot)\n+++ notes\n" in tried
    assert tried.endswith("dry run: nothing was changed\n")
    assert store.revision() == revision
    # A name goes from one slot to another: as all stand then, no two match it.
    done = gateway("slots", "set", "all.yaml", "--why", "the plan is a slot of its own")
    assert done.startswith(tried.removesuffix("dry run: nothing was changed\n"))
    assert "plan version 1 (set): anthropic/claude-sonnet-4-6\ndesk version 2 (set): local/small\n" in done
    assert store.snapshot().slot_for("claude-x").slot == "plan"
    assert {entry.why for entry in store.audit_log(3)} == {"the plan is a slot of its own"}
    # The file of the gateway has slots too; those that stand so already get no version.
    (tmp_path / "gateway.yaml").write_text(
        yaml.safe_dump({**CONFIG, "slots": [moved, {**notes, "max_tokens_default": 9}]})
    )
    data = json.loads(gateway("slots", "set", "gateway.yaml", "--json"))
    assert [(one["slot"], one["changes"]) for one in data["slots"]] == [("desk", False), ("notes", True)]
    assert data["slots"][1]["version"]["version"] == 2
    assert [version.version for version in store.slots()] == [2, 2, 1]


def test_one_wrong_slot_of_a_file_keeps_all_of_them_out(gateway, store, tmp_path):
    gateway("slots", "set", "slot.yaml")
    revision = store.revision()
    good = {"slot": "notes", "primary": {"provider": "local", "model": "small"}}
    wrong = [
        ([good, {**good, "slot": "b", "primary": {"provider": "evil", "model": "m"}}], "found 'evil'"),
        ([good, {**good, "slot": "b", "match": ["claude-*"]}], "already matched by slot b"),
        ([good, good], "notes stands twice"),
        ([good, {**good, "slot": "b", "primry": {}}], "slots.1.primry: unknown field; did you mean primary"),
        ([], "slots: Tuple should have at least 1 item"),
    ]
    for slots, words in wrong:
        (tmp_path / "all.yaml").write_text(yaml.safe_dump({"slots": slots}))
        for more in ((), ("--dry-run",)):
            assert words in gateway("slots", "set", "all.yaml", *more, code=2)
    (tmp_path / "all.yaml").write_text(yaml.safe_dump({"slots": [good, {**good, "slot": "b"}]}))
    assert "found 2 slots; expected one" in gateway("slots", "set", "all.yaml", "--if-version", 0, code=2)
    assert store.revision() == revision


def test_promote_wants_gates_or_a_reason_and_rollback_undoes_it(gateway, store, tmp_path):
    gateway("slots", "set", "slot.yaml")
    promote = ("promote", "desk", "local/small")
    assert "expected --gates FILE, or --override REASON" in gateway(*promote, code=2)
    (tmp_path / "gates.json").write_text(json.dumps(gate_record("local/small", "desk", failing="recovery")))
    assert "gates.passed: found False (recovery fail)" in gateway(*promote, "--gates", "gates.json", code=2)
    (tmp_path / "gates.json").write_text('{"passed": true, "route": "local/small", "slot": "desk"}')
    assert "gates.record_sha256: missing" in gateway(*promote, "--gates", "gates.json", code=2)
    (tmp_path / "gates.json").write_text(json.dumps(gate_record("local/small", "desk")))
    assert "desk version 2 (promote): local/small" in gateway(*promote, "--gates", "gates.json")
    assert store.snapshot().slot_for("claude-x").primary.provider == "local"
    assert "anthropic/claude-sonnet-4-6" in gateway("rollback", "desk", "--why", "too slow")
    gateway(*promote, "--override", "drill")
    history = gateway("slots", "history", "desk")
    assert "rollback of 1" in history
    assert "too slow" in history
    assert "drill" in gateway("audit", "--of", "desk", "--limit", 1)
    assert json.loads(gateway("audit", "--json"))[0]["details"]["override"] == "drill"
    gateway("slots", "rm", "desk")
    assert "# removed" in gateway("slots", "show", "desk")
    assert "0 slots in" in gateway("slots", "ls")
    assert json.loads(gateway("rollback", "desk", "--to", 1, "--json"))["config"]["primary"] == SLOT["primary"]


def test_a_change_names_the_workers_that_have_not_seen_it(gateway, run, store, monkeypatch):
    monkeypatch.setattr("firstchair.gateway.control.store.LIVE_S", 600)
    gateway("slots", "set", "slot.yaml")
    store.heartbeat("w1", 0)
    seen = threading.Event()
    real = ControlStore.wait_for_workers

    def at_once(self, revision, timeout_s=5.0):
        seen.set()
        return real(self, revision, 0)

    monkeypatch.setattr(ControlStore, "wait_for_workers", at_once)
    code, out, err = run("gateway", "rollback", "desk", "--to", 1)
    assert (code, seen.is_set()) == (0, True)
    assert "desk version 2" in out
    assert "warning: 1 worker had not seen the change after 5 s: w1" in err
    assert json.loads(run("gateway", "slots", "rm", "desk", "--json")[1])["workers_behind"] == ["w1"]


def test_a_slot_may_only_name_providers_of_the_config_file(gateway, tmp_path):
    (tmp_path / "slot.yaml").write_text(yaml.safe_dump({**SLOT, "primary": {"provider": "evil", "model": "x"}}))
    assert "provider: found 'evil'; expected one of anthropic, local" in gateway("slots", "set", "slot.yaml", code=2)
    (tmp_path / "slot.yaml").write_text("slot: a\nprimry: {provider: local, model: m}\n")
    assert "did you mean primary" in gateway("slots", "set", "slot.yaml", code=2)


def test_a_key_is_made_listed_and_revoked_and_its_secret_stands_alone_on_stdout(gateway, store):
    secret = gateway(
        "keys", "create", "agent", "--scope", "call", "--scope", "traces", "--budget", "2.5", "--per", "day"
    )
    key = store.snapshot().key(secret.strip())
    assert (key.name, key.budget_nano, key.budget_period) == ("agent", 2_500_000_000, "day")
    made = json.loads(gateway("keys", "create", "ops", "--scope", "admin", "--requests-per-minute", 60, "--json"))
    assert store.snapshot().key(made["secret"]).requests_per_minute == 60
    assert store.reserve(key.key_id, 7)
    store.settle(key.key_id, 7, 1_000_001)
    listing = gateway("keys", "ls")
    assert "2.5000 day" in listing
    assert "0.001000001" in listing
    assert secret.strip() not in listing
    gateway("keys", "revoke", "agent")
    assert store.snapshot().key(secret.strip()) is None
    assert [one["name"] for one in json.loads(gateway("keys", "ls", "--json"))] == ["ops"]
    assert "revoked" in gateway("keys", "ls", "--revoked")
    assert "expected the id or name of a live key" in gateway("keys", "revoke", "agent", code=2)
    assert "--budget: found 'much'" in gateway("keys", "create", "b", "--budget", "much", code=2)
    assert "'ops' is taken" in gateway("keys", "create", "ops", code=2)


def test_providers_say_whether_their_keys_are_there_and_never_the_key(gateway, monkeypatch):
    found = json.loads(gateway("providers", "--json"))
    assert [(one["name"], one["key"]) for one in found] == [("anthropic", "there"), ("local", "none wanted")]
    monkeypatch.delenv("TEST_ANTHROPIC_KEY")
    assert "TEST_ANTHROPIC_KEY is not set" in gateway("providers")


def test_a_reload_says_what_it_changed_and_what_it_could_not(gateway, run, tmp_path):
    assert "no gateway runs on the spool spool" in gateway("reload", code=2)
    done = Reloaded(
        changed=("providers.local",), needs_restart=("workers",), slots_not_applied=("desk",), behind=("host-w1",)
    )
    answers, asked = ["the file is wrong", done, Reloaded()], []
    control = Control(tmp_path / "spool")

    def serve():
        for answer in answers:
            asked.append(control.asked())
            asked[-1].answer(answer)

    serving = threading.Thread(target=serve)
    serving.start()
    assert "the file is wrong" in gateway("reload", "--why", "a new key", code=2)
    code, out, err = run("gateway", "reload")
    assert (code, out.splitlines()) == (
        0,
        [
            "reloaded; changed: providers.local; keys of providers and prices were read again",
            "not before a restart: workers",
            "not taken from the file, `slots set` changes them: slots desk",
        ],
    )
    assert "1 process not reloaded: host-w1" in err
    assert json.loads(gateway("reload", "--json"))["changed"] == []
    serving.join()
    control.close()
    assert [(one.who, one.why) for one in asked] == [("ann", "a new key"), ("ann", ""), ("ann", "")]


def call(call_id: str, **fields: object) -> CallRecord:
    return CallRecord(
        **{
            "call_id": call_id,
            "received_us": 1_750_000_000_000_000,
            "worker": "w1",
            "slot": "desk",
            "dialect": "openai",
            "requested_model": "claude-x",
            "provider": "local",
            "provider_model": "small",
            "outcome": Outcome.OK,
            "status": 200,
            "usage": TokenCounts(input=1000, output=20),
            "cost_nano": 1_230_000,
            "counterfactual_nano": 10_000_000,
            **fields,
        }
    )


def test_the_ledger_sums_up_and_tells_shadow_and_unpriced_calls(gateway, store):
    assert gateway("ledger") == "no calls\n"
    assert gateway("tail") == ""
    key = store.create_key("agent", who="ann").key.key_id
    records = [
        call("a", key_id=key),
        call("b", variant="fallback", cost_nano=1, estimated=True),
        call("c", variant="shadow", cost_nano=7),
        call("d", cost_nano=None, outcome=Outcome.FAILED, failure=FailureKind.TIMEOUT),
    ]
    with store.transaction() as connection:
        insert_records(connection, records)
    table = gateway("ledger")
    assert "0.001230001" in table
    assert "0.018769999" in table
    assert "shadow" in table
    assert "1 call of models without a price" in table
    assert "tokens of 1 call are counted from the text" in table
    data = json.loads(gateway("ledger", "--by", "key", "--json"))
    assert data["total"]["cost_nano"] == 1_230_001 == sum(line["cost_nano"] for line in data["lines"])
    assert data["total"]["cost_usd"] == "0.001230001"
    assert data["shadow_total"]["calls"] == 1
    assert [line["label"] for line in data["lines"]] == ["", "agent"]
    assert json.loads(gateway("ledger", "--since", "2030-01-01", "--json"))["lines"] == []
    assert "--since: found 'soon'" in gateway("ledger", "--since", "soon", code=2)
    rows = [json.loads(line) for line in gateway("tail", "-n", 2, "--json").splitlines()]
    assert [row["call_id"] for row in rows] == ["c", "d"]
    assert "timeout" in gateway("tail")


def test_names_stay_readable_in_a_narrow_terminal(gateway, store, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    asked = {"slot": "", "provider": "", "provider_model": "", "outcome": Outcome.REFUSED, "cost_nano": 0}
    records = [
        call(
            "a", provider="anthropic", provider_model="claude-sonnet-4-6", usage=TokenCounts(input=10, cache_read=9)
        ),
        call("b", requested_model="claude-opus-4-6", failure=FailureKind.NOT_FOUND, **asked),
    ]
    with store.transaction() as connection:
        insert_records(connection, records)
    table = gateway("ledger", "--by", "model")
    assert "claude-sonnet-4-6" in table
    assert "cached" in table
    assert "written" not in table  # nothing was
    assert "written" in gateway("ledger", "--wide")
    listed = gateway("tail")
    assert "anthropic/claude-sonnet-4-6" in listed
    assert "(for claude-opus-4-6)" in listed
    assert "not_found" in listed
    monkeypatch.delenv("TEST_ANTHROPIC_KEY")
    assert "TEST_ANTHROPIC_KEY is not set" in gateway("providers")


def test_follow_prints_what_comes_and_ends_with_ctrl_c(gateway, store, monkeypatch):
    rounds = iter(["new", "stop"])

    def nap(_):
        if next(rounds) == "stop":
            raise KeyboardInterrupt
        with store.transaction() as connection:
            insert_records(connection, [call("late")])

    with store.transaction() as connection:
        insert_records(connection, [call("early")])
    monkeypatch.setattr("firstchair.cli.gateway_view.time.sleep", nap)
    lines = gateway("tail", "--follow", "--json").splitlines()
    assert [json.loads(line)["call_id"] for line in lines] == ["early", "late"]


def test_the_database_may_be_named_by_itself(gateway, tmp_path):
    assert "no such store" in gateway("slots", "ls", "--db", "other.db", code=2)
    gateway("slots", "set", "slot.yaml", "--db", "other.db")
    assert "1 slot in" in gateway("slots", "ls", "--db", "other.db")
    assert "1 slot in" in gateway("slots", "ls", "--db", "other.db", "--config", "gateway.yaml")
    (tmp_path / "slot.yaml").write_text(yaml.safe_dump({**SLOT, "primary": {"provider": "evil", "model": "x"}}))
    both = ("--db", "other.db", "--config", "gateway.yaml")
    assert "found 'evil'" in gateway("slots", "set", "slot.yaml", *both, code=2)
    (tmp_path / "gateway.yaml").unlink()
    assert "gateway.yaml: no such file; begin with the one in docs/gateway.md" in gateway("slots", "ls", code=2)
    assert "other.yaml: no such file" in gateway("slots", "set", "other.yaml", "--db", "other.db", code=2)


def test_money_is_printed_and_read_exactly():
    assert [usd(nano) for nano in (0, 1, -5, 1_500_000_000, 12_345_678_000_000_000)] == [
        "0.0000",
        "0.000000001",
        "-0.000000005",
        "1.5000",
        "12,345,678.0000",
    ]
    assert nano_of("0.000000001", "--budget") == 1
    for wrong in ("", "x", "-1", "nan", "inf", "0.0000000001", "1e30"):
        with pytest.raises(ConfigError, match="--budget: found"):
            nano_of(wrong, "--budget")
