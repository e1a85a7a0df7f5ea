"""Answers that are programs: their tests run in a sandbox, one process a test."""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
from pathlib import Path

from pydantic import Field

from firstchair.core.config import Strict
from firstchair.core.errors import GradingError
from firstchair.core.jsontext import dumps
from firstchair.core.scratch import scratch_dir
from firstchair.rewards.answers.base import Grade
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.sandbox.base import Sandbox, SandboxEnd, SandboxLimits, SandboxResult

RUNNER = Path(__file__).with_name("code_runner.py")

_FENCE = re.compile(
    r"^[ \t]*(```+|~~~+)[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_PYTHON = frozenset({"python", "py", "python3"})


class CodeTests(Strict):
    """How tests of code run."""

    cpu_s: float = Field(default=10.0, gt=0)
    """Computing time of one test."""
    wall_s: float = Field(default=30.0, gt=0)
    """Time of one test by the clock; longer, since a busy machine is not the answer's fault."""
    memory_mb: int = Field(default=512, ge=64)
    concurrency: int = Field(default=2, ge=1)
    """Tests that run at once; more than there are cores would time each other out."""
    python: str = Field(default=sys.executable, min_length=1)
    """The interpreter, as the sandbox finds it."""


def code_in(answer: str) -> str:
    """The program in ``answer``: its last fenced block marked as Python, else its last block, else all of it."""
    blocks = [(match[2].lower(), match[3]) for match in _FENCE.finditer(answer)]
    marked = [code for language, code in blocks if language in _PYTHON]
    return (marked or [code for _, code in blocks] or [answer])[-1]


class CodeGrader:
    """Runs ``task.tests`` with the answer's code before each; all must pass."""

    def __init__(self, sandbox: Sandbox, tests: CodeTests):
        self._sandbox, self._tests = sandbox, tests
        self._slots = asyncio.Semaphore(tests.concurrency)
        self._runner = RUNNER.read_text(encoding="utf-8")

    async def grade(self, task: OrchestrationTask, answer: str) -> Grade:
        """Whether every test passes; the first that fails ends it.

        Raises ``RunFailed`` when the sandbox fails, ``GradingError`` when the interpreter never comes to the answer.
        """
        code = code_in(answer)
        for number, test in enumerate(task.tests, start=1):
            problem = await self._run(code, test)
            if problem:
                return Grade(False, "code", f"test {number} of {len(task.tests)}: {problem}")
        return Grade(True, "code", f"{len(task.tests)} tests")

    async def _run(self, code: str, test: str) -> str:
        """Why ``test`` did not pass; empty when it did."""
        begun, passed = secrets.token_hex(8), secrets.token_hex(16)
        limits = SandboxLimits(
            wall_s=self._tests.wall_s, cpu_s=self._tests.cpu_s, memory_mb=self._tests.memory_mb, network=False
        )
        job = dumps({"code": code, "test": test, "begun": begun, "passed": passed})
        async with self._slots:
            with scratch_dir("firstchair-test-") as work_dir:
                result = await self._sandbox.run(
                    (self._tests.python, "-I", "-c", self._runner),
                    work_dir=work_dir,
                    stdin=job.encode("utf-8", "surrogatepass"),
                    limits=limits,
                )
        if not result.stdout.startswith(begun):  # whatever happened, it was not the answer's doing
            raise GradingError(f"{self._tests.python} ran no test in the sandbox: {_problem(result)}")
        return "" if result.end is SandboxEnd.EXITED and result.stdout == begun + passed else _problem(result)


def _problem(result: SandboxResult) -> str:
    if result.end is not SandboxEnd.EXITED:
        return str(result.end)
    said = result.stderr.strip().splitlines()
    return said[-1][:200] if said else f"ended with code {result.exit_code} before the test did"
