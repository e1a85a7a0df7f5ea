import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import content_id
from firstchair.gateway.config import Provider
from firstchair.gateway.control.gates import read_gates
from firstchair.gateway.control.keys import KeyLimits
from firstchair.gateway.control.slots import Canary, Route, SlotConfig
from firstchair.gateway.control.snapshot import EMPTY, Budget, secret_digest
from firstchair.gateway.control.store import ControlStore
from firstchair.testing.gate_records import gate_record
from firstchair.traces.store import TraceStore

CLAUDE = Route(provider="anthropic", model="claude-sonnet-4-6")
SMALL = Route(provider="local", model="small")
GPT = Route(provider="openai", model="gpt-5")


PASSED = gate_record("local/small", "desk")
FAILED = gate_record("local/small", "desk", failing="stop")


def resealed(record: dict[str, object]) -> dict[str, object]:
    """The record as somebody would forge it who knows of the seal."""
    body = {name: value for name, value in record.items() if name != "record_sha256"}
    return {**body, "record_sha256": content_id(body)}


def provider(kind: str, **fields: object) -> Provider:
    return Provider(**{"type": kind, "base_url": "http://127.0.0.1:9", **fields})


def desk(**fields: object) -> SlotConfig:
    return SlotConfig(**{"slot": "desk", "match": ("claude-*",), "primary": CLAUDE, **fields})


def limited(nano: int, period: str = "total") -> KeyLimits:
    return KeyLimits(budget_nano=nano, budget_period=period)


# --- slots ------------------------------------------------------------------------------------------------------


def test_a_change_is_seen_by_every_store_of_the_database(store, store_url):
    with ControlStore.open(store_url) as other:
        assert other.snapshot().slot_for("claude-opus-4-8") is None
        change = store.put_slot(desk(), who="ann", why="first")
        assert other.revision() == change.revision == 1
        seen = other.snapshot()
        assert seen.slot_for("claude-opus-4-8") == desk()
        assert seen.slot_version("desk") == 1
        other.put_slot(desk(primary=GPT), who="bob")
        assert store.snapshot().slot_for("desk").primary == GPT
        assert store.revision() == 2


def test_every_version_stays_with_who_when_and_why(store, clock):
    store.put_slot(desk(), who="ann", why="first")
    clock.pass_s(60)
    store.put_slot(desk(primary=GPT), who="bob", why="cheaper")
    first, second = store.history("desk")
    assert (first.version, first.who, first.why, first.config) == (1, "ann", "first", desk())
    assert (second.version, second.who, second.action) == (2, "bob", "set")
    assert second.at_us - first.at_us == 60_000_000
    assert [version.version for version in store.slots()] == [2]


def test_a_rollback_is_a_version_and_rolling_back_again_never_goes_forth(store):
    for primary in (CLAUDE, GPT, SMALL):
        store.put_slot(desk(primary=primary), who="ann")
    assert store.rollback("desk", who="bob", why="bad").version.config.primary == GPT
    assert store.rollback("desk", who="bob", why="still bad").version.config.primary == CLAUDE
    with pytest.raises(ConfigError, match="nothing to roll back to"):
        store.rollback("desk", who="bob")
    assert [(version.action, version.restores) for version in store.history("desk")] == [
        ("set", None),
        ("set", None),
        ("set", None),
        ("rollback", 2),
        ("rollback", 1),
    ]
    store.put_slot(desk(primary=SMALL), who="ann")
    assert store.rollback("desk", who="bob").version.config.primary == CLAUDE
    assert store.rollback("desk", who="bob", to=3).version.config.primary == SMALL
    with pytest.raises(ConfigError, match="found no version 99; expected 1 to 8"):
        store.rollback("desk", who="bob", to=99)


