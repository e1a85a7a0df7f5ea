import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from firstchair.catalog.prices import PriceTable
from firstchair.catalog.token_counts import TokenCounts
from firstchair.core.errors import ConfigError
from firstchair.gateway.control import tables
from firstchair.gateway.control.ledger import (
    GROUPS,
    MAX_TOKENS,
    Line,
    insert_records,
    report,
    row_of,
    set_sessions,
    tail,
)
from firstchair.gateway.dialects.base import FailureKind
from firstchair.gateway.records import Attempt, CallRecord, Outcome, decode_record, encode_record

DAY_US = 86_400_000_000
START = 20_000 * DAY_US  # 2024-10-04
PRICES = PriceTable.load()


def call(call_id: str, **fields: object) -> CallRecord:
    return CallRecord(
        **{
            "call_id": call_id,
            "received_us": START,
            "worker": "w1",
            "slot": "desk",
            "dialect": "openai",
            "requested_model": "gpt-5",
            "provider": "openai",
            "provider_model": "gpt-5",
            "outcome": Outcome.OK,
            "status": 200,
            "usage": TokenCounts(input=10, cache_read=100, output=5, reasoning=2),
            "cost_nano": 1000,
            "price_version": "v",
            **fields,
        }
    )


def ledger_of(store, records, by="slot", **options):
    with store.transaction() as connection:
        insert_records(connection, records)
    with store.reading() as connection:
        return report(connection, by, **options)


def test_a_record_is_one_row_with_everything_but_the_texts(store):
    record = call(
        "c1",
        session="s1",
        user="u1",
        key_id="key_1",
        attempts=(Attempt(provider="local", model="m", failure=FailureKind.TIMEOUT, ms=1.5),),
        variant="fallback",
        raw_usage={"prompt_tokens": 110, "odd": [1, {"x": None}]},
        counterfactual_nano=5000,
        dropped=("top_k",),
        malformed_calls=1,
        ttft_ms=12.5,
        latency_ms=40.0,
        request=b"secret words",
    )
    with store.transaction() as connection:
        assert insert_records(connection, [decode_record(encode_record(record))]) == 1
    with store.reading() as connection:
        (row,) = tail(connection)
    assert row["day"] == "2024-10-04"
    assert (row["tokens_input"], row["tokens_cache_read"], row["tokens_output"], row["tokens_reasoning"]) == (
        10,
        100,
        5,
        2,
    )
    assert row["raw_usage"] == record.raw_usage
    assert row["attempts"] == [{"provider": "local", "model": "m", "failure": "timeout", "ms": 1.5}]
    assert row["dropped"] == ["top_k"]
    assert (row["usage_state"], row["outcome"], row["variant"]) == ("reported", "ok", "fallback")
    assert "secret words" not in str(row)
    assert set(row) == {column.name for column in tables.ledger.columns}


def test_a_record_that_is_there_is_not_written_again(store):
    records = [call(f"c{number}") for number in range(450)]
    with store.transaction() as connection:
        assert insert_records(connection, [*records[:300], records[0]]) == 300
    with store.transaction() as connection:
        assert insert_records(connection, records) == 150
    assert ledger_of(store, []).total.calls == 450


def test_rows_come_and_go_with_the_transaction(store):
    def fail_after_writing():
        with store.transaction() as connection:
            insert_records(connection, [call("c1")])
            raise RuntimeError("the position cannot be written")

    with pytest.raises(RuntimeError):
        fail_after_writing()
    assert ledger_of(store, []).lines == []


def test_known_sums_by_hand(store):
    found = ledger_of(
        store,
        [
            call("a", counterfactual_nano=9000, ttft_ms=10.0, latency_ms=30.0),
            call("b", variant="fallback", cost_nano=2000, latency_ms=50.0),
            call("c", cost_nano=None, counterfactual_nano=777, estimated=True, outcome=Outcome.CLIENT_DISCONNECTED),
            call(
                "d", outcome=Outcome.REFUSED, status=429, usage=None, cost_nano=None, failure=FailureKind.RATE_LIMIT
            ),
            call("e", variant="shadow", shadow_of="a", cost_nano=50, counterfactual_nano=40, slot="desk"),
            call("f", slot="other"),
        ],
    )
    desk, other = found.lines
    assert desk == Line(
        name="desk",
        calls=4,
        outcomes={"ok": 2, "refused": 1, "client_disconnected": 1},
        fallbacks=1,
        input=30,
        cache_read=300,
        output=15,
        reasoning=6,
        usage={"reported": 2, "estimated": 1, "absent": 1},
        cost_nano=3000,
        unpriced_calls=1,
        counterfactual_nano=9000,
        compared_nano=1000,
        compared_calls=1,
        latency_ms=80.0,
        ttft_ms=10.0,
        ttft_calls=1,
    )
    assert desk.tokens == 345
    assert desk.saved_nano == 8000
    assert (desk.mean_latency_ms, desk.mean_ttft_ms) == (20.0, 10.0)
    assert other.calls == 1
    assert [(line.name, line.calls, line.cost_nano) for line in found.shadow] == [("desk", 1, 50)]
    assert found.total.calls == 5
    assert found.total.cost_nano == 4000
    assert found.shadow_total.saved_nano == -10


def test_time_and_slot_bound_a_report(store):
    records = [call(f"c{day}", received_us=START + day * DAY_US, slot=f"s{day % 2}") for day in range(4)]
    by_day = ledger_of(store, records, "day", since_us=START + DAY_US, until_us=START + 3 * DAY_US)
    assert [line.name for line in by_day.lines] == ["2024-10-05", "2024-10-06"]
    assert [line.name for line in ledger_of(store, [], "day", slot="s1").lines] == ["2024-10-05", "2024-10-07"]
    with store.reading() as connection, pytest.raises(ConfigError, match="by: found 'week'; expected one of slot"):
        report(connection, "week")


