"""Runs inside the sandbox, as the text of ``python -I -c``: an answer's code, then one test in the same module.

Standard input is a JSON object ``{code, test, begun, passed}``. Standard output gets the word ``begun`` at the start,
and ``passed`` when the test has ended without an exception or as ``unittest.main`` ends. Nothing else gets there:
what the answer and the test print goes nowhere. Stands alone: the sandbox need not have this package.

Both run in one interpreter, so an answer can look for ways to be taken for right. It does not get there by exiting,
before or during the test; by patching builtins or unittest while it is loaded; or by looking for ``passed`` in the
frames and objects around it. Only an audit hook holds that word, which no frame and no container refers to.
"""

import builtins
import json
import os
import sys
import traceback
import types

_PASSED = "firstchair.passed"
_REFUSED = frozenset(
    {
        "gc.get_objects",
        "gc.get_referrers",
        "gc.get_referents",
        "sys.settrace",
        "sys.setprofile",
        "sys._current_frames",
    }
)
"""What could find the word, or change how a frame goes on."""


def main() -> None:
    """Run, and say what came of it. The last line is the one place from which a test is said to have passed."""
    job = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    os.write(out, job["begun"].encode())
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    guard(out, job.pop("passed").encode(), sys._getframe())
    del out
    # Bound before the answer can put its own in their place.
    run, read, say, restore, saved = exec, compile, sys.audit, vars(builtins).update, dict(vars(builtins))
    tests_own, tell, framework = exits_by_itself, explain, own_unittest() if "unittest" in job["test"] else {}
    module = types.ModuleType("__main__")  # what dataclasses, pickle and unittest look up by name
    modules = sys.modules
    modules["__main__"] = module
    try:
        run(read(job["code"], "answer.py", "exec"), module.__dict__)
    except BaseException as error:  # noqa: BLE001 - somebody else's code: whatever it raises, it has not passed
        return tell("answer", error)
    restore(saved)
    modules.update(framework)
    try:
        test = read(job["test"], "test.py", "exec")
        run(test, module.__dict__)
    except BaseException as error:  # noqa: BLE001 - as above
        if not tests_own(error, test, framework):
            return tell("test", error)
    say(_PASSED)


def guard(out: int, passed: bytes, frame: types.FrameType) -> None:
    """From now on write ``passed`` to ``out``, and end this process, when ``frame`` says so on its last line."""
    last = max(line for *_, line in frame.f_code.co_lines() if line)
    write, leave, caller = os.write, os._exit, sys._getframe

    def hook(event: str, _: object) -> None:
        if event in _REFUSED:
            raise RuntimeError(f"{event} is not available while a test runs")
        if event == _PASSED and caller(1) is frame and frame.f_lineno == last:
            write(out, passed)
            leave(0)

    sys.addaudithook(hook)


def own_unittest() -> dict[str, types.ModuleType]:
    """A unittest that the answer does not get to see: its own ``import unittest`` makes another one."""
    import unittest  # noqa: F401

    names = [name for name in sys.modules if name.partition(".")[0] == "unittest"]
    return {name: sys.modules.pop(name) for name in names}


def exits_by_itself(error: BaseException, test: types.CodeType, framework: dict[str, types.ModuleType]) -> bool:
    """Whether ``error`` is how ``unittest.main``, called by the test, says that all went well."""
    if not isinstance(error, SystemExit) or error.code not in (None, 0) or not framework:
        return False
    program = framework["unittest.main"].TestProgram
    end = program.runTests.__code__
    known = [end, program.__init__.__code__, *codes_in(test)]
    frames = []
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    while trace:
        frames.append(trace.tb_frame.f_code)
        trace = trace.tb_next
    return bool(frames) and frames[-1] is end and all(any(code is one for one in known) for code in frames)


def codes_in(code: types.CodeType) -> list[types.CodeType]:
    """``code`` and those of the functions and classes in it."""
    found = [code]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += codes_in(constant)
    return found


def explain(part: str, error: BaseException) -> None:
    """Say on standard error why the test has not passed; the last line counts."""
    if isinstance(error, SystemExit):
        hint = "; a test ends by itself or with unittest.main()" if part == "test" else ""
        sys.stderr.write(f"exit with {error.code} in the {part}{hint}\n")
    else:
        traceback.print_exception(error)
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        main()
    finally:
        os._exit(1)