def test_a_removed_slot_is_gone_and_can_be_brought_back(store):
    store.put_slot(desk(), who="ann")
    store.remove_slot("desk", who="ann")
    assert store.snapshot().slot_for("desk") is None
    assert store.slots() == []
    for change in (
        lambda: store.remove_slot("desk", who="a"),
        lambda: store.promote("desk", GPT, who="a", override="x"),
    ):
        with pytest.raises(ConfigError, match="slot: found 'desk'"):
            change()
    assert store.rollback("desk", who="ann").version.config == desk()
    assert store.snapshot().slot_for("desk") == desk()


def test_a_rollback_never_takes_a_slot_out_of_service(store):
    store.put_slot(desk(), who="ann")
    store.remove_slot("desk", who="ann")
    store.put_slot(desk(primary=GPT), who="ann")
    with pytest.raises(ConfigError, match="version 2 is its removal"):
        store.rollback("desk", who="ann", to=2)
    assert store.rollback("desk", who="ann").version.config == desk()
    with pytest.raises(ConfigError, match="nothing to roll back to"):
        store.rollback("desk", who="ann")


def test_an_unknown_slot_is_named_with_those_there_are(store):
    with pytest.raises(ConfigError, match="expected one of none: set one first"):
        store.rollback("dsk", who="ann")
    store.put_slot(desk(), who="ann")
    for call in (lambda: store.rollback("dsk", who="a"), lambda: store.history("dsk")):
        with pytest.raises(ConfigError, match="slot: found 'dsk'; expected one of desk"):
            call()


def test_a_slot_that_takes_the_name_of_another_is_refused_and_nothing_moves(store):
    store.put_slot(desk(), who="ann")
    with pytest.raises(ConfigError, match=r"'claude-\*' is already matched by slot desk"):
        store.put_slot(SlotConfig(slot="other", match=("claude-*",), primary=GPT), who="ann")
    assert store.revision() == 1
    assert len(store.audit_log()) == 1
    store.remove_slot("desk", who="ann")
    store.put_slot(SlotConfig(slot="other", match=("claude-*",), primary=GPT), who="ann")
    with pytest.raises(ConfigError, match="already matched"):
        store.rollback("desk", who="ann")


def test_of_two_editors_the_slower_one_is_told(store):
    store.put_slot(desk(), who="ann", if_version=0)
    store.put_slot(desk(primary=GPT), who="ann", if_version=1)
    with pytest.raises(ConfigError, match="found version 2; expected 1"):
        store.put_slot(desk(primary=SMALL), who="bob", if_version=1)
    assert store.snapshot().slot_for("desk").primary == GPT


def test_slots_of_a_config_file_never_undo_what_was_set_since(store):
    assert len(store.add_missing([desk()], who="config")) == 1
    store.put_slot(desk(primary=GPT), who="ann")
    assert store.add_missing([desk()], who="config") == []
    store.remove_slot("desk", who="ann")
    assert store.add_missing([desk()], who="config") == []
    assert store.snapshot().slots == ()


def test_a_provider_that_is_not_configured_is_refused(store, store_url):
    store.put_slot(desk(primary=GPT), who="ann")
    with ControlStore.open(store_url, providers={"anthropic": provider("anthropic")}) as strict:
        strict.put_slot(desk(), who="ann")
        for wrong in (desk(fallbacks=(GPT,)), desk(canary=Canary(route=SMALL, percent=1))):
            with pytest.raises(ConfigError, match=r"provider: found '\w+'; expected one of anthropic"):
                strict.put_slot(wrong, who="ann")
        with pytest.raises(ConfigError, match="found 'openai'"):
            strict.rollback("desk", who="ann")


def test_changes_from_many_threads_all_count(store, store_url):
    with ControlStore.open(store_url) as other, ThreadPoolExecutor(4) as pool:
        stores = [store, other]
        done = list(pool.map(lambda n: stores[n % 2].put_slot(desk(), who=f"t{n}").version.version, range(12)))
    assert sorted(done) == list(range(1, 13))
    assert store.revision() == 12


@pytest.mark.parametrize("who", ["", "  ", "a\0b", "x" * 2001])
def test_who_did_it_must_be_said(store, who):
    with pytest.raises(ConfigError, match="who: found"):
        store.put_slot(desk(), who=who)
    with pytest.raises(ConfigError, match="who: found"):
        store.create_key("a", who=who)
    assert store.revision() == 0