def test_a_session_that_is_found_out_later_is_named(store):
    with store.transaction() as connection:
        insert_records(connection, [call("a"), call("b", session="given")])
        set_sessions(connection, {"a": "stitched"})
    assert [line.name for line in ledger_of(store, [], "session").lines] == ["given", "stitched"]


@pytest.mark.parametrize(
    "usage",
    [
        TokenCounts(input=-5),
        TokenCounts(output=2**63),
        TokenCounts(cache_read=MAX_TOKENS + 1),
        TokenCounts(output=3, reasoning=4),
        TokenCounts(output=3, reasoning=-1),
    ],
)
def test_absurd_usage_is_kept_raw_and_spoils_no_sum(store, usage):
    absurd = call("x", usage=usage, raw_usage={"completion_tokens": 2**63}, cost_nano=2**63)
    found = ledger_of(store, [call("a"), absurd]).total
    assert (found.calls, found.input, found.output, found.cost_nano) == (2, 10, 5, 1000)
    assert found.usage == {"reported": 1, "absurd": 1}
    with store.reading() as connection:
        assert tail(connection)[-1]["raw_usage"] == {"completion_tokens": 2**63}


def test_names_that_no_column_can_hold_do_not_stop_the_ledger(store):
    odd = "a\0b" + "x" * 10_000
    record = call("c", requested_model=odd, session=odd, user=odd, response_model=odd, error=odd, native_finish=odd)
    found = ledger_of(store, [record], "session")
    assert found.lines[0].name.startswith("a\ufffdbxx")
    assert len(found.lines[0].name) == 512


def test_a_call_that_nobody_was_asked_for_stands_under_the_name_it_asked_for(store):
    refused = call("c", provider="", provider_model="", usage=None, outcome=Outcome.REFUSED, status=404)
    assert [line.name for line in ledger_of(store, [refused], "model").lines] == ["gpt-5"]


def test_tail_gives_the_newest_in_order_and_goes_on_from_there(store):
    ledger_of(store, [call(f"c{number}", slot=f"s{number % 2}") for number in range(5)])
    with store.reading() as connection:
        newest = tail(connection, 2)
        assert [row["call_id"] for row in newest] == ["c3", "c4"]
        assert [row["call_id"] for row in tail(connection, 9, slot="s0")] == ["c0", "c2", "c4"]
        assert [row["call_id"] for row in tail(connection, 1, after_seq=newest[0]["seq"])] == ["c4"]
        assert tail(connection, 9, after_seq=newest[1]["seq"]) == []


counts = st.builds(
    TokenCounts,
    input=st.integers(0, 10**7),
    cache_read=st.integers(0, 10**7),
    cache_write_5m=st.integers(0, 10**7),
    cache_write_1h=st.integers(0, 10**7),
    output=st.integers(100, 10**7),
    reasoning=st.none() | st.integers(0, 100),
)


@st.composite
def calls(draw):
    usage = draw(st.none() | counts)
    model = draw(st.sampled_from(["gpt-5", "claude-sonnet-4-6", "unknown"]))
    return call(
        "?",
        received_us=START + draw(st.integers(0, 3 * DAY_US)),
        slot=draw(st.sampled_from(["a", "b"])),
        key_id=draw(st.sampled_from(["", "k1", "k2"])),
        session=draw(st.sampled_from(["", "s1", "s2"])),
        variant=draw(st.sampled_from(["primary", "fallback", "canary", "shadow"])),
        outcome=draw(st.sampled_from(list(Outcome))),
        provider_model=model,
        usage=usage,
        estimated=draw(st.booleans()),
        cost_nano=None if usage is None else PRICES.cost_nano(model, usage),
        counterfactual_nano=None if usage is None else PRICES.cost_nano("claude-opus-4-8", usage),
    )


@pytest.fixture
def one_store(tmp_path):
    from firstchair.gateway.control.store import ControlStore

    with ControlStore.open(tmp_path / "gateway.db") as opened:
        yield opened


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(calls(), max_size=12))
def test_every_grouping_sums_to_the_calls_exactly(one_store, drawn):
    records = [msgspec.structs.replace(record, call_id=f"c{number}") for number, record in enumerate(drawn)]
    with one_store.transaction() as connection:
        connection.execute(delete(tables.ledger))
        insert_records(connection, records)
    served = [record for record in records if record.variant != "shadow"]
    with one_store.reading() as connection:
        for by in GROUPS:
            found = report(connection, by)
            total = found.total
            assert total.calls == len(served) == sum(total.outcomes.values()) == sum(total.usage.values())
            assert total.cost_nano == sum(record.cost_nano or 0 for record in served)
            assert found.shadow_total.cost_nano == sum(r.cost_nano or 0 for r in records if r.variant == "shadow")
            for name in tables.COUNTERS:
                assert getattr(total, name) == sum(getattr(r.usage, name) for r in served if r.usage)
            assert total.tokens == sum(sum(row_of(r)[f"tokens_{n}"] for n in tables.COUNTERS) for r in served)
            assert total.reasoning <= total.output
            both = [r for r in served if r.cost_nano is not None]
            assert total.saved_nano == sum(r.counterfactual_nano - r.cost_nano for r in both)
            assert total.unpriced_calls == sum(r.usage is not None and r.cost_nano is None for r in served)
