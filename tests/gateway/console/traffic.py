"""Slots, calls and sessions as a small shop's gateway would have them, written by the stores' own functions."""

from __future__ import annotations

import random
import time

import msgspec

from firstchair.catalog.prices import PriceTable
from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import Message, TextPart, Tool, ToolCall, text_message
from firstchair.gateway.control.ledger import insert_records
from firstchair.gateway.control.slots import Bands, Canary, Route, ShadowRoute, SlotConfig
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.dialects.base import FailureKind
from firstchair.gateway.records import Attempt, CallRecord, Outcome
from firstchair.traces.session import ModelCall, Session, Usage, catalog_id_of, turns_of
from firstchair.traces.store import TraceStore

HOSTILE = "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">{{ 7*7 }}"
CLAUDE = Route(provider="anthropic", model="claude-sonnet-4-6")
SMALL = Route(provider="local", model="orchestrator-4b")
TOOLS = (Tool(name="find_trips", description="Find trips of a customer", parameters={"type": "object"}),)
DAY_US = 86_400_000_000


def fill(store: ControlStore, traces: str, *, calls: int) -> None:
    """Two slots with a history, ``calls`` calls over ten days with their shadows, and three sessions."""
    desk = SlotConfig(
        slot="desk",
        match=("claude-*",),
        primary=CLAUDE,
        counterfactual=str(CLAUDE),
        shadow=(ShadowRoute(provider="local", model="orchestrator-4b", percent=50),),
        canary=Canary(route=SMALL, percent=10, bands=Bands(min_calls=3)),
    )
    store.put_slot(desk.model_copy(update={"canary": None}), who="ops", why="first start")
    store.put_slot(desk, who="ops", why=f"try the small model {HOSTILE}")
    store.put_slot(SlotConfig(slot="notes", primary=SMALL, fallbacks=(CLAUDE,)), who="ops")
    key = store.create_key("shop", who="ops").key
    with store.transaction() as connection:
        insert_records(connection, records(calls, key.key_id))
    with TraceStore.open(traces) as opened:
        opened.add(sessions(), {catalog_id_of(TOOLS): TOOLS})


def records(calls: int, key_id: str) -> list[CallRecord]:
    rng, prices, now = random.Random(7), PriceTable.load(None), time.time_ns() // 1000
    made = []
    for place in range(calls):
        canary = place % 6 == 5
        route = SMALL if canary or place % 4 == 3 else CLAUDE
        usage = TokenCounts(input=rng.randrange(200, 4000), output=rng.randrange(10, 600), cache_read=place * 50)
        failed = place % 17 == 16
        record = CallRecord(
            call_id=f"call-{place}",
            received_us=now - (calls - place) * 10 * DAY_US // calls,
            worker="w0",
            slot="notes" if place % 4 == 3 else "desk",
            slot_version=1 if place % 4 == 3 else 2,
            dialect="anthropic",
            requested_model=HOSTILE if place == calls - 2 else "claude-sonnet-4-6",
            key_id=key_id,
            session=f"shop/{place % 3}",
            variant="canary" if canary else "primary",
            provider=route.provider,
            provider_model=route.model,
            attempts=(Attempt(provider=route.provider, model=route.model, status=200, ms=300),),
            outcome=Outcome.FAILED if failed else Outcome.OK,
            status=502 if failed else 200,
            failure=FailureKind.OVERLOADED if failed else None,
            error=HOSTILE if failed else "",
            latency_ms=rng.uniform(200, 2500),
            ttft_ms=rng.uniform(90, 500),
            usage=usage,
            cost_nano=prices.cost_nano(route.model, usage, route.provider),
            counterfactual_nano=prices.counterfactual_nano(str(CLAUDE), usage),
        )
        made.append(record)
        if record.variant == "primary" and record.slot == "desk" and not failed:
            agreement = ("same", "same", "same", "same_tool", "different", "unscored")[place % 6]
            made.append(
                msgspec.structs.replace(
                    record,
                    call_id=f"shadow-{place}",
                    variant="shadow",
                    shadow_of=record.call_id,
                    provider=SMALL.provider,
                    provider_model=SMALL.model,
                    agreement=agreement,
                    cost_nano=1000,
                )
            )
    return made


def sessions() -> list[Session]:
    """One of them is hostile in every text."""
    long = "A passenger wrote at length. " * 120
    return [_session("shop/0", "Where is my trip?"), _session("shop/1", long), _session("shop/2", HOSTILE)]


def _session(session_id: str, text: str) -> Session:
    call = ToolCall.of("c1", "find_trips", {"customer": text[:80]})
    messages = (
        text_message("system", "You help at a desk."),
        text_message("user", text),
        Message(role="assistant", content=(TextPart(text="Let me look."),), tool_calls=(call,)),
        Message(
            role="tool", tool_call_id="c1", content=(TextPart(text=f"no such customer {text[:60]}"),), is_error=True
        ),
        Message(role="assistant", tool_calls=(ToolCall(id="c2", name="find_trips", arguments='{"customer": '),)),
        Message(role="tool", tool_call_id="c2", content=(TextPart(text="[]"),)),
        text_message("assistant", "I found none."),
    )
    return Session(
        session_id=session_id,
        created_at="2026-11-01T09:30:00Z",
        catalog_id=catalog_id_of(TOOLS),
        messages=messages,
        turns=turns_of(messages),
        calls=(
            ModelCall(
                call_id="m1",
                provider="anthropic",
                model="claude-sonnet-4-6",
                started_at="2026-11-01T09:30:00Z",
                latency_ms=812.0,
                usage=Usage(input=900, output=40, cache_read=100),
                cost_usd=0.0042,
                finish_reason="tool_use",
                message_index=2,
            ),
        ),
        labels={"channel": "web", "note": text[:40]},
    )
