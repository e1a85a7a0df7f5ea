"""Verifiers: what code decides about an episode, or about one reply at a decision point. Pure functions, no model.

Each gives 0 to 1, or ``NoValue`` where it has nothing to decide on: an episode that broke, a reply that never came,
an argument that only a judge or a person can compare. What cannot be read is never taken for "no call".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from firstchair.catalog.verdict import Verdict, score
from firstchair.chat.actions import Action, ParsedReply, Problem
from firstchair.chat.schema_check import check_arguments
from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import JsonProblem, loads
from firstchair.core.yamltext import read_yaml
from firstchair.engines.base import Stop
from firstchair.rewards.samples import DecisionReply, NoValue, Sample, Value
from firstchair.rollout.environment import Outcome

CheckName = Literal[
    "completed",
    "no_violations",
    "checks",
    "score",
    "schema_valid",
    "right_tool",
    "arguments",
    "termination",
    "efficiency",
    "structured",
]


def completed(sample: Sample) -> Value:
    """1 when the environment says that the task was completed; ``NoValue`` where it cannot tell."""
    outcome = _outcome(sample)
    if isinstance(outcome, NoValue):
        return outcome
    if outcome.undecided and not outcome.completed and all(check.ok for check in outcome.checks):
        return NoValue("undecided", ", ".join(outcome.undecided))
    return float(outcome.completed)


def no_violations(sample: Sample) -> Value:
    """1 when no policy row was broken on the way."""
    outcome = _outcome(sample)
    return outcome if isinstance(outcome, NoValue) else float(not outcome.violations)


def checks(sample: Sample) -> Value:
    """The share of the task's checks that hold."""
    outcome = _outcome(sample)
    if isinstance(outcome, NoValue):
        return outcome
    if not outcome.checks:
        return NoValue("no_checks", "the task has no checks")
    return sum(check.ok for check in outcome.checks) / len(outcome.checks)


def own_score(sample: Sample) -> Value:
    """The figure that an environment which grades gives the episode itself (``Outcome.score``)."""
    outcome = _outcome(sample)
    if isinstance(outcome, NoValue):
        return outcome
    return NoValue("no_score", "the environment gives no score") if outcome.score is None else outcome.score


def _outcome(sample: Sample) -> Outcome | NoValue:
    if sample.episode is None:
        return NoValue("no_episode", "the sample is no episode")
    if sample.episode.outcome is None:
        return NoValue("episode_failed", sample.episode.error or "")
    return sample.episode.outcome


def schema_valid(sample: Sample) -> Value:
    """1 when every call can be read, is of a tool on offer, and has arguments of its schema. A reply without calls
    has nothing to break, and is valid unless it is blank.
    """
    made = _made(sample)
    if isinstance(made, NoValue):
        return made
    reply = _reply(made)
    if unreadable(made):
        return 0.0
    if not reply.calls:
        return float(bool(reply.text.strip()))
    tools = {tool.name: tool for tool in made.tools}
    for call in reply.calls:
        tool, value = tools.get(call.name), call.parsed()
        if tool is None or value is None or check_arguments(tool.parameters, value) is not None:
            return 0.0
    return 1.0


def right_tool(sample: Sample) -> Value:
    """1 when the reply calls the tools of the gold action or of an accepted one, or stops where that stops."""
    made = _made(sample)
    if isinstance(made, NoValue):
        return made
    if unreadable(made) or _blank(made):
        return 0.0
    names = Counter(made.matchers.tool_name(call.name) for call in _reply(made).calls)
    return float(any(names == Counter(call.name for call in action.calls) for action in _right_actions(made)))


def arguments(sample: Sample) -> Value:
    """1 when the whole action means what the gold one or an accepted one means, by the rules of the replay eval's
    lenient level. ``NoValue`` where those leave it to a judge.
    """
    made = _made(sample)
    if isinstance(made, NoValue):
        return made
    if unreadable(made) or _blank(made):
        return 0.0
    found = score(made.decision, made.reply, made.matchers, made.tools)
    if found.undecided:
        return NoValue("undecided", found.field or found.rule)
    return float(found.lenient is Verdict.PASS)


def termination(sample: Sample) -> Value:
    """1 when the reply ends by itself, leaves nothing open, repeats no call, has no text behind its calls, and stops
    exactly where the gold action or an accepted one does.
    """
    made = _made(sample)
    if isinstance(made, NoValue):
        return made
    untidy = any(problem.kind in ("text_after_call", "duplicate_call") for problem in _problems(made))
    if made.stop is not Stop.END or unreadable(made) or untidy or _blank(made):
        return 0.0
    stops = not _reply(made).calls
    return float(any(stops == (not action.calls) for action in _right_actions(made)))


def efficiency(sample: Sample) -> Value:
    """Calls that were wanted over calls that were made, at most 1; 0 without the calls that were wanted."""
    made = _made(sample)
    if isinstance(made, NoValue):
        return made
    if unreadable(made) or _blank(made):
        return 0.0
    count = len(_reply(made).calls)
    return max(_share(len(action.calls), count) for action in _right_actions(made))


def _share(wanted: int, made: int) -> float:
    if not wanted or not made:
        return float(wanted == made)
    return min(1.0, wanted / made)


UNREADABLE = frozenset({"malformed_json", "unclosed_call", "unclosed_thinking", "truncated"})
"""Problems with which a reply is neither a call nor a stop. A call against its schema can be read, and is wrong."""


def unreadable(made: DecisionReply) -> bool:
    """Whether the reply cannot be read as an action."""
    return (
        made.stop is Stop.LENGTH
        or any(problem.kind in UNREADABLE for problem in _problems(made))
        or any(call.parsed() is None for call in _reply(made).calls)
    )


def _made(sample: Sample) -> DecisionReply | NoValue:
    if sample.decision is None:
        return NoValue("no_decision", "the sample is not one reply at a decision point")
    if sample.decision.reply is None:
        return NoValue("no_action", "no action was obtained")
    return sample.decision


def _reply(made: DecisionReply) -> ParsedReply | Action:
    assert made.reply is not None
    return made.reply


def _problems(made: DecisionReply) -> tuple[Problem, ...]:
    return made.reply.problems if isinstance(made.reply, ParsedReply) else ()


def _blank(made: DecisionReply) -> bool:
    reply = _reply(made)
    return not reply.calls and not reply.text.strip()


def _right_actions(made: DecisionReply) -> list[Action]:
    decision = made.decision
    others = [option.action for option in decision.accept if option.action is not None]
    return [decision.gold or decision.observed, *others]


_FENCE = re.compile(r"```[A-Za-z]*[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL)


def structured(sample: Sample, schema: Mapping[str, Any], form: Literal["json", "yaml"]) -> Value:
    """1 when the final text is a value of ``schema``: the whole of it, or its last fenced block."""
    fences = _FENCE.findall(sample.final_text)
    text = fences[-1] if fences else sample.final_text
    try:
        value = loads(text) if form == "json" else read_yaml(text, "reply")
    except (JsonProblem, ConfigError):
        return 0.0
    if value is None and form == "yaml":
        return 0.0
    return float(check_arguments(schema, value) is None)


VERIFIERS: Mapping[str, Callable[[Sample], Value]] = MappingProxyType(
    {
        "completed": completed,
        "no_violations": no_violations,
        "checks": checks,
        "score": own_score,
        "schema_valid": schema_valid,
        "right_tool": right_tool,
        "arguments": arguments,
        "termination": termination,
        "efficiency": efficiency,
    }
)
"""Every check but ``structured``, which has a schema of its own."""
