"""Every word of ours that an orchestrating policy reads: instructions, nudges, and what is said of faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from firstchair.chat.messages import Message, text_message
from firstchair.engines.base import ErrorKind
from firstchair.rollout.orchestration.final_answer import MARKER
from firstchair.rollout.orchestration.task import OrchestrationTask

SYSTEM = f"""\
You lead other models and tools to the answer of one problem. Take one step at a time: say briefly what you need \
next, then call a tool, or several at once when they do not depend on each other.
- Each model that you can call is a function. It sees nothing but what you write to it, so write everything it needs.
- Descriptions say what a model is good at and what it costs. Ask the cheapest that can be trusted with it, and a \
second one where the first seems unsure.
- Compare what comes back before you rely on it. If a call fails, change the question or ask another.
- When you know the answer, stop calling. End with one line, and nothing after it:
{MARKER} <the answer alone>
For a multiple-choice question the answer is the letter; for a programming task it is the whole program."""

NO_DELEGATION = "You have not asked any model yet. Ask at least one about this problem before you answer."
ASK_FOR_ANSWER = (
    f"You have made many calls. Answer now, unless one more is indispensable: {MARKER} <the answer alone>"
)

BUDGET_SPENT = (
    f"The budget is spent, no model can be asked any more. Answer now with what you have: {MARKER} <the answer alone>"
)
NOT_PAID = "Not made: the budget is spent."


def opening(task: OrchestrationTask, system: str = SYSTEM) -> tuple[Message, ...]:
    """The messages that a rollout of ``task`` begins with."""
    return (text_message("system", system), text_message("user", f"Problem: {task.problem}"))


_WISHES: Mapping[str, str] = MappingProxyType(
    {"accuracy": "It must be right.", "cost": "Keep it cheap.", "latency": "Be quick."}
)
"""What the heaviest weight of a preference says."""


def wish(preference: Mapping[str, float]) -> str:
    """A preference (not empty) in words, for behind a problem."""
    first = max(preference, key=lambda name: preference[name])
    weights = ", ".join(f"{name} {weight:g}" for name, weight in preference.items())
    return f"{_WISHES.get(first, f'Use {first} where you can.')} What counts, by weight: {weights}."


def empty_call(label: str, field: str) -> str:
    """To a policy whose call of ``label`` had nothing in ``field``. The call itself is no longer shown."""
    return (
        f"Your last call of {label} was empty and was not made. Write the whole question or program into {field!r}."
    )


def unknown_tool(name: str, labels: Iterable[str]) -> str:
    """In answer to a call of a tool that is not on offer."""
    return f"Not run: there is no tool {name!r}. The tools are: {', '.join(labels)}."


UNREADABLE = "Not run: the arguments are not a JSON object. Send the call again."
WITH_ANOTHER = "Not run: another call of the same message could not be run. Send the call again."

TOOL_FAILED = "tool_failed"
"""Kind of error: the machinery of a tool broke."""
TOOL_ERROR = "tool_error"
"""Kind of error: a tool says that it could not do what it was asked."""

_REASONS: Mapping[str, str] = MappingProxyType(
    {
        ErrorKind.CONTEXT_OVERFLOW: "the question is too long for it. Send a shorter one, or ask another.",
        ErrorKind.RATE_LIMITED: "it has too many requests just now. Ask another, or try again later.",
        ErrorKind.TIMEOUT: "it took too long. Ask another, or ask a simpler question.",
        ErrorKind.BAD_RESPONSE: "its answer could not be read. Ask again, or ask another.",
        ErrorKind.BAD_REQUEST: "it refused the question. Put it in other words, or ask another.",
    }
)
_DOWN = "it cannot be reached just now. Use another."


def fault(label: str, kind: str) -> str:
    """In place of an answer that failed. Names nothing but ``label``: a server's own words may tell who it is."""
    return f"No answer from {label}: {_REASONS.get(kind, _DOWN)}"


def no_words(label: str) -> str:
    """In place of an answer that is empty."""
    return f"{label} answered nothing. Ask it again with more detail, or use another."


def cut_to(text: str, max_chars: int) -> str:
    """``text``, its end replaced by how much is left out when it has more than ``max_chars`` characters. Half a
    surrogate pair, which some servers send and JSON cannot hold, becomes ``?``.
    """
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= max_chars else f"{text[:max_chars]}\n[{len(text) - max_chars:,} more characters cut]"
