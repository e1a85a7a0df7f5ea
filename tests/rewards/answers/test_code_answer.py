import asyncio
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from firstchair.core.errors import GradingError, RunFailed
from firstchair.rewards.answers.code_answer import CodeGrader, CodeTests, code_in
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.sandbox.base import Sandbox, SandboxEnd, SandboxLimits, SandboxResult
from firstchair.sandbox.spec import ProcessSpec, open_sandbox

ADD = "def add(a, b):\n    return a + b\n"


class BareSandbox:
    """The contract without the walls: a plain process. For code of ours alone."""

    async def run(self, command, *, work_dir: Path, stdin: bytes = b"", limits: SandboxLimits | None = None):
        limits = limits or SandboxLimits()
        started = time.perf_counter()

        def work() -> SandboxResult:
            end, code, out, err = SandboxEnd.EXITED, None, b"", b""
            try:
                done = subprocess.run(
                    command, cwd=work_dir, input=stdin, capture_output=True, timeout=limits.wall_s, check=False
                )
                code, out, err = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired:
                end = SandboxEnd.TIMEOUT
            cap = limits.output_bytes
            return SandboxResult(
                end=end,
                exit_code=code,
                stdout=out[:cap].decode(errors="replace"),
                stderr=err[:cap].decode(errors="replace"),
                output_cut=max(len(out), len(err)) > cap,
                seconds=time.perf_counter() - started,
            )

        return await asyncio.to_thread(work)


def grade(answer: str, *tests: str, sandbox: Sandbox | None = None, **options):
    task = OrchestrationTask(task_id="t", problem="Add.", domain="code", tests=tests)
    return asyncio.run(CodeGrader(sandbox or BareSandbox(), CodeTests(**options)).grade(task, answer))


def test_all_tests_must_pass():
    assert grade(ADD, "assert add(1, 2) == 3", "assert add(0, 0) == 0").correct is True
    found = grade(ADD, "assert add(1, 2) == 3", "assert add(1, 2) == 4, 'sum'", "assert False")
    assert (found.correct, found.how, found.detail) == (False, "code", "test 2 of 3: AssertionError: sum")


@pytest.mark.parametrize(
    "answer",
    [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "raise SystemExit",
        "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0",
        "print('x' * 100000)\ndef add(a, b): return 0",
        "def add(a, b): raise SystemExit(1)",
        "def add(a, b)",
        "",
    ],
)
def test_an_answer_that_leaves_before_the_test_or_fails_it_has_not_passed(answer):
    found = grade(answer, "assert add(1, 2) == 3")
    assert found.correct is False
    assert found.detail


FORGERIES = {
    "exits in the test": "def add(a, b): raise SystemExit(0)",
    "exits in the test from code of that name": "exec(compile('def add(a, b): raise SystemExit', 'test.py', 'exec'))",
    "looks into the frames below it": """
import os, sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            for word in value.values() if isinstance(value, dict) else [value]:
                if isinstance(word, str | bytes) and len(word) == 32:
                    for descriptor in range(3, 12):
                        try:
                            os.write(descriptor, word if isinstance(word, bytes) else word.encode())
                        except OSError:
                            pass
        frame = frame.f_back
    os._exit(0)
""",
    "looks at all objects": "import gc\ndef add(a, b): return 3 if gc.get_objects() else 0",
    "moves the frame below on": "import sys\nsys.settrace(lambda *_: None)\ndef add(a, b): return 3",
    "says that it has passed": "import sys\ndef add(a, b): sys.audit('firstchair.passed')",
    "says so whenever anything happens": "import sys\nsys.addaudithook(lambda *_: sys.audit('firstchair.passed'))",
    "patches what runs the test": "import builtins as b, os\nos._exit = b.exec = b.compile = lambda *_: None",
}


@pytest.mark.parametrize("answer", FORGERIES.values(), ids=FORGERIES)
def test_an_answer_cannot_say_itself_that_it_passed(answer):
    assert grade(answer, "assert add(1, 2) == 3").correct is False


@pytest.mark.parametrize(
    "answer",
    [
        "import unittest\nunittest.TestCase.assertEqual = lambda *_: None",
        "import sys, types\nsys.modules['unittest'] = types.SimpleNamespace(TestCase=object, main=lambda **_: None)",
        "import unittest\ndef add(a, b):\n    del globals()['T'].test\n    unittest.main(argv=['t'])",
    ],
)
def test_an_answer_cannot_bring_its_own_unittest(answer):
    test = (
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(add(1, 2), 3)\n"
        "unittest.main(argv=['t'])"
    )
    assert grade(answer + "\nif 'add' not in globals():\n    def add(a, b): return 0", test).correct is False


def test_a_test_that_exits_by_itself_is_told_how_to_end():
    found = grade(ADD, "assert add(1, 2) == 3\nimport sys\nsys.exit(0)")
    assert (found.correct, found.detail.partition("; ")[2]) == (
        False,
        "a test ends by itself or with unittest.main()",
    )