# --- promote ----------------------------------------------------------------------------------------------------


def test_a_promotion_wants_gates_that_passed_for_this_route_and_keeps_them(store):
    store.put_slot(desk(), who="ann")
    record = gate_record("local/small", "desk")
    change = store.promote("desk", SMALL, who="ann", why="it is better", gates_record=record)
    assert change.version.config.primary == SMALL
    assert change.version.config.fallbacks == (CLAUDE,)
    entry = store.audit_log(1)[0]
    assert (entry.action, entry.target, entry.who, entry.why) == ("slot.promote", "desk", "ann", "it is better")
    assert entry.details == {"from": str(CLAUDE), "to": "local/small", "gates": record, "version": 2}
    assert store.rollback("desk", who="ann").version.config == desk()


def test_an_override_is_kept_with_its_reason(store):
    store.put_slot(desk(), who="ann")
    store.promote("desk", SMALL, who="ann", override="outage of the provider")
    entry = store.audit_log(1)[0]
    assert entry.details["override"] == entry.why == "outage of the provider"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            {"passed": True, "route": "local/small", "slot": "desk"},
            r"gates.record_sha256: missing.*firstchair gates check",
        ),
        ({**PASSED, "record_sha256": None}, "gates.record_sha256: found None"),
        ({**PASSED, "who": "bob"}, "gates.record_sha256: found '.*it was changed after it was sealed"),
        ({**FAILED, "passed": True}, "it was changed after it was sealed"),
        (resealed({**FAILED, "passed": True}), "gates.passed: found True; its own figures give False"),
        (resealed({**PASSED, "note": "x"}), "gates: not a record of the gates: .*unknown field `note`"),
        (resealed({**PASSED, "passed": "true"}), "gates: not a record of the gates: Expected `bool`"),
        (
            resealed({**PASSED, "gates": PASSED["gates"][:5]}),
            "gates.gates: found routing, .*; expected .*cost_latency",
        ),
        (resealed({**PASSED, "schema_version": "9"}), "gates.schema_version: found '9'"),
        (resealed({**PASSED, "kind": "rl_readiness"}), "gates.kind: found 'rl_readiness'; expected 'promotion'"),
        (PASSED | {"gates": float("nan")}, "not JSON that can be hashed"),
        (FAILED, r"gates.passed: found False \(stop fail\)"),
        (gate_record("local/other", "desk"), "gates.route: found 'local/other'; expected 'local/small'"),
        (gate_record("local/small", "b"), "gates.slot: found 'b'; expected 'desk'"),
    ],
)
def test_gates_that_did_not_pass_for_this_route_promote_nothing(store, record, words):
    store.put_slot(desk(), who="ann")
    with pytest.raises(ConfigError, match=words):
        store.promote("desk", SMALL, who="ann", gates_record=record)
    assert store.revision() == 1


def test_gates_count_only_with_the_chat_template_that_is_served(store, store_url):
    served, other = "a" * 64, "b" * 64
    store.put_slot(desk(), who="ann")
    providers = {"anthropic": provider("anthropic"), "local": provider("openai-compatible", template_hash=served)}
    with ControlStore.open(store_url, providers=providers) as strict:
        for found in ("", other):
            record = gate_record("local/small", "desk", template_hash=found)
            with pytest.raises(ConfigError, match=f"gates.template_hash: found '{found}'; expected '{served}'"):
                strict.promote("desk", SMALL, who="ann", gates_record=record)
        strict.promote("desk", SMALL, who="ann", override="the other template is known to be better")
        assert strict.audit_log(1)[0].details["override"] == "the other template is known to be better"
        strict.rollback("desk", who="ann")
        record = gate_record("local/small", "desk", template_hash=served)
        assert strict.promote("desk", SMALL, who="ann", gates_record=record).version.config.primary == SMALL


