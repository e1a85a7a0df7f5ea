"""Shadow calls: what a candidate would have done, asked after the client has its answer.

    answered call ──→ drawn per route ──→ bounded queue ──→ a few tasks ──→ candidate ──→ record (variant shadow)
                                             │ full: dropped, counted

A copy runs on connections and breakers of its own, without retry or fallback, so that it can neither delay nor fail
a client's call. Its answer goes to nobody: nothing is run, and a request for tools that a provider runs by itself is
not copied. It is billed to no client's key but to an account of its own, which may have a budget; the ledger keeps
shadow lines apart.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from firstchair.catalog.compare import compare, compile_shape
from firstchair.catalog.matchers import Match
from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import Message, Tool, ToolCall
from firstchair.gateway.call import Call, Client, new_call_id
from firstchair.gateway.context import estimated_tokens
from firstchair.gateway.control.slots import Retries, Route, SlotConfig
from firstchair.gateway.control.snapshot import SHADOWS, Budget
from firstchair.gateway.control.tables import ledger
from firstchair.gateway.dialects.base import ChatAnswer, DialectName, Failure, FailureKind
from firstchair.gateway.ending import Ending
from firstchair.gateway.exchange import Exchange
from firstchair.gateway.limits import Budgets, Reservation
from firstchair.gateway.records import Outcome
from firstchair.gateway.upstream import FORWARDED
from firstchair.gateway.worker import Worker

_CLIENT_TOOLS = ("bash_", "computer_", "custom", "memory_", "text_editor_")
"""Anthropic's typed tools that the client runs. All other types are run by the provider."""


def agreement(primary: Message, shadow: Message | None, tools: Sequence[Tool]) -> str:
    """``same`` | ``same_tool`` | ``different`` | ``unscored``: the shadow's action beside the primary's.

    Two final replies are the same action, whatever their words; calls are compared by their tools' schemas, as the
    evaluation does it. ``unscored``: the shadow gave no answer, or the primary's calls cannot be read.
    """
    if shadow is None:
        return "unscored"
    wanted, made = primary.tool_calls, shadow.tool_calls
    if _named(wanted) != _named(made):
        return "different"
    if [call.arguments for call in wanted] == [call.arguments for call in made]:
        return "same"
    values = [call.parsed() for call in wanted]
    if None in values:
        return "unscored"
    shapes = {tool.name: compile_shape(tool.parameters) for tool in tools}
    left = list(made)
    for call, value in zip(wanted, values, strict=True):
        shape = shapes.get(call.name) or compile_shape({})
        twin = next(
            (
                other
                for other in left
                if other.name == call.name
                and (found := other.parsed()) is not None
                and compare(shape, value, found).match is Match.SAME
            ),
            None,
        )
        if twin is None:
            return "same_tool"
        left.remove(twin)
    return "same"


class Disagreement(NamedTuple):
    """A shadow call that did something else than the primary; both answers are in the recordings by their ids."""

    call_id: str
    shadow_of: str
    slot: str
    route: Route
    agreement: str


def disagreements(
    connection: Connection, *, slot: str = "", since_us: int = 0, limit: int = 1000
) -> list[Disagreement]:
    """The newest shadow calls that differ from their primary: the decisions worth a look, and worth a label."""
    columns = ledger.c
    query = select(
        columns.call_id, columns.shadow_of, columns.slot, columns.provider, columns.provider_model, columns.agreement
    ).where(
        columns.variant == "shadow",
        columns.agreement.in_(("same_tool", "different")),
        columns.received_us >= since_us,
    )
    if slot:
        query = query.where(columns.slot == slot)
    rows = connection.execute(query.order_by(columns.received_us.desc(), columns.seq.desc()).limit(limit))
    return [
        Disagreement(call_id, original, name, Route(provider=provider, model=model), found)
        for call_id, original, name, provider, model, found in rows
    ]


def _named(calls: Sequence[ToolCall]) -> Counter[str]:
    return Counter(call.name for call in calls)


def runs_elsewhere(body: Mapping[str, Any], dialect: DialectName) -> bool:
    """Whether the provider itself would run tools of this request (searches, code, MCP servers)."""
    if body.get("mcp_servers") or body.get("web_search_options") is not None:
        return True
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if dialect == "anthropic":
            if kind is not None and not str(kind).startswith(_CLIENT_TOOLS):
                return True
        elif kind not in ("function", "custom"):
            return True
    return False


class _Copy(NamedTuple):
    """One call for one candidate."""

    call: Call
    route: Route
    answer: Message | None
    """What to compare with; ``None``: the answer was not the primary's."""

    @property
    def size(self) -> int:
        return len(self.call.raw)