def test_what_an_answer_prints_and_closes_does_not_count_against_it():
    noisy = "import sys\nprint('x' * 100_000)\nsys.stdout.close()\n" + ADD
    assert grade(noisy, "assert add(1, 2) == 3").correct is True


def test_a_thread_that_an_answer_leaves_behind_holds_up_no_verdict():
    lingering = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n" + ADD
    assert grade(lingering, "assert add(1, 2) == 3", wall_s=30).correct is True


def test_a_test_may_end_as_unittest_does():
    test = (
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(add(1, 2), {})\n"
        "unittest.main(argv=['t'])"
    )
    assert grade(ADD, test.format(3)).correct is True
    assert grade(ADD, test.format(4)).correct is False


def test_an_answer_is_a_module_like_any_other():
    answer = (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int' = 1\n"
        "if __name__ == '__main__':\n    ran = True\ndef add(a, b):\n    import pickle\n"
        "    return pickle.loads(pickle.dumps(P(a + b))).x"
    )
    assert grade(answer, "assert add(1, 2) == 3 and ran").correct is True


def test_an_answer_cannot_read_standard_input_where_the_tests_came_from():
    assert grade("import sys\nrest = sys.stdin.read()\n" + ADD, "assert rest == ''").correct is True


def test_the_limits_and_the_interpreter_reach_the_sandbox_and_no_more_run_at_once_than_allowed():
    seen: list[tuple[object, SandboxLimits]] = []
    running = most = 0

    class Watched(BareSandbox):
        async def run(self, command, *, work_dir, stdin=b"", limits=None):
            nonlocal running, most
            running += 1
            most = max(most, running)
            seen.append((command[0], limits))
            assert work_dir.is_dir()
            await asyncio.sleep(0.01)
            running -= 1
            return SandboxResult(SandboxEnd.MEMORY, None, orjson.loads(stdin)["begun"], "", False, 0.0)

    async def run():
        grader = CodeGrader(Watched(), CodeTests(wall_s=3, cpu_s=2, memory_mb=100, concurrency=2, python="py"))
        task = OrchestrationTask(task_id="t", problem="", tests=("pass",))
        return await asyncio.gather(*(grader.grade(task, "x") for _ in range(6)))

    grades = asyncio.run(run())
    assert {one.detail for one in grades} == {"test 1 of 1: memory"}
    assert most == 2
    assert {name for name, _ in seen} == {"py"}
    assert {(one.wall_s, one.cpu_s, one.memory_mb, one.network) for _, one in seen} == {(3, 2, 100, False)}


@pytest.mark.parametrize(
    "result",
    [
        SandboxResult(SandboxEnd.EXITED, 127, "", "python: not found", False, 0.0),
        SandboxResult(SandboxEnd.TIMEOUT, None, "", "", False, 10.0),
        SandboxResult(SandboxEnd.MEMORY, None, "", "", False, 0.1),
    ],
)
def test_an_interpreter_that_never_came_to_the_answer_says_nothing_about_it(result):
    class Nothing:
        async def run(self, command, *, work_dir, stdin=b"", limits=None):
            return result

    with pytest.raises(GradingError, match="ran no test in the sandbox"):
        grade(ADD, "pass", sandbox=Nothing())


def test_a_sandbox_that_cannot_be_set_up_says_nothing_about_the_answer():
    class Broken:
        async def run(self, command, *, work_dir, stdin=b"", limits=None):
            raise RunFailed("no namespace")

    with pytest.raises(RunFailed):
        grade(ADD, "pass", sandbox=Broken())


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("x = 1", "x = 1"),
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```python\nx = 1\n```\n```\nthe output\n```", "x = 1\n"),
        ("```python\nx = 1\n```\nbetter:\n```py\nx = 2\n```", "x = 2\n"),
        ("```\nx = 3\n```", "x = 3\n"),
        ("```python\nx = 4", "x = 4"),
        ("~~~python\ns = '''\n```\n'''\n~~~", "s = '''\n```\n'''\n"),
    ],
)
def test_the_program_is_the_last_python_block(answer, code):
    assert code_in(answer) == code


def test_the_default_interpreter_is_this_one():
    assert CodeTests().python == sys.executable


def test_tests_run_in_the_sandbox_that_ships():
    sandbox = open_sandbox(ProcessSpec())
    assert grade(ADD, "assert add(1, 2) == 3", sandbox=sandbox).correct is True
    walls = "import socket\ntry:\n    open('/etc/firstchair', 'w')\nexcept OSError:\n    add = lambda a, b: a + b"
    assert grade(walls, "assert add(1, 2) == 3", sandbox=sandbox).correct is True
    assert grade(ADD, "assert add(1, 2) == 4", sandbox=sandbox).detail == "test 1 of 1: AssertionError"
    assert grade("while True: pass", "pass", sandbox=sandbox, cpu_s=1, wall_s=60).detail == "test 1 of 1: timeout"
