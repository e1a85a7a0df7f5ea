import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from firstchair.chat.messages import Message, Tool, ToolCall
from firstchair.core.errors import ConfigError, UpstreamError
from firstchair.tools.base import Failure, RealTool, ToolFailed, object_schema
from firstchair.tools.calculator import Calculator
from firstchair.tools.think import Think
from firstchair.tools.toolbox import ToolBox, shown
from firstchair.tools.toolset import Toolset


class Odd:
    """A tool that does as it is told."""

    timeout_s: float | None = 0.05

    def __init__(self) -> None:
        self.closed = False
        self.tool = Tool(
            name="odd",
            parameters=object_schema(
                {"do": {"type": "string"}, "times": {"type": "integer", "minimum": 1}}, required=("do",)
            ),
        )

    async def run(self, arguments: Mapping[str, Any]) -> str:
        match arguments["do"]:
            case "fail":
                raise ToolFailed(Failure.NOT_FOUND, "nothing here")
            case "break":
                raise UpstreamError("the server is down", retryable=True)
            case "hang":
                await asyncio.Event().wait()
            case "own timeout":
                raise TimeoutError("of a socket inside")
        return "x" * int(arguments.get("times", 1))

    async def close(self) -> None:
        self.closed = True


def ask(name: str, arguments: str, **options: Any) -> Message:
    return asyncio.run(ToolBox([Calculator(), Think(), Odd()], **options).call(ToolCall("c1", name, arguments)))


def test_a_result_answers_its_call():
    found = ask("calculator", '{"expression": "6 * 7"}')
    assert (found.role, found.tool_call_id, found.name, found.text, found.is_error) == (
        "tool",
        "c1",
        "calculator",
        "42",
        False,
    )


def test_thinking_gives_a_word():
    assert ask("think", '{"thought": "hm"}').text == "Noted."


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("calculater", "{}", "unknown_tool: there is no tool 'calculater'; did you mean calculator?"),
        ("web", "{}", "unknown_tool: there is no tool 'web'; there are calculator, think, odd"),
        (
            "odd",
            "{",
            "invalid_arguments: the arguments are not a JSON object; odd takes {do: string, times?: integer}",
        ),
        (
            "odd",
            '{"do": "x", "times": 0}',
            "invalid_arguments: $.times: 0 is less than the minimum of 1; odd takes {do: string, times?: integer}",
        ),
        (
            "odd",
            '{"do": "x", "speed": 1}',
            "invalid_arguments: $: Additional properties are not allowed ('speed' was unexpected); "
            "odd takes {do: string, times?: integer}",
        ),
        ("odd", '{"do": "fail"}', "not_found: nothing here"),
        ("odd", '{"do": "hang"}', "timeout: odd was stopped after 0.05 s; ask for less at once"),
    ],
)
def test_what_the_model_got_wrong_is_for_it_to_read(name: str, arguments: str, text: str):
    found = ask(name, arguments)
    assert found.is_error
    assert found.text == text


def test_broken_machinery_is_raised():
    with pytest.raises(UpstreamError, match="the server is down"):
        ask("odd", '{"do": "break"}')


def test_a_timeout_inside_a_tool_is_not_taken_for_its_time_limit():
    with pytest.raises(TimeoutError, match="of a socket inside"):
        ask("odd", '{"do": "own timeout"}')


def test_a_long_result_is_cut_with_a_note_within_the_limit():
    found = ask("odd", '{"do": "x", "times": 5000}', observation_chars=100)
    assert len(found.text) == 100
    assert found.text.endswith("xxx\n[cut: the result has 5,000 characters]")
    assert ask("odd", '{"do": "x", "times": 100}', observation_chars=100).text == "x" * 100


def test_a_file_name_that_is_no_unicode_does_not_break_a_message():
    assert shown("a\udcffb", 10) == "a?b"


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="'think': stands twice"):
        ToolBox([Think(), Think()])


def test_closing_reaches_every_tool():
    odd = Odd()

    async def used() -> None:
        async with ToolBox([Think(), odd]):
            pass

    asyncio.run(used())
    assert odd.closed


def test_the_protocols_hold():
    assert isinstance(ToolBox([]), Toolset)
    assert all(isinstance(one, RealTool) for one in (Odd(), Think(), Calculator()))