class Shadows:
    """The shadow calls of one worker. ``offer`` never waits and never raises."""

    def __init__(self, worker: Worker):
        self._worker = worker
        self._queue: deque[_Copy] = deque()
        self._bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._lane: Worker | None = None
        self._book = _Book(worker)
        # What cannot be read is refused: a shadow is nobody's answer.
        self._budgets = Budgets(self._book, "refuse", lambda: worker.count("budget_unreadable"))
        self._closed = False
        self.dropped: Counter[str] = Counter()
        """Copies never asked, by reason: ``queue_full``, ``queue_bytes``, ``provider_tools``, ``budget``,
        ``budget_unreadable``, ``stopped``."""

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._tasks)

    def offer(self, call: Call, ending: Ending) -> None:
        """Copy an answered call to the slot's candidates. To be called once the client has its answer."""
        slot = call.slot
        if slot is None or not slot.shadow or ending.outcome is not Outcome.OK or ending.answer is None:
            return
        drawn = [one.route for one in slot.shadow if self._worker.rng.random() * 100 < one.percent]
        if not drawn:
            return
        if runs_elsewhere(call.body, call.dialect.name):
            self.dropped["provider_tools"] += len(drawn)
            return
        is_primary = ending.choice is not None and ending.choice.variant == "primary"
        for route in drawn:
            self._add(_Copy(call, route, ending.answer.message if is_primary else None))

    def _add(self, one: _Copy) -> None:
        settings = self._worker.config.shadow
        if self._closed:
            self.dropped["stopped"] += 1
        elif len(self._queue) >= settings.queue_calls:
            self.dropped["queue_full"] += 1
        elif self._bytes + one.size > int(settings.queue_mb * 1_000_000):
            self.dropped["queue_bytes"] += 1
        else:
            self._queue.append(one)
            self._bytes += one.size
            one.call.setup.calls += 1
            if len(self._tasks) < settings.at_once:
                task = asyncio.get_running_loop().create_task(self._work())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Drop what waits, cut what runs."""
        self._closed = True
        self.dropped["stopped"] += len(self._queue)
        for one in self._queue:
            self._worker.give_back(one.call.setup)
        self._queue.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._budgets.close()

    async def _work(self) -> None:
        while self._queue:
            one = self._queue.popleft()
            try:
                await self._ask(one)
            except Exception as error:  # noqa: BLE001 - a shadow that fails must not end the shadows after it
                self._worker.fault(error)
            finally:
                self._bytes -= one.size
                self._worker.give_back(one.call.setup)

    async def _ask(self, one: _Copy) -> None:
        original = one.call
        assert original.slot is not None
        received_us = time.time_ns() // 1000
        call = Call(new_call_id(), original.dialect, _headers(original), received_us, original.setup.lane())
        call.raw, call.body, call.model, call.stream = original.raw, original.body, original.model, original.stream
        slot = call.slot = shadow_slot(original.slot, one.route)
        call.slot_version = original.slot_version
        lane, client = self._own_lane(), Client(_nowhere, call.id)
        reserved = await self._reserved(call, slot)
        if isinstance(reserved, Failure):
            self.dropped["budget" if reserved.kind is FailureKind.BUDGET else "budget_unreadable"] += 1
            return
        exchange = Exchange(lane, call, slot, client)
        exchange.ending = ShadowEnding(lane, call, client, one)
        await exchange.run(reserved)

    async def _reserved(self, call: Call, slot: SlotConfig) -> Reservation | Failure | None:
        """The most that ``call`` may cost, set aside; ``None`` where there is no budget."""
        budget = self._worker.config.shadow.budget
        if budget is None:
            return None
        self._book.budget = budget
        most = TokenCounts(input=estimated_tokens(len(call.raw)), output=call.max_tokens(slot.max_tokens_default))
        nano = call.setup.prices.cost_nano(slot.primary.model, most, slot.primary.provider)
        return await self._budgets.reserve(SHADOWS, nano or 0)

    def _own_lane(self) -> Worker:
        """The worker with a budget of its own: a dear candidate takes no money from calls."""
        if self._lane is None:
            self._lane = copy.copy(self._worker)
            self._lane.budgets = self._budgets
        return self._lane


class _Book:
    """The account of shadow calls, charged under this worker's name."""

    def __init__(self, worker: Worker):
        self._store, self._name = worker.store, worker.name
        self.budget: Budget | None = None
        """As it was last reserved by: a call that outlives its budget is settled by this too."""
        self._is_open = False

    def reserve(self, key_id: str, nano: int) -> bool:
        if not self._is_open:
            self._store.open_account(key_id)
            self._is_open = True
        return self._store.reserve(key_id, nano, worker=self._name, budget=self.budget)

    def settle(self, key_id: str, reserved: int, actual: int) -> None:
        self._store.settle(key_id, reserved, actual, worker=self._name, budget=self.budget)


class ShadowEnding(Ending):
    """The end of a shadow call: its record says whose copy it was and whether it agreed."""

    def __init__(self, worker: Worker, call: Call, client: Client, copied: _Copy):
        super().__init__(worker, call, client)
        self._copied = copied
        self.marks = {
            "variant": "shadow",
            "shadow_of": copied.call.id,
            "agreement": "unscored",
            # Also when its breaker kept it from being asked: it is that candidate which gave no answer.
            "provider": copied.route.provider,
            "provider_model": copied.route.model,
        }

    async def before_record(self, answer: ChatAnswer | None) -> None:
        wanted = self._copied.answer
        if answer is not None and wanted is not None:
            tools = self._copied.call.tools()
            # A comparison of long arguments takes its time; calls go on meanwhile.
            self.marks["agreement"] = await asyncio.to_thread(agreement, wanted, answer.message, tools)


def shadow_slot(slot: SlotConfig, route: Route) -> SlotConfig:
    """``slot`` as a shadow is served: one route, one try."""
    return slot.model_copy(
        update={
            "primary": route,
            "fallbacks": (),
            "shadow": (),
            "canary": None,
            "retries": Retries(attempts=1),
            "require_valid_calls": False,
        }
    )


def _headers(call: Call) -> dict[bytes, bytes]:
    """What a copy needs of the client's headers; its key is not among it."""
    kept = FORWARDED[call.dialect.name] | {b"x-firstchair-session"}
    return {name: value for name, value in call.headers.items() if name in kept}


async def _nowhere(message: dict[str, Any]) -> None:
    """Where a shadow's answer is sent."""
