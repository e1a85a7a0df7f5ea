"""A model of ours, or any server's, as a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from firstchair.chat.actions import Problem
from firstchair.chat.formats.native import read_message
from firstchair.chat.messages import Message, Tool
from firstchair.core.clock import utc_now
from firstchair.core.errors import FirstchairError
from firstchair.core.seeds import seed_of
from firstchair.engines.base import Engine, ErrorKind, Generation, Request, Sampling, Stop
from firstchair.rollout.episode_stream import EpisodeStream
from firstchair.rollout.policy import EpisodeTokens, PolicyReply, PolicyRequest
from firstchair.traces.session import CallTokens, ModelCall, Usage

if TYPE_CHECKING:
    from firstchair.chat.renderer import Renderer


class EnginePolicy:
    """Renders, generates, parses. Requests of many episodes wait for one engine, which batches them.

    With a ``renderer`` prompts go out as token ids and text comes back to be parsed; without one the engine's
    server renders and parses. An episode's prompt is its whole token stream: what was sampled stays as it was
    sampled, and is never tokenised again (see ``EpisodeStream``); ``take`` hands the stream over when the episode is
    over.

    A seed, of the request or else of ``sampling``, is varied per episode and decision, so that the rollouts of a
    group differ and a run still repeats. ``record_tokens`` keeps the engine's own ids and log-probabilities on the
    session too, where the engine gives them: each call with its whole prompt. Without ``seeded`` no seed is sent, for
    engines that refuse one (Anthropic's).
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer | None = None,
        sampling: Sampling | None = None,
        *,
        constrain: bool = False,
        salvage: bool = False,
        record_tokens: bool = True,
        seeded: bool = True,
    ):
        self.engine, self.name = engine, engine.info().model
        self._renderer, self._sampling = renderer, sampling or Sampling()
        self._constrain, self._salvage, self._record_tokens = constrain, salvage, record_tokens
        self._seeded = seeded
        self._streams: dict[str, EpisodeStream] = {}

    async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
        """One generation per request; one that cannot be rendered gets an error of its own."""
        started = utc_now()
        sent = [self._request(request) for request in requests]
        ready = [request for request in sent if isinstance(request, Request)]
        by_id: dict[str, Generation] = {}
        if ready:
            async for generation in self.engine.generate(ready):
                by_id[generation.request_id] = generation
        return [
            self._reply(request, by_id[out.request_id], started) if isinstance(out, Request) else out
            for request, out in zip(requests, sent, strict=True)
        ]

    def take(self, episode_id: str) -> EpisodeTokens:
        """The tokens of an episode, which is forgotten."""
        stream = self._streams.pop(episode_id, None)
        return EpisodeTokens() if stream is None else stream.tokens()

    def _request(self, request: PolicyRequest) -> Request | PolicyReply:
        request_id, sampling = request.request_id, self._sampling
        seed = sampling.seed if request.seed is None else request.seed
        if seed is not None and self._seeded:
            sampling = replace(sampling, seed=seed_of(seed, request_id))
        if request.max_tokens is not None and request.max_tokens < sampling.max_new_tokens:
            sampling = replace(sampling, max_new_tokens=request.max_tokens)
        ids: tuple[int, ...] | None = None
        if self._renderer is not None:
            stream = self._streams.get(request.episode_id)
            if stream is None:
                stream = self._streams[request.episode_id] = EpisodeStream(self._renderer)
            try:
                ids = stream.prompt(request.messages, request.tools, left_out=request.left_out)
            except FirstchairError as error:
                return PolicyReply(error=f"{ErrorKind.BAD_REQUEST}: {error}", error_kind=ErrorKind.BAD_REQUEST)
        return Request(
            request_id=request_id,
            messages=request.messages,
            tools=request.tools,
            prompt_ids=ids,
            sampling=sampling,
            group=request.episode_id,
            constrain=self._constrain,
        )

    def _reply(self, request: PolicyRequest, generation: Generation, started: str) -> PolicyReply:
        call = ModelCall(
            call_id=generation.request_id,
            provider=self.engine.info().engine,
            model=self.name,
            started_at=started,
            latency_ms=generation.latency_s * 1000,
            usage=_usage(generation),
            error=generation.error,
            tokens=_tokens(generation) if self._record_tokens else None,
        )
        if generation.stop in (Stop.ERROR, Stop.CANCELLED):
            reason = generation.error or "cancelled"
            return PolicyReply(stop=generation.stop, error=reason, error_kind=generation.error_kind, call=call)
        if generation.message is not None:
            return reply_of_message(generation.message, request.tools, generation.stop, call)
        if self._renderer is None:
            problem = (
                "the engine gives text and there is no renderer to parse it; pass EnginePolicy(engine, renderer)"
            )
            return PolicyReply(error=problem, call=call)
        parsed = self._renderer.parse(generation.text, request.tools, salvage=self._salvage)
        self._streams[request.episode_id].sampled(generation, parsed.action().to_message())
        problems = parsed.problems + truncated(generation.stop)
        return PolicyReply(
            action=parsed.action(),
            malformed=parsed.malformed or generation.stop is Stop.LENGTH,
            problems=problems,
            raw_text=generation.text,
            stop=generation.stop,
            call=call,
        )


def truncated(stop: Stop) -> tuple[Problem, ...]:
    """The problem of a reply that was cut: whatever it reads like, it is not what the model meant to say."""
    return (
        (Problem(kind="truncated", message="the reply was cut at its length limit"),) if stop is Stop.LENGTH else ()
    )


def reply_of_message(message: Message, tools: Sequence[Tool], stop: Stop, call: ModelCall) -> PolicyReply:
    """The reply in a message whose server has parsed it, held to the same rules as text parsed here."""
    parsed = read_message(message, tools)
    return PolicyReply(
        action=parsed.action(),
        malformed=parsed.malformed or stop is Stop.LENGTH,
        problems=parsed.problems + truncated(stop),
        raw_text=message.text,
        message=message,
        stop=stop,
        call=call,
    )


def _tokens(generation: Generation) -> CallTokens | None:
    if generation.prompt_ids is None or generation.ids is None or generation.logprobs is None:
        return None
    return CallTokens(prompt_ids=generation.prompt_ids, completion_ids=generation.ids, logprobs=generation.logprobs)


def _usage(generation: Generation) -> Usage:
    output = generation.output_tokens if generation.ids is None else len(generation.ids)
    cached = min(generation.cached_tokens, generation.prompt_tokens)
    return Usage(input=generation.prompt_tokens - cached, output=output or 0, cache_read=cached)
