from __future__ import annotations

import asyncio

from firstchair.chat.actions import Action
from firstchair.engines.base import Engine, ErrorKind, Generation, Request, Stop
from firstchair.engines.scripted import ScriptedEngine


async def collect(engine: Engine, *requests: Request) -> dict[str, Generation]:
    return {generation.request_id: generation async for generation in engine.generate(requests)}


def test_a_list_is_handed_out_in_order_and_then_the_script_has_run_out() -> None:
    engine = ScriptedEngine(["one", Action(kind="final_reply", text="two")])
    out = asyncio.run(collect(engine, *(Request(request_id=name) for name in "abc")))
    assert isinstance(engine, Engine)
    assert out["a"].text == "one"
    assert out["b"].message is not None
    assert out["b"].message.text == "two"
    assert out["c"].stop is Stop.ERROR
    assert out["c"].error_kind is ErrorKind.ENGINE
    assert "2 replies" in (out["c"].error or "")
    assert engine.batches == [3]


def test_a_function_that_raises_fails_its_own_request_only() -> None:
    def reply(request: Request) -> str:
        if request.request_id == "bad":
            raise ValueError("no")
        return "fine"

    out = asyncio.run(collect(ScriptedEngine(reply), Request(request_id="bad"), Request(request_id="good")))
    assert out["bad"].error == "ValueError: no"
    assert out["good"].text == "fine"


def test_ids_and_logprobs_have_one_entry_per_token() -> None:
    engine = ScriptedEngine(["abc"], encode=lambda text: [ord(letter) for letter in text])
    out = asyncio.run(collect(engine, Request(request_id="a", prompt_ids=(1, 2))))
    assert out["a"].ids == (97, 98, 99)
    assert out["a"].logprobs == (0.0, 0.0, 0.0)
    assert out["a"].prompt_tokens == 2


def test_a_cancelled_request_says_so_and_the_others_go_on() -> None:
    async def run() -> dict[str, Generation]:
        async def reply(request: Request) -> str:
            if request.request_id == "slow":
                await asyncio.Event().wait()
            return "quick"

        engine = ScriptedEngine(reply)
        out: dict[str, Generation] = {}
        async for generation in engine.generate([Request(request_id="slow"), Request(request_id="quick")]):
            out[generation.request_id] = generation
            if generation.request_id == "quick":
                assert await engine.cancel("slow")
                assert not await engine.cancel("quick")
        await engine.close()
        return out

    out = asyncio.run(run())
    assert out["slow"].stop is Stop.CANCELLED
    assert out["quick"].text == "quick"


def test_leaving_early_cancels_the_rest() -> None:
    async def run() -> list[str]:
        cancelled: list[str] = []

        async def reply(request: Request) -> str:
            if request.request_id == "quick":
                return "quick"
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(request.request_id)
                raise
            return ""

        stream = ScriptedEngine(reply).generate([Request(request_id="slow"), Request(request_id="quick")])
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        return cancelled

    assert asyncio.run(run()) == ["slow"]
