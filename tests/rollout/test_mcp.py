"""Tools from MCP servers: real processes of the official SDK, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firstchair.chat.actions import Action
from firstchair.chat.messages import ImagePart, Message, Tool, ToolCall
from firstchair.core.config import validate
from firstchair.core.errors import ConfigError, RunFailed, UpstreamError
from firstchair.data.orchestration.made_by import made_by
from firstchair.rollout.environment import Closing, Environment
from firstchair.rollout.mcp_environment import McpEnvironment, McpTask
from firstchair.rollout.mcp_servers import HttpServer, McpSpec, StdioServer, with_environment
from firstchair.rollout.mcp_tools import McpToolset
from firstchair.rollout.orchestration import rollout_tools
from firstchair.rollout.orchestration.policy_spec import ServerPolicy
from firstchair.rollout.orchestration.setup import RolloutParts, open_parts
from firstchair.rollout.rollouts import RolloutPlan
from firstchair.testing.engine_process import free_port

SCRIPT = str(Path(__file__).with_name("mcp_server.py"))
STDIO = StdioServer(command=sys.executable, args=(SCRIPT,))
SLOW = 240.0
"""Seconds: starting a Python with the SDK is slow on a busy machine."""
NAMES = ["add", "store", "recall", "fail", "picture", "die", "hang"]


@pytest.fixture(scope="module")
def http_server() -> Iterator[HttpServer]:
    port = free_port()
    process = subprocess.Popen([sys.executable, SCRIPT, str(port)], stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        yield HttpServer(url=f"http://127.0.0.1:{port}/mcp", headers={"x-team": "desk"})
    finally:
        process.kill()
        process.wait()


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall.of("c1", name, arguments)


def test_tools_are_listed_with_their_schemas_and_called_over_stdio():
    async def run() -> None:
        async with McpToolset({"words": STDIO}, timeout_s=SLOW) as toolset:
            assert [tool.name for tool in toolset.tools] == NAMES
            add = toolset.tools[0]
            assert add.description == "Add two numbers."
            assert add.parameters["properties"]["a"]["type"] == "integer"
            assert add.parameters["required"] == ["a", "b"]
            found = await toolset.call(call("add", a=2, b=3))
            assert (found.role, found.text, found.tool_call_id, found.name) == ("tool", "5", "c1", "add")
            assert not found.is_error
            # What a server gives only in its structured form is given as JSON.
            assert (await toolset.call(call("recall"))).text == '{"result": []}'
            (image,) = (await toolset.call(call("picture"))).content
            assert isinstance(image, ImagePart)
            assert image.url == "data:image/png;base64,iVBORw=="
            for wrong, reason in (
                (call("fail"), "the shelf is full"),
                (call("add", a="two", b=3), "valid integer"),
                (call("nothing"), "no tool 'nothing'"),
                (ToolCall(id="c1", name="add", arguments="{"), "not a JSON object"),
            ):
                result = await toolset.call(wrong)
                assert result.is_error
                assert reason in result.text
                assert result.tool_call_id == "c1"

    asyncio.run(run())


def test_a_server_that_dies_is_a_typed_error_and_the_next_call_starts_it_afresh():
    async def run() -> None:
        async with McpToolset({"words": STDIO}, timeout_s=SLOW) as toolset:
            await toolset.call(call("store", word="one"))
            with pytest.raises(UpstreamError, match=r"MCP server 'words' .*mcp_server.py\): calling die: "):
                await toolset.call(call("die"))
            found = await toolset.call(call("store", word="two"))
            assert found.text == "stored two"
            assert "one" not in (await toolset.call(call("recall"))).text

    asyncio.run(run())


def test_the_same_tools_over_http(http_server: HttpServer):
    async def run() -> None:
        async with McpToolset({"words": http_server}, timeout_s=SLOW) as toolset:
            assert [tool.name for tool in toolset.tools] == NAMES
            assert (await toolset.call(call("add", a=2, b=3))).text == "5"
            assert (await toolset.call(call("fail"))).is_error

    asyncio.run(run())


def parts_with(servers: dict[str, Any], **fields: Any) -> RolloutParts:
    wanted = {"experts": ["qwen3_5_9b"], "mcp": {"servers": servers, "timeout_s": SLOW}, **fields}
    return validate(RolloutParts, wanted, source="setup.yaml")


def test_an_orchestrator_is_offered_them_beside_its_experts_and_each_rollout_connects_for_itself(
    http_server: HttpServer,
):
    server = {"url": http_server.url, "headers": {"x-team": "hush"}}
    wanted = parts_with({"words": server}, tools={"tools": [{"type": "calculator"}]})

    async def run() -> None:
        async with open_parts(wanted, {"OPENROUTER_API_KEY": "k"}) as parts:
            assert [one.label for one in parts.full.offered] == ["qwen3_5_9b", "calculator", *NAMES]
            first, idle = parts.toolset(), parts.toolset()
            assert first is not None
            assert idle is not None
            assert (await first.call(call("calculator", expression="2 + 3"))).text == "5"
            assert first._servers is None  # type: ignore[attr-defined]
            assert (await first.call(call("add", a=2, b=3))).text == "5"
            assert (await first.call(call("fail"))).is_error
            assert idle._servers is None  # type: ignore[attr-defined]
            for tools in (first, idle):
                await tools.close()
            policy = ServerPolicy(type="server", base_url="http://127.0.0.1:9/v1", model="m")
            record = made_by(policy, "", parts, RolloutPlan(samples=1, seed=0))
            assert record.setup["mcp"]["servers"]["words"]["url"] == http_server.url
            assert record.offered["add"]["spec"]["description"] == "Add two numbers."
            assert "hush" not in str(record)

    asyncio.run(run())


def test_a_name_that_stands_twice_and_servers_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch):
    async def listed(mcp: McpSpec) -> tuple[Tool, ...]:
        return (Tool(name="calculator"),)

    async def opened(wanted: RolloutParts) -> None:
        async with open_parts(wanted, {"OPENROUTER_API_KEY": "k"}):
            raise AssertionError("it opened")

    monkeypatch.setattr(rollout_tools, "_listed", listed)
    wanted = parts_with({"words": {"command": "x"}}, tools={"tools": [{"type": "calculator"}]})
    with pytest.raises(ConfigError, match="a server offers 'calculator', and so does tools"):
        asyncio.run(opened(wanted))
    for servers, words in (
        ({}, r"mcp\.servers: "),
        ({"a": {"comand": "x"}}, "comand: unknown field; did you mean command"),
        ({"a": {"url": "http://x/mcp", "args": []}}, "args: unknown field"),
    ):
        with pytest.raises(ConfigError, match=words):
            parts_with(servers)


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    http = HttpServer(url="http://x/mcp", headers={"a": "b"}, api_key_env="WORDS_KEY")
    stdio = StdioServer(command="x", env={"a": "b"}, pass_env=("WORDS_KEY",))
    for server in (http, stdio):
        with pytest.raises(ConfigError, match="MCP server 'words': the environment variable WORDS_KEY is not set"):
            asyncio.run(McpToolset({"words": server}).__aenter__())
    monkeypatch.setenv("WORDS_KEY", "k")
    assert with_environment("words", http).headers == {"a": "b", "authorization": "Bearer k"}  # type: ignore[union-attr]
    assert with_environment("words", stdio).env == {"a": "b", "WORDS_KEY": "k"}  # type: ignore[union-attr]
    assert with_environment("words", STDIO) == STDIO


def test_a_call_that_takes_too_long_is_a_typed_error(http_server: HttpServer):
    async def run() -> None:
        async with McpToolset({"words": http_server}, timeout_s=SLOW) as toolset:
            # Long enough to connect on any machine; only the call is cut.
            for connection in toolset._connections.values():
                connection._timeout_s = 0.2
            with pytest.raises(UpstreamError, match=r"calling hang: no answer within 0\.2 s"):
                await toolset.call(call("hang"))

    asyncio.run(run())


def test_two_servers_that_offer_one_name_are_refused(http_server: HttpServer):
    async def run() -> None:
        async with McpToolset({"one": http_server, "two": http_server}, timeout_s=SLOW):
            raise AssertionError("it opened")

    with pytest.raises(ConfigError, match="tool 'add': offered by the MCP servers 'one' and 'two'"):
        asyncio.run(run())


@pytest.mark.parametrize(
    "server",
    [
        StdioServer(command="/nowhere/server"),
        StdioServer(command=sys.executable, args=("-c", "print('no protocol')")),
        HttpServer(url="http://127.0.0.1:9/mcp"),
    ],
)
def test_a_server_that_cannot_be_reached_is_named(server: StdioServer | HttpServer):
    async def run() -> None:
        async with McpToolset({"words": server}, timeout_s=SLOW):
            raise AssertionError("it opened")

    with pytest.raises(UpstreamError, match=r"MCP server 'words' .*: connecting: "):
        asyncio.run(run())


def test_an_environment_puts_tools_around_what_a_user_wants():
    task = McpTask(
        task_id="t", system="You store words.", turns=("Store oak.", "And elm."), data={"words": ["oak", "elm"]}
    )

    async def verify(task: McpTask, messages: tuple[Message, ...], toolset: McpToolset) -> bool:
        stored = await toolset.call(call("recall"))
        return all(word in stored.text for word in task.data["words"]) and messages[-1].text == "Done."

    async def run() -> None:
        environment = McpEnvironment(McpToolset({"words": STDIO}, timeout_s=SLOW), verify)
        assert isinstance(environment, Environment)
        assert isinstance(environment, Closing)
        observation = await environment.reset(task, 0)
        assert [message.text for message in observation.messages] == ["You store words.", "Store oak."]
        assert [tool.name for tool in observation.tools] == NAMES
        step = await environment.step(Action(kind="tool_call", calls=(call("store", word="oak"),)))
        assert ([message.text for message in step.messages], step.done) == (["stored oak"], False)
        step = await environment.step(Action(kind="final_reply", text="Done."))
        assert ([message.text for message in step.messages], step.done) == (["And elm."], False)
        step = await environment.step(Action(kind="final_reply", text="Done."))
        assert (step.messages, step.done) == ((), True)
        assert not (await environment.verify()).completed
        await environment._toolset.call(call("store", word="elm"))
        assert (await environment.verify()).completed
        with pytest.raises(RunFailed, match="cannot be branched"):
            await environment.snapshot()
        await environment.close()

    asyncio.run(run())
