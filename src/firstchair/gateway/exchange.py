"""One call from its plan to its record.

    routes ──→ breaker, prompt size ──→ send ──→ whole answer │ stream ──→ client
      ↑                                   │ failure before any content
      └──────────── decide ←──────────────┘
    the record is in the spool before the last byte leaves; there is exactly one, whatever happened

``asyncio.timeout`` holds the clocks. A client that leaves is seen by ``client_left``; by the slot's policy the call
is then cancelled, or read on to its usage.
"""

from __future__ import annotations

import asyncio

import msgspec

from firstchair.chat.messages import ToolCall
from firstchair.core.errors import BadRequest, FirstchairError
from firstchair.core.jsontext import JsonProblem, loads_bytes
from firstchair.gateway.attempts import Verdict, decide, malformed_calls, plan, worth_telling
from firstchair.gateway.call import Call, Client, Header, header_text, wait_headers
from firstchair.gateway.config import Provider
from firstchair.gateway.context import estimated_tokens
from firstchair.gateway.control.slots import Choice, SlotConfig
from firstchair.gateway.dialects.base import (
    ChatAnswer,
    ChatRequest,
    Dialect,
    Failure,
    FailureKind,
    StreamFault,
    StreamWriter,
)
from firstchair.gateway.dialects.body import with_fitting_ids
from firstchair.gateway.dialects.failures import failure_in
from firstchair.gateway.ending import Ending
from firstchair.gateway.json_bytes import encoded
from firstchair.gateway.limits import Reservation
from firstchair.gateway.outbound import (
    Outbound,
    constrained,
    forwarded,
    has_unsigned_thinking,
    target_for,
    translated,
)
from firstchair.gateway.records import Attempt, Outcome
from firstchair.gateway.relay import StreamRelay
from firstchair.gateway.upstream import Answered, client_headers
from firstchair.gateway.worker import Worker

RENEWALS = 64
"""How often the clock for the next event is set anew while it runs once."""
_OURS = frozenset({FailureKind.AUTHENTICATION, FailureKind.PERMISSION, FailureKind.BUDGET})
"""What a provider may hold against the gateway; to the client it is a server's error."""


