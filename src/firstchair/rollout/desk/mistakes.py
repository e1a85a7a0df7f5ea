"""Ways to break the routing policy, by dimension: what a mistaken teacher does instead of the right action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType

from firstchair.rollout.desk.plans import Reply, Step
from firstchair.rollout.desk.routing import Decision, Turn, assume, decide

Detour = Callable[[Mapping[str, str]], tuple[str, dict[str, str]]]

MISROUTES: Mapping[str, Detour] = MappingProxyType(
    {
        "Glob": lambda a: ("Bash", {"command": f"find . -name {a['pattern'].rpartition('/')[2]}"}),
        "Read": lambda a: ("Bash", {"command": f"cat {a['path']}"}),
        "Grep": lambda a: ("Bash", {"command": f"grep -r {a['pattern']} {a['path']}"}),
        "Write": lambda a: ("Bash", {"command": f"echo {a['content']}"}),
        "Edit": lambda a: ("Write", {"path": a["path"], "content": a["new"]}),
        "Bash": lambda a: ("Read", {"path": a["command"].split(" ")[-1]}),
        "ShareFile": lambda a: ("Read", {"path": a["path"]}),
        "WebFetch": lambda a: ("web_search", {"query": a["url"]}),
        "web_search": lambda a: ("Agent", {"task": a["query"]}),
        "Agent": lambda a: ("web_search", {"query": a["task"]}),
        "ImageGenerator": lambda a: ("VideoGenerator", {"prompt": a["prompt"]}),
        "VideoGenerator": lambda a: ("ImageGenerator", {"prompt": a["prompt"]}),
        "SetReminder": lambda a: ("MemoryRewrite", {"content": a["text"]}),
        "MemoryRewrite": lambda a: ("Write", {"path": "memory.txt", "content": a["content"]}),
        "phone_call": lambda a: ("skill", {"name": "voice-calling"}),
        "tool_result_load": lambda a: ("Read", {"path": a["result_id"]}),
        "AskUser": lambda a: ("Grep", {"pattern": "missing", "path": "notes"}),
    }
)
"""Right tool → a plausible wrong one with its arguments."""

SKILL_DETOURS: Mapping[str, Detour] = MappingProxyType(
    {
        "pdf-reading": lambda a: ("Read", {"path": a["input"]}),
        "docx": lambda a: ("Write", {"path": "out/draft.txt", "content": a["input"]}),
        "spreadsheet": lambda a: ("Bash", {"command": f"cat {a['input']}"}),
        "web-search": lambda a: ("web_search", {"query": a["input"]}),
        "voice-calling": lambda a: (
            "phone_call",
            {"number": a["input"].partition(": ")[0], "message": a["input"].partition(": ")[2]},
        ),
        "video-from-video": lambda a: ("VideoGenerator", {"prompt": a["input"]}),
        "reminders": lambda a: (
            "SetReminder",
            {"text": a["input"].partition(" at ")[0], "time": a["input"].rpartition(" at ")[2]},
        ),
        "platform-help": lambda a: ("web_search", {"query": a.get("input", "platform help")}),
    }
)
"""Skill that should be used → the direct tool that is called instead, from the arguments of its script."""

OPEN_QUESTIONS = ("Are you sure?", "Could you tell me more?", "Shall I go on?", "What exactly do you mean?")


def mistaken(turn: Turn, right: Decision, rng: Random) -> Decision:
    """A decision that breaks the policy in place of ``right``. Every dimension that fits is equally likely."""
    options = _instead_of_reply(turn, right.wanted, rng) if isinstance(right.wanted, Reply) else None
    if options is None:
        assert isinstance(right.wanted, Step)
        options = _instead_of_call(turn, right.wanted, rng)
    return replace(right, wanted=options[int(rng.random() * len(options))])


def _ask(rng: Random) -> Step:
    return Step("AskUser", {"question": OPEN_QUESTIONS[int(rng.random() * len(OPEN_QUESTIONS))]}, "missing_detail")


def _instead_of_reply(turn: Turn, right: Reply, rng: Random) -> list[Step | Reply]:
    """Failed stop, needless question, needless share, untruthful final."""
    options: list[Step | Reply] = []
    if not any(done.tool == "AskUser" for done in turn.done):
        options.append(_ask(rng))
    if turn.done:
        last = turn.done[-1]
        if last.tool != "AskUser":
            options.append(
                Step(last.tool, {key: str(value) for key, value in (last.arguments or {}).items()}, right.row)
            )
    else:
        options.append(Step("skill", {"name": "platform-help"}, right.row))
    shareable = [fact for fact in right.facts if "/" in fact and not fact.startswith("http")]
    if shareable and not any(done.tool == "ShareFile" for done in turn.done):
        options.append(Step("ShareFile", {"path": shareable[0]}, "deliver"))
    if right.denies:
        options.append(Reply("All done, it worked.", right.row))
    elif right.facts:
        options.append(Reply("Everything is as you expected.", right.row))
    return options or [_ask(rng)]


def _instead_of_call(turn: Turn, right: Step, rng: Random) -> list[Step | Reply]:
    """Premature stop, needless question, missing share or memory, misroute, wrong arguments."""
    if right.row == "deliver":
        return [Reply("Done.", right.row)]
    if right.tool == "MemoryRewrite":
        return [decide(assume(turn, right, "memory updated")).wanted, _detour(turn, right)]
    if right.tool == "AskUser":
        guess = decide(assume(turn, right, "whatever suits you")).wanted
        return [guess, _detour(turn, right), Reply(right.arguments["question"], right.row)]
    options: list[Step | Reply] = [_detour(turn, right), Reply("I will take care of it.", right.row)]
    if not turn.done:
        options.append(_ask(rng))
    wrong = _wrong_arguments(right, rng)
    if wrong is not None:
        options.append(wrong)
    return options


def _detour(turn: Turn, right: Step) -> Step:
    if right.tool == "skill":
        script = decide(assume(turn, right, "ready")).wanted
        arguments = script.arguments if isinstance(script, Step) else {}
        tool, instead = SKILL_DETOURS[right.arguments["name"]](arguments)
    elif right.tool == "skill_script":
        tool, instead = SKILL_DETOURS[right.arguments["skill"]](right.arguments)
    elif right.tool in MISROUTES:
        tool, instead = MISROUTES[right.tool](right.arguments)
    else:
        tool, instead = "web_search", {"query": next(iter(right.arguments.values()))}
    return Step(tool, instead, right.row)


def _wrong_arguments(right: Step, rng: Random) -> Step | None:
    """One field spoilt: a word dropped, a folder forgotten, a digit changed."""
    fields = [field for field, value in right.arguments.items() if _spoilt(value) != value]
    if not fields:
        return None
    field = fields[int(rng.random() * len(fields))]
    return Step(right.tool, {**right.arguments, field: _spoilt(right.arguments[field])}, right.row)


def _spoilt(value: str) -> str:
    if " " in value:
        return value.rpartition(" ")[0]
    if "/" in value and not value.startswith(("http", "**")):
        return value.rpartition("/")[2]
    if value[-1:].isdecimal():
        return value[:-1] + str((int(value[-1]) + 1) % 10)
    return value