def test_neither_or_both_of_gates_and_override_is_refused(store):
    store.put_slot(desk(), who="ann")
    for given in (
        {},
        {"override": "  "},
        {"override": "x", "gates_record": PASSED},
    ):
        with pytest.raises(ConfigError, match="give one"):
            store.promote("desk", SMALL, who="ann", **given)


def test_a_gates_file_is_read_strictly(tmp_path):
    path = tmp_path / "gates.json"
    for content, words in {
        '{"passed": false, "passed": true}': "stands twice",
        '{"passed": NaN}': "not JSON",
        "[true]": "found list",
        "{": "not JSON",
    }.items():
        path.write_text(content)
        with pytest.raises(ConfigError, match=words):
            read_gates(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not JSON"):
        read_gates(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_gates(tmp_path / "none.json")
    path.write_text(json.dumps(PASSED))
    assert read_gates(path) == PASSED


# --- keys -------------------------------------------------------------------------------------------------------


def test_a_secret_is_told_once_and_stored_nowhere(store, store_url):
    made = store.create_key("agent", ("call", "traces"), limited(5), who="ann", why="for CI")
    assert made.secret.startswith("fc_")
    assert len(made.secret) == 46
    found = store.snapshot().key(made.secret)
    assert found == made.key
    assert found.scopes == {"call", "traces"}
    with store.reading() as connection:
        everything = [
            str(row)
            for name in ("gateway_keys", "gateway_audit", "gateway_info", "gateway_budgets")
            for row in connection.execute(text(f"SELECT * FROM {name}"))
        ]
    assert not any(made.secret in row or made.secret[3:] in row for row in everything)
    assert any(secret_digest(made.secret).hex() in row for row in everything)


def test_only_the_whole_secret_of_a_live_key_opens(store):
    made = store.create_key("agent", who="ann")
    snapshot = store.snapshot()
    assert snapshot.revision == 1
    for wrong in (
        "",
        "fc_",
        made.secret[:-1],
        made.secret + "x",
        made.secret.swapcase(),
        made.key.digest.hex(),
        "\udcff",
    ):
        assert snapshot.key(wrong) is None
    assert EMPTY.key(made.secret) is None
    store.revoke_key("agent", who="ann")
    assert store.snapshot().key(made.secret) is None
    assert store.snapshot().key_by_id(made.key.key_id) is None
    assert snapshot.key(made.secret) == made.key
    assert [stored.revoked_us for stored in store.keys(revoked=True)] != [None]
    assert store.keys() == []
    with pytest.raises(ConfigError, match="expected the id or name of a live key"):
        store.revoke_key(made.key.key_id, who="ann")


def test_among_many_keys_each_secret_finds_its_own(store):
    with store.transaction():
        pass
    made = [store.create_key(f"k{number}", who="ann") for number in range(20)]
    snapshot = store.snapshot()
    assert [snapshot.key(new.secret).name for new in made] == [f"k{number}" for number in range(20)]


def test_a_wrong_key_is_refused_by_field(store):
    store.create_key("a", who="ann")
    for arguments, words in [
        (("a",), "'a' is taken by a live key"),
        (("A b",), "key: name: expected up to 64"),
        (("b", ["root"]), "key: scope: found 'root'; expected one of call, admin, traces"),
        (("b", []), "key: scope: found none"),
    ]:
        with pytest.raises(ConfigError, match=words):
            store.create_key(*arguments, who="ann")
    store.revoke_key("a", who="ann")
    store.create_key("a", who="ann")


# --- budgets ----------------------------------------------------------------------------------------------------


def test_a_budget_lets_through_exactly_what_is_left(store):
    key = store.create_key("a", limits=limited(100), who="ann").key.key_id
    assert store.reserve(key, 60)
    assert not store.reserve(key, 41)
    assert store.reserve(key, 40)
    assert not store.reserve(key, 1)
    assert store.reserve(key, 0)
    store.settle(key, 60, 10)
    assert store.spend(key) == (10, 40)
    assert store.reserve(key, 50)
    store.settle(key, 40, 45)
    store.settle(key, 50, 60)
    assert store.spend(key) == (115, 0)
    assert not store.reserve(key, 0)


def test_a_key_without_a_budget_always_may_and_an_unknown_or_revoked_one_never(store):
    free = store.create_key("free", who="ann").key.key_id
    bound = store.create_key("bound", limits=limited(100), who="ann").key.key_id
    assert store.reserve(free, 10**15)
    store.settle(free, 10**15, 5)
    assert store.spend(free) is None
    assert not store.reserve("key_none", 0)
    store.revoke_key("bound", who="ann")
    store.revoke_key("free", who="ann")
    assert not store.reserve(bound, 1)
    assert not store.reserve(free, 1)
    for call in (lambda: store.reserve(free, -1), lambda: store.settle(free, 0, -1)):
        with pytest.raises(ConfigError, match="budget: found"):
            call()


@pytest.mark.parametrize(("period", "seconds"), [("day", 86_400), ("month", 31 * 86_400)])
def test_a_new_period_begins_at_nothing_and_keeps_what_is_reserved(store, clock, period, seconds):
    key = store.create_key("a", limits=limited(100, period), who="ann").key.key_id
    assert store.reserve(key, 70)
    store.settle(key, 70, 70)
    assert store.reserve(key, 30)
    clock.pass_s(1)
    assert not store.reserve(key, 1)
    clock.pass_s(seconds)
    assert store.spend(key) == (0, 30)
    assert not store.reserve(key, 71)
    assert store.reserve(key, 70)
    store.settle(key, 30, 30)
    assert store.spend(key) == (30, 70)


def test_an_account_that_is_no_keys_has_its_budget_from_whoever_charges_it(store, clock):
    day, month = Budget(100, "day"), Budget(1000, "month")
    assert not store.reserve("shadow", 1, budget=day), "not opened"
    assert store.spend("shadow", day) is None
    for _ in range(2):
        store.open_account("shadow")
    assert store.reserve("shadow", 60, worker="w0", budget=day)
    assert not store.reserve("shadow", 41, worker="w1", budget=day)
    store.settle("shadow", 60, 70, worker="w0", budget=day)
    assert store.spend("shadow", day) == (70, 0)
    clock.pass_s(86_400)
    assert store.spend("shadow", day) == (0, 0)
    assert store.reserve("shadow", 100, worker="w0", budget=day)
    store.end_worker("w0")
    assert store.spend("shadow", day) == (100, 0)
    # Another limit holds from then on; another period begins anew.
    assert store.reserve("shadow", 1, budget=Budget(101, "day"))
    assert store.reserve("shadow", 900, budget=month)
    large = Budget(10**12, "total")  # a thousand dollars: more than 32 bits
    assert store.reserve("shadow", 10**11, budget=large)
    assert store.keys() == []


def test_many_threads_of_two_stores_never_overspend(store, store_url):
    key = store.create_key("a", limits=limited(100), who="ann").key.key_id
    start = threading.Barrier(6)
    with ControlStore.open(store_url) as other:

        def spend(number: int) -> int:
            mine = (store, other)[number % 2]
            start.wait()
            won = 0
            for _ in range(5):
                if mine.reserve(key, 7, worker=f"w{number % 2}"):
                    won += 1
            return won

        with ThreadPoolExecutor(6) as pool:
            granted = sum(pool.map(spend, range(6)))
    assert granted == 100 // 7
    assert store.spend(key) == (0, 7 * granted)


def test_what_a_dead_worker_had_reserved_counts_as_spent(store, clock):
    key = store.create_key("a", limits=limited(100), who="ann").key.key_id
    for worker in ("w1", "w2"):
        store.heartbeat(worker, 1)
        assert store.reserve(key, 30, worker=worker)
        assert store.reserve(key, 10, worker=worker)
    store.settle(key, 30, 5, worker="w1")
    clock.pass_s(100)
    store.heartbeat("w2", 1)
    assert store.forget_gone_workers() == ["w1"]
    assert store.spend(key) == (15, 40)
    assert store.forget_gone_workers() == []
    store.end_worker("w2")
    assert store.spend(key) == (55, 0)


# --- workers ----------------------------------------------------------------------------------------------------


def test_waiting_ends_when_every_live_worker_has_seen_the_revision(store, clock):
    store.heartbeat("dead", 0)
    clock.pass_s(2.5)
    store.heartbeat("w1", 0)
    store.heartbeat("w2", 0)
    revision = store.put_slot(desk(), who="ann").revision
    store.heartbeat("w1", revision)
    assert store.wait_for_workers(revision, 0) == ("w2",)
    late = threading.Thread(target=store.heartbeat, args=("w2", revision))
    late.start()
    assert store.wait_for_workers(revision, 60, poll_s=0.001) == ()
    late.join()
    assert [(worker.worker, worker.seen_revision) for worker in store.workers()] == [("w1", 1), ("w2", 1)]
    assert store.workers()[0].started_us == clock.now_us


def test_with_no_worker_there_is_nothing_to_wait_for(store):
    assert store.wait_for_workers(10**6) == ()


# --- audit and opening ------------------------------------------------------------------------------------------


def test_the_audit_log_holds_every_change_and_what_programs_add(store):
    store.put_slot(desk(), who="ann")
    key = store.create_key("a", who="ann").key.key_id
    store.audit("gateway", "canary.rollback", "desk", "error rate", {"rate": 0.2, "odd": "\0"})
    store.revoke_key("a", who="bob", why="lost")
    log = store.audit_log()
    assert [entry.action for entry in log] == ["key.revoke", "canary.rollback", "key.create", "slot.set"]
    assert log[1].details == {"rate": 0.2, "odd": "\0"}
    assert [entry.action for entry in store.audit_log(target=key)] == ["key.revoke", "key.create"]
    assert len(store.audit_log(2)) == 2
    assert store.revision() == 3


def test_traces_and_control_state_may_share_a_database_in_either_order(tmp_path):
    for order in ((ControlStore, TraceStore), (TraceStore, ControlStore)):
        path = tmp_path / f"{order[0].__name__}.db"
        for kind in (*order, *order):
            kind.open(path).close()


def test_processes_that_start_at_once_make_one_database(store_url):
    start = threading.Barrier(4)

    def open_one(_):
        start.wait()
        with ControlStore.open(store_url) as opened:
            return opened.revision()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(open_one, range(4))) == [0] * 4


def test_slots_are_remembered_for_short_names_only(store):
    store.put_slot(desk(), who="ann")
    snapshot = store.snapshot()
    long = "claude-" + "x" * 100_000
    assert snapshot.slot_for(long) == snapshot.slot_for(long) == desk()
    for number in range(5000):
        assert snapshot.slot_for(f"claude-{number}") == desk()
        assert snapshot.slot_for(f"gpt-{number}") is None
    assert len(snapshot._memo) == 4096
    assert long not in snapshot._memo


def test_what_is_no_gateway_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="a database of another program"):
        ControlStore.open(path)
    with pytest.raises(ConfigError, match="no gateway database"):
        ControlStore.open(path, must_exist=True)
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="no such store"):
        ControlStore.open(tmp_path / "none.db", must_exist=True)


def test_another_layout_is_refused(store_url):
    with ControlStore.open(store_url) as store, store.transaction() as connection:
        connection.execute(text("UPDATE gateway_info SET value = '0' WHERE name = 'layout'"))
    try:
        with pytest.raises(ConfigError, match="found layout 0; this program knows 1"):
            ControlStore.open(store_url)
    finally:
        from firstchair.traces.database import open_engine, writing
        from firstchair.traces.database import store_url as parsed

        engine = open_engine(parsed(store_url), must_exist=True)
        with writing(engine) as connection:
            connection.execute(text("UPDATE gateway_info SET value = '1' WHERE name = 'layout'"))
        engine.dispose()