class Exchange:
    """Serves one call. ``run`` once; ``client_left`` at any time."""

    def __init__(self, worker: Worker, call: Call, slot: SlotConfig, client: Client):
        self._worker, self._call, self._slot, self._client = worker, call, slot, client
        self._setup = call.setup
        self._most = call.setup.config.limits.max_answer_bytes
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + slot.timeouts.total_s
        self.ending = Ending(worker, call, client)
        self._task = asyncio.current_task()
        self._relay: StreamRelay | None = None
        self._writer: StreamWriter | None = None
        self._sent = False
        self._answer_s = slot.timeouts.for_answer_s(is_last=True)
        self._dropped: tuple[str, ...] = ()
        self._malformed: tuple[ToolCall, ...] = ()

    def client_left(self) -> None:
        """The client's connection is gone."""
        if self.ending.written:
            return
        self._client.gone = True
        self._worker.count("clients_left")
        if self._slot.on_disconnect == "cancel" and self._task is not None:
            self._task.cancel()

    async def run(self, reservation: Reservation | None) -> None:
        self.ending.reservation = reservation
        try:
            failure = await self._routes()
            if failure is not None:
                await self._give_up(failure)
        except asyncio.CancelledError:
            if not self.ending.written:
                await self._interrupted()
            if not self._client.gone or self._task is None:
                raise
            self._task.uncancel()
        except Exception as error:  # noqa: BLE001 - the boundary of a call: a fault of ours is a record and a 5xx too
            self._worker.fault(error)
            await self._give_up(
                Failure(kind=FailureKind.SERVER_ERROR, message=f"the gateway failed ({type(error).__name__})")
            )

    # --- which route ------------------------------------------------------------------------------------------------

    async def _routes(self) -> Failure | None:
        """Try them in order; ``None`` when one has answered."""
        call = self._call
        session = call.sticky_session() if self._slot.canary else call.session
        failures: list[Failure] = []
        waits: list[float] = []
        choices = plan(self._slot, session=session, key_id=call.key_id, call_id=call.id)
        for choice in choices:
            self._answer_s = self._slot.timeouts.for_answer_s(is_last=choice is choices[-1])
            breaker = self._setup.breakers.get(choice.route.provider)
            if breaker is None:
                message = f"provider {choice.route.provider} is not configured"
                failures.append(Failure(kind=FailureKind.NOT_FOUND, message=message))
                continue
            if not breaker.allows(self._loop.time()):
                waits.append(breaker.wait_s(self._loop.time()))
                continue
            verdict, failure = await self._route(choice)
            if failure is None or verdict is Verdict.STOP:
                return failure
            failures.append(failure)
        if waits:
            who = "a provider of this slot" if failures else "every provider of this slot"
            message = f"{who} has failed just now and is left alone for a while"
            failures.insert(0, Failure(kind=FailureKind.OVERLOADED, message=message, retry_after_s=min(waits)))
        return worth_telling(failures)

    async def _route(self, choice: Choice) -> tuple[Verdict, Failure | None]:
        """One route, with its repeats."""
        bound, tries = False, 0
        while True:
            tries += 1
            failure = await self._try(choice, bound=bound)
            if failure is None:
                return Verdict.STOP, None
            if self._client.started or self._client.gone:
                return Verdict.STOP, failure
            left_s = self._deadline - self._loop.time()
            decision = decide(
                failure,
                tries=tries,
                constrained=bound,
                retries=self._slot.retries,
                left_s=left_s,
                rng=self._worker.rng,
            )
            if decision.verdict is Verdict.CONSTRAIN:
                bound = True
            elif decision.verdict is Verdict.RETRY:
                await asyncio.sleep(decision.wait_s)
                if not self._setup.breakers[choice.route.provider].allows(self._loop.time()):
                    return Verdict.NEXT, failure
            elif (
                failure.status is None and failure.kind is FailureKind.BAD_REQUEST and failure.native == "translation"
            ):
                # This route cannot carry the request; one that speaks the client's dialect may.
                return Verdict.NEXT, failure
            else:
                return decision.verdict, failure

    async def _try(self, choice: Choice, *, bound: bool) -> Failure | None:
        """One try. Told to the breaker and kept as an ``Attempt``; ``None`` when it has answered."""
        route = choice.route
        breaker = self._setup.breakers[route.provider]
        self.ending.choice = choice
        began = self._loop.time()
        failure: Failure | None = None
        reported = self._sent = False
        try:
            failure = await self._ask(choice, bound=bound)
            if failure is not None:
                failure = self._setup.upstreams[route.provider].hidden(failure)
            reported = True
        finally:
            now = self._loop.time()
            if not reported or not self._sent or (failure is not None and self._client.stalled):
                # Nothing was said about the provider: the client left or stopped reading, or nobody was asked.
                breaker.abandoned()
            elif failure is None:
                breaker.answered()
            else:
                breaker.failed(failure.kind, now)
            if failure is not None:
                self.ending.attempt(_attempt(choice, failure, now - began))
        return failure

    async def _ask(self, choice: Choice, *, bound: bool) -> Failure | None:
        call = self._call
        upstream = self._setup.upstreams[choice.route.provider]
        name = upstream.provider.dialect_for(call.dialect.name)
        dialect = self._worker.dialects[name]
        try:
            out = self._outbound(choice, dialect, bound=bound)
        except BadRequest as error:
            return Failure(kind=FailureKind.BAD_REQUEST, message=str(error), param=error.param, native="translation")
        except FirstchairError as error:
            return Failure(kind=FailureKind.BAD_REQUEST, message=str(error), native="translation")
        failure = await self._too_long(choice.route.provider)
        if failure is not None:
            return failure
        self._dropped = out.dropped
        self.ending.dropped = out.dropped
        headers = client_headers(name, call.headers) if name == call.dialect.name else {}
        headers |= call.trace
        timeouts = self._slot.timeouts
        now = self._loop.time()
        first = min(self._deadline, now + (timeouts.first_token_s if call.stream else self._answer_s))
        answered: Answered | None = None
        self.ending.asked()
        self._sent, self._relay = True, None
        try:
            async with asyncio.timeout_at(first) as clock:
                sent = await upstream.send(name, out.body, headers, connect_s=timeouts.connect_s)
                if isinstance(sent, Failure):
                    return sent
                answered = sent
                if answered.status != 200:
                    body = await answered.error_body()
                    return dialect.read_failure(answered.status, answered.headers, body)
                if call.stream:
                    return await self._streamed(answered, dialect, out, clock)
                return await self._buffered(answered, dialect, out)
        except StreamFault as fault:
            return fault.failure
        except TimeoutError:
            return self._timed_out(choice)
        finally:
            if answered is not None:
                answered.release()

    def _outbound(self, choice: Choice, dialect: Dialect, *, bound: bool) -> Outbound:
        call = self._call
        provider = self._setup.upstreams[choice.route.provider].provider
        same = dialect.name == call.dialect.name
        if same and not bound and self._goes_whole(provider, dialect):
            return forwarded(call.body, provider, choice.route.model, dialect=dialect.name)
        request = call.request()
        if bound:
            request = constrained(request, self._malformed)
        out = translated(request, dialect, target_for(provider, choice.route.model, self._slot))
        if same:
            asked = call.stream and dialect.name == "openai" and not request.include_usage
            return out._replace(as_is=True, hide_usage=asked)
        return out

    def _goes_whole(self, provider: Provider, dialect: Dialect) -> bool:
        """Whether the client's own body is one that this provider of its dialect takes."""
        call = self._call
        if provider.call_ids is not None:
            messages = call.request().messages
            if with_fitting_ids(messages, provider.call_ids) is not messages:
                return False
        return dialect.name != "anthropic" or not has_unsigned_thinking(call.raw, call.body)

    async def _too_long(self, provider: str) -> Failure | None:
        """The prompt counted before it is sent, where that can be done and can matter."""
        window = self._setup.config.providers[provider].context_window
        counter = self._setup.counting.get(provider)
        # A token is at least a byte.
        if window is None or counter is None or len(self._call.raw) <= window:
            return None
        try:
            request = self._call.request()
        except BadRequest:
            return None
        tokens = await counter.count(request)
        if tokens < window:
            return None
        return Failure(
            kind=FailureKind.CONTEXT_OVERFLOW,
            message=f"prompt is too long: {tokens} tokens > {window} maximum context length of provider {provider}",
        )

    def _timed_out(self, choice: Choice) -> Failure:
        timeouts, relay = self._slot.timeouts, self._relay
        if self._loop.time() >= self._deadline:
            what = f"did not finish within {timeouts.total_s:g} s"
        elif relay is not None and relay.has_content:
            what = f"went silent for {timeouts.idle_s:g} s"
        elif self._call.stream:
            what = f"gave no content within {timeouts.first_token_s:g} s"
        else:
            what = f"gave no whole answer within {self._answer_s:g} s"
        return Failure(kind=FailureKind.TIMEOUT, message=f"provider {choice.route.provider} {what}")

    # --- whole answers ----------------------------------------------------------------------------------------------

    async def _buffered(self, answered: Answered, dialect: Dialect, out: Outbound) -> Failure | None:
        call = self._call
        raw = await answered.body(self._most)
        try:
            body = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _bad("an answer that is not JSON")
        if not isinstance(body, dict):
            return _bad("an answer that is no JSON object")
        if "error" in body and body["error"] and not ("choices" in body or "content" in body or "output" in body):
            return failure_in(body, status=answered.status)
        try:
            answer = dialect.read_answer(body)
        except FirstchairError as error:
            return _bad(f"what is no answer: {error}")
        failure = self._check(answer)
        if failure is not None:
            return failure
        if out.as_is:
            data = raw
        else:
            try:
                written = call.dialect.write_answer(answer, call.request(), model=call.model)
            except FirstchairError as error:
                return _bad(f"what {call.dialect.name} cannot say: {error}")
            data = encoded(written.body)
            self.ending.dropped = self._dropped = (*out.dropped, *written.dropped)
        self.ending.first_content()
        outcome = Outcome.CLIENT_DISCONNECTED if self._client.gone else Outcome.OK
        await self.ending.write(outcome, 200, answer=answer, malformed=len(self._malformed))
        await self._client.answer(200, data, self._extra_headers())
        return None

    def _check(self, answer: ChatAnswer) -> Failure | None:
        """Malformed tool calls are counted, and a failure where the slot says so."""
        self._malformed = ()
        if not answer.message.tool_calls:
            return None
        self._malformed = malformed_calls(answer.message, self._call.tools())
        if not self._malformed or not self._slot.require_valid_calls:
            return None
        names = ", ".join(sorted({call.name for call in self._malformed}))[:200]
        return Failure(
            kind=FailureKind.MALFORMED_CALL, message=f"the provider called {names} with arguments that do not fit"
        )

    # --- streams ----------------------------------------------------------------------------------------------------

    async def _streamed(
        self, answered: Answered, dialect: Dialect, out: Outbound, clock: asyncio.Timeout
    ) -> Failure | None:
        if not answered.is_stream:
            return self._no_stream(await answered.body(self._most), answered.status)
        call = self._call
        writer = self._writer = None if out.as_is else call.dialect.writer(call.request(), model=call.model)
        hold_all = self._slot.require_valid_calls and bool(call.tools())
        relay = self._relay = StreamRelay(
            dialect.reader(), writer, hide_usage=out.hide_usage, hold_all=hold_all, limit=self._most
        )
        self.ending.relay = relay
        idle_s = self._slot.timeouts.idle_s
        renew_at = 0.0
        async for chunk in answered.chunks():
            data = relay.feed(chunk)
            now = self._loop.time()
            if relay.has_content and now >= renew_at:
                # Not at every event: that costs as much as reading it. The clock runs a little longer instead.
                clock.reschedule(min(self._deadline, now + idle_s + idle_s / RENEWALS))
                renew_at = now + idle_s / RENEWALS
            if data or relay.ended:
                failure = await self._passed_on(relay, data)
                if failure is not None:
                    return failure
            if relay.ended and relay.failure is None:
                # Not the provider's end: one that never hangs up must hold no client and is not at fault.
                clock.reschedule(None)
                await self._client.end()
                await answered.finish()
                return None
            if relay.failure is not None or (self._client.gone and self._drained(relay)):
                answered.stop()
                break
        else:
            failure = await self._passed_on(relay, relay.close())
            if failure is not None:
                return failure
        if relay.failure is not None:
            return relay.failure
        if not self.ending.written:  # the client left, and more than the slot's cap came after that
            await self.ending.write(Outcome.CLIENT_DISCONNECTED, 200, answer=None)
        await self._client.end()
        return None

    async def _passed_on(self, relay: StreamRelay, data: bytes) -> Failure | None:
        """To the client what may go out now; the record first when it is the end."""
        if relay.ended and relay.failure is None and not self.ending.written:
            answer = relay.collector.answer()
            failure = self._check(answer)
            if failure is not None and not self._client.started:
                return failure
            data = relay.release() + data
            self.ending.dropped = self._dropped = (*self._dropped, *relay.dropped)
            self.ending.first_content()
            outcome = Outcome.CLIENT_DISCONNECTED if self._client.gone else Outcome.OK
            await self.ending.write(outcome, 200, answer=answer, malformed=len(self._malformed))
        if data:
            if not self._client.started:
                self.ending.first_content()
                headers = [(b"cache-control", b"no-cache"), *self._extra_headers()]
                await self._client.begin(200, b"text/event-stream; charset=utf-8", headers)
            if relay.ended and relay.failure is None:
                await self._client.end(data)
            else:
                await self._client.write(data)
        return None

    def _drained(self, relay: StreamRelay) -> bool:
        """Whether enough has been read for a client that left."""
        if self.ending.written:
            return False
        if self.ending.left_at_chars is None:
            self.ending.left_at_chars = relay.chars
        return estimated_tokens(relay.chars - self.ending.left_at_chars) >= self._slot.drain_tokens

    def _no_stream(self, raw: bytes, status: int) -> Failure:
        """A stream was asked for and something else came: mostly an error in a 200."""
        try:
            body = loads_bytes(raw)
        except (JsonProblem, UnicodeDecodeError):
            body = None
        if isinstance(body, dict) and body.get("error"):
            return failure_in(body, status=status)
        return _bad("no stream, although one was asked for")

    # --- endings ----------------------------------------------------------------------------------------------------

    async def _give_up(self, failure: Failure) -> None:
        """The client gets the failure: as an error, or as the last event of a stream that has begun."""
        call, client = self._call, self._client
        told = shown(failure)
        if client.stalled:
            client.gone = True  # it would not read the error either; the connection is closed
        if client.started:
            outcome = Outcome.CLIENT_DISCONNECTED if client.gone else Outcome.INCOMPLETE
            if self.ending.written:
                await client.end()
                return
            await self.ending.write(outcome, 200, failure=failure)
            writer = self._writer or call.dialect.writer(self._as_request(), model=call.model)
            await client.end(writer.fail(told))
            return
        status, body = call.dialect.write_failure(told, request_id=call.id)
        if client.gone:
            outcome = Outcome.CLIENT_DISCONNECTED
        else:
            refused = failure.native == "translation" or not self.ending.attempts
            outcome = Outcome.REFUSED if refused and 400 <= status < 500 else Outcome.FAILED
        await self.ending.write(outcome, status, failure=failure)
        headers = self._extra_headers()
        if failure.status is not None:
            headers.append((b"x-firstchair-provider-status", str(failure.status).encode()))
        await client.answer(status, encoded(body), headers + wait_headers(failure))

    async def _interrupted(self) -> None:
        """Cancelled: by the client's leaving, or by the end of the drain."""
        client = self._client
        if client.gone:
            await self.ending.write(Outcome.CLIENT_DISCONNECTED, 200 if client.started else 499)
            return
        failure = Failure(kind=FailureKind.SERVER_ERROR, message="the gateway was stopped during this call")
        outcome = Outcome.INCOMPLETE if client.started else Outcome.FAILED
        await self.ending.write(outcome, 200 if client.started else 503, failure=failure)

    def _as_request(self) -> ChatRequest:
        """For the error event of a stream that was passed through unread."""
        call = self._call
        return ChatRequest(
            dialect=call.dialect.name,
            model=call.model,
            messages=(),
            stream=True,
            received_s=call.received_us // 1_000_000,
        )

    def _extra_headers(self) -> list[Header]:
        choice = self.ending.choice
        headers: list[Header] = []
        if choice is not None:
            headers.append((b"x-firstchair-provider", header_text(str(choice.route))))
        if self._dropped:
            headers.append((b"x-firstchair-dropped", header_text(", ".join(self._dropped))))
        return headers


def _attempt(choice: Choice, failure: Failure, seconds: float) -> Attempt:
    return Attempt(
        provider=choice.route.provider,
        model=choice.route.model,
        failure=failure.kind,
        status=failure.status,
        ms=round(seconds * 1000, 3),
    )


def _bad(what: str) -> Failure:
    return Failure(kind=FailureKind.BAD_ANSWER, message=f"the provider sent {what}"[:500])


def shown(failure: Failure) -> Failure:
    """What the client is told: that a provider refuses the gateway's own key is no fault of the client's."""
    if failure.kind not in _OURS or failure.status is None:
        return failure
    return msgspec.structs.replace(failure, kind=FailureKind.SERVER_ERROR, status=502)
