"""The model's programs and command lines, in a real sandbox and through the box that checks calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firstchair.chat.messages import Message, ToolCall
from firstchair.core.errors import RunFailed
from firstchair.sandbox.base import SandboxEnd, SandboxLimits, SandboxResult
from firstchair.sandbox.process import ProcessSandbox
from firstchair.tools.code import (
    STDERR_CHARS,
    CodeInterpreter,
    CodeInterpreterSpec,
    ShellExec,
    ShellExecSpec,
    observation,
)
from firstchair.tools.toolbox import ToolBox
from firstchair.tools.toolset import Toolset

LIMITS = SandboxLimits(wall_s=20, memory_mb=200, output_bytes=2000)
Call = Callable[..., Message]


@pytest.fixture(scope="module")
def sandbox() -> ProcessSandbox:
    return ProcessSandbox()


def box(sandbox: ProcessSandbox, work: Path, limits: SandboxLimits) -> ToolBox:
    interpreter = CodeInterpreter(CodeInterpreterSpec(limits=limits), sandbox, work)
    return ToolBox([interpreter, ShellExec(ShellExecSpec(limits=limits), sandbox, work)])


@pytest.fixture
def call(sandbox: ProcessSandbox, tmp_path: Path) -> Iterator[Call]:
    def call(name: str, limits: SandboxLimits = LIMITS, **arguments: object) -> Message:
        tools = box(sandbox, tmp_path / "work", limits)
        return asyncio.run(tools.call(ToolCall.of("c1", name, dict(arguments))))

    return call


def test_both_are_offered_by_one_toolset(sandbox: ProcessSandbox, tmp_path: Path):
    tools = box(sandbox, tmp_path, SandboxLimits(wall_s=2.5))
    assert isinstance(tools, Toolset)
    assert [(tool.name, list(tool.parameters["properties"])) for tool in tools.tools] == [
        ("code_interpreter", ["code"]),
        ("shell_exec", ["command"]),
    ]
    assert all("at most 2.5 s" in (tool.description or "") for tool in tools.tools)


def test_a_program_gives_what_it_prints_and_its_files_live_on(call: Call):
    first = call("code_interpreter", code="import os\nopen('n.txt', 'w').write('7')\nprint('wrote', os.listdir())")
    assert (first.text, first.is_error) == ("wrote ['n.txt']", False)
    assert call("shell_exec", command="cat n.txt && echo 'def seven(): return 7' > mine.py").text == "7"
    assert call("code_interpreter", code="import mine\nprint(mine.seven())").text == "7"
    assert call("code_interpreter", code="x = 1").text == "(nothing was printed)"


def test_an_exception_comes_with_its_traceback_before_the_output(call: Call):
    failed = call("code_interpreter", code="print('before')\nvalue = {}\nvalue['key']")
    assert failed.is_error
    lines = failed.text.splitlines()
    assert lines[0] == "failed: exit code 1"
    assert "    value['key']" in lines
    assert lines[-3:] == ["KeyError: 'key'", "stdout:", "before"]
    assert "SyntaxError" in call("code_interpreter", code="print(").text
    assert "EOFError" in call("code_interpreter", code="input()").text


def test_a_command_line_is_of_bash_and_may_fail(call: Call):
    assert call("shell_exec", command="[[ abc == a* ]] && echo ${BASH_VERSION%%.*} > v && echo yes").text == "yes"
    failed = call("shell_exec", command="echo out; ls no-such-file; exit 5")
    assert failed.is_error
    assert failed.text.startswith("failed: exit code 5\nstderr:\nls: ")
    assert failed.text.endswith("stdout:\nout")


def test_what_was_stopped_says_by_which_limit_and_what_to_do(call: Call):
    slow = call("shell_exec", SandboxLimits(wall_s=0.3, cpu_s=9), command="sleep 60")
    assert slow.is_error
    assert slow.text == ("timeout: stopped after 0.3 s of wall-clock or 9 s of processor time; do less at once")
    big = call("code_interpreter", code="bytearray(1 << 30)")
    assert big.text.splitlines()[0] == "failed: exit code 1"
    assert big.text.splitlines()[-1] == "MemoryError"
    loud = call("code_interpreter", code="print('x' * 5000)")
    assert not loud.is_error
    assert loud.text.startswith("[cut: more than 2,000 bytes were printed; print less, or write to a file]\nxxx")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (SandboxEnd.MEMORY, "held more than 200 MB; work in smaller pieces"),
        (SandboxEnd.DISK, "added more than 64 MB to the work directory; write less"),
    ],
)
def test_every_limit_has_words(end: SandboxEnd, words: str):
    assert words in observation(SandboxResult(end, None, "", "", False, 1.0), LIMITS)


def test_the_end_of_a_long_standard_error_is_what_is_shown():
    result = SandboxResult(SandboxEnd.EXITED, 1, "out", "warning\n" * 9000 + "KeyError: 1\n", False, 1.0)
    text = observation(result, LIMITS)
    assert text.startswith("exit code 1\nstderr:\n[…]")
    assert text.endswith("KeyError: 1\nstdout:\nout")
    assert len(text) < STDERR_CHARS + 100


def test_a_command_line_with_a_nul_is_answered(call: Call):
    refused = call("shell_exec", command="echo \0")
    assert (refused.is_error, refused.text.split(":")[0]) == (True, "invalid_arguments")


def test_a_link_left_by_a_call_leads_the_next_one_nowhere(call: Call, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("keep")
    call("shell_exec", command=f"ln -sf {secret} code.py; ln -sf {secret} /tmp/code.py")
    assert call("code_interpreter", code="print(1)").text == "1"
    assert secret.read_text() == "keep"


def test_a_sandbox_that_fails_is_raised_and_no_answer(tmp_path: Path):
    class Broken(ProcessSandbox):
        async def run(self, *arguments: object, **named: object) -> SandboxResult:
            raise RunFailed("no namespaces")

    tool = CodeInterpreter(CodeInterpreterSpec(), Broken(), tmp_path)
    with pytest.raises(RunFailed):
        asyncio.run(ToolBox([tool]).call(ToolCall.of("c1", "code_interpreter", {"code": "1"})))
