"""The end of a call: its one record, what it cost, and what its key has used."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import Message, TextPart, ThinkingPart
from firstchair.gateway.context import estimated_tokens
from firstchair.gateway.dialects.base import ChatAnswer, Failure
from firstchair.gateway.records import Attempt, CallRecord, Outcome

if TYPE_CHECKING:
    from firstchair.gateway.call import Call, Client
    from firstchair.gateway.control.slots import Choice
    from firstchair.gateway.limits import Reservation
    from firstchair.gateway.relay import StreamRelay
    from firstchair.gateway.worker import Worker

MAX_SETTLED_NANO = 10**17
"""100 million dollars: no call costs that, and thirty of them still fit beside one another."""


class Ending:
    """Gathers what becomes of one call and writes it down, once."""

    def __init__(self, worker: Worker, call: Call, client: Client):
        self._worker, self._call, self._client = worker, call, client
        self._began = time.perf_counter()
        self._ttft_ms: float | None = None
        self._asked_at: float | None = None
        self._upstream_ms: float | None = None
        self.choice: Choice | None = None
        """The route under way, or the last one."""
        self.attempts: list[Attempt] = []
        self.relay: StreamRelay | None = None
        self.dropped: tuple[str, ...] = ()
        self.left_at_chars: int | None = None
        """How much of the stream had come when the client left."""
        self.admitted_tokens = 0
        self.reservation: Reservation | None = None
        self.written = False
        self.outcome: Outcome | None = None
        self.answer: ChatAnswer | None = None
        """As it came, before anything was redacted."""
        self.marks: dict[str, Any] = {}
        """Fields of the record that stand for what was gathered."""

    def asked(self) -> None:
        """A provider is asked now."""
        self._asked_at = time.perf_counter()
        self.relay = None

    def attempt(self, attempt: Attempt) -> None:
        """A try is over, without an answer."""
        self.attempts.append(attempt)
        self._asked_at = None

    def first_content(self) -> None:
        """The client gets the first content now."""
        if self._ttft_ms is None and not self._client.gone:
            self._ttft_ms = self._ms_since(self._began)

    async def write(
        self,
        outcome: Outcome,
        status: int,
        *,
        failure: Failure | None = None,
        answer: ChatAnswer | None = None,
        malformed: int = 0,
    ) -> None:
        """Write the record; the second time nothing happens."""
        if self.written:
            return
        await self.before_record(answer)
        self.written = True
        self.outcome, self.answer = outcome, answer
        record = self._record(outcome, status, failure, answer, malformed)
        record = await self._call.setup.recorder.write(record)
        self._settle(record)
        self._worker.finished(record, self._call.slot)

    async def before_record(self, answer: ChatAnswer | None) -> None:
        """What a kind of call of its own has to find out about its answer."""

    def _record(
        self, outcome: Outcome, status: int, failure: Failure | None, answer: ChatAnswer | None, malformed: int
    ) -> CallRecord:
        call, worker, slot, choice = self._call, self._worker, self._call.slot, self.choice
        asked = self._asked_at is not None
        if self._asked_at is not None:
            self._upstream_ms = self._ms_since(self._asked_at)
            if choice is not None:
                route = choice.route
                status_there = 200 if answer or self.relay else None
                self.attempts.append(
                    Attempt(provider=route.provider, model=route.model, status=status_there, ms=self._upstream_ms)
                )
        message = answer.message if answer else self._partial()
        usage = answer.usage if answer else None
        estimated = usage is None and (asked or message is not None)
        if estimated:
            usage = self._estimate(message)
        cost, instead = self._costs(usage)
        start = self.relay.collector.start if self.relay else None
        record = CallRecord(
            call_id=call.id,
            received_us=call.received_us,
            worker=worker.name,
            slot=slot.slot if slot else "",
            slot_version=call.slot_version,
            dialect=call.dialect.name,
            requested_model=call.model[:256],
            stream=call.stream,
            key_id=call.key_id,
            session=call.session,
            user=self._user(),
            variant=choice.variant if choice else "primary",
            provider=choice.route.provider if choice else "",
            provider_model=choice.route.model if choice else "",
            response_model=(answer.model if answer else start.model if start else "")[:256],
            attempts=tuple(self.attempts),
            outcome=outcome,
            status=status,
            failure=failure.kind if failure else None,
            error=failure.message if failure else "",
            finish=answer.finish if answer else "",
            native_finish=(answer.native_finish or "") if answer else "",
            latency_ms=self._ms_since(self._began),
            ttft_ms=self._ttft_ms,
            upstream_ms=self._upstream_ms,
            usage=usage,
            estimated=estimated,
            raw_usage=answer.raw_usage if answer else None,
            cost_nano=cost,
            counterfactual_nano=instead,
            price_version=call.setup.prices.version,
            dropped=self.dropped,
            malformed_calls=malformed,
            template_hash=self._template_hash(),
            request=call.raw,
            answer=message,
            tokens=answer.tokens if answer else None,
        )
        return msgspec.structs.replace(record, **self.marks) if self.marks else record

    def _partial(self) -> Message | None:
        if self.relay is None or not self.relay.collector.has_content:
            return None
        return self.relay.collector.message()

    def _estimate(self, message: Message | None) -> TokenCounts:
        return TokenCounts(
            input=estimated_tokens(len(self._call.raw)), output=estimated_tokens(_chars(message) if message else 0)
        )

    def _costs(self, usage: TokenCounts | None) -> tuple[int | None, int | None]:
        """Of this call, and of the slot's incumbent for the same tokens. What nobody answered costs nothing."""
        slot, choice = self._call.slot, self.choice
        if usage is None or choice is None:
            return 0, None
        prices, route = self._call.setup.prices, choice.route
        instead = prices.counterfactual_nano(slot.counterfactual, usage) if slot else None
        return prices.cost_nano(route.model, usage, route.provider), instead

    def _template_hash(self) -> str:
        provider = self._call.setup.config.providers.get(self.choice.route.provider) if self.choice else None
        return (provider.template_hash if provider else None) or ""

    def _user(self) -> str:
        body = self._call.body
        metadata = body.get("metadata")
        user = body.get("user") or (metadata.get("user_id") if isinstance(metadata, dict) else None)
        return user[:256] if isinstance(user, str) else ""

    def _settle(self, record: CallRecord) -> None:
        key, usage = self._call.key, record.usage
        if key is not None and key.tokens_per_minute is not None:
            used = 0
            if usage is not None:
                used = usage.input + usage.cache_write_5m + usage.cache_write_1h + usage.output
            self._worker.rates.settle(key, self.admitted_tokens, used)
        if self.reservation is not None:
            # A provider may say what it likes about its tokens; the database holds 64 bits.
            cost = min(record.cost_nano or 0, MAX_SETTLED_NANO)
            self._worker.budgets.settle(self.reservation, cost)

    @staticmethod
    def _ms_since(moment: float) -> float:
        return round((time.perf_counter() - moment) * 1000, 3)


def _chars(message: Message) -> int:
    texts = sum(len(part.text) for part in message.content if isinstance(part, TextPart | ThinkingPart))
    return texts + sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
