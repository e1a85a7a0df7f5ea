"""Whether two renderers give one prompt: the trainer's and a server's, byte for byte and id for id.

Training on prompts that serving never sends is the quietest way to a bad model. This module compares, names the
first difference, and tells a harmless cause that it knows from one that it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from firstchair.chat.messages import Message, Tool
from firstchair.chat.renderer import Renderer


class Match(StrEnum):
    """What a comparison found."""

    EQUAL = "equal"
    RESPACED = "respaced"
    """Equal but for the spacing of call arguments, which the other side parses and writes again."""
    QUOTED = "quoted"
    """Messages hold special-token text: text to us, control tokens to the other side. Differs on purpose."""
    TEXT = "text"
    """The prompts differ."""
    IDS = "ids"
    """Equal text, other token ids."""
    ERROR = "error"
    """The other side gave no prompt."""


HOLDS = frozenset({Match.EQUAL, Match.QUOTED})
"""With these two sides agree: the prompts are equal, or differ on purpose."""


@dataclass(frozen=True)
class Case:
    """One prompt to compare: a conversation up to a decision."""

    name: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True)
class Rendered:
    """A prompt as one side made it."""

    ids: tuple[int, ...]
    text: str | None = None
    """``None`` when that side gives ids alone."""


@dataclass(frozen=True)
class Comparison:
    """One case and what was found."""

    name: str
    match: Match
    tokens: int = 0
    """Of our prompt."""
    position: int | None = None
    """Index of the first token (``ids``) or character (``text``) that differs."""
    ours: str = ""
    """What stands there on our side, cut short."""
    theirs: str = ""
    detail: str = ""


@dataclass(frozen=True)
class ParityReport:
    """All comparisons with one other side."""

    template_hash: str
    comparisons: tuple[Comparison, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Comparisons by what was found."""
        return dict(Counter(str(one.match) for one in self.comparisons))

    @property
    def holds(self) -> bool:
        """Whether every prompt is equal, but for those that differ on purpose."""
        return all(one.match in HOLDS for one in self.comparisons)


def decisions(cases: Sequence[Case]) -> Iterator[Case]:
    """A case for every assistant message of ``cases``, and for the end of those that wait for one."""
    for case in cases:
        for index, message in enumerate(case.messages):
            if message.role == "assistant":
                yield Case(f"{case.name}:{index}", case.messages[:index], case.tools)
        if case.messages and case.messages[-1].role != "assistant":
            yield Case(f"{case.name}:{len(case.messages)}", case.messages, case.tools)


def rendered(renderer: Renderer, case: Case) -> Rendered:
    """Our prompt of ``case``."""
    return Rendered(
        ids=tuple(renderer.prompt_ids(case.messages, case.tools)),
        text=renderer.text(case.messages, case.tools, add_generation_prompt=True),
    )


def compare(case: Case, renderer: Renderer, respaced: Renderer, theirs: Rendered) -> Comparison:
    """Compare our prompt with ``theirs``. ``respaced`` is the same renderer with ``arguments="respaced"``."""
    ours = rendered(renderer, case)
    if _equal(ours, theirs):
        return Comparison(case.name, Match.EQUAL, len(ours.ids))
    if renderer.quotes_special_tokens(case.messages, case.tools):
        detail = "special-token text in the messages is text here and control tokens there; send token ids"
        return Comparison(case.name, Match.QUOTED, len(ours.ids), detail=detail)
    if _equal(rendered(respaced, case), theirs):
        detail = "call arguments are spaced anew there; render with arguments='respaced'"
        return Comparison(case.name, Match.RESPACED, len(ours.ids), detail=detail)
    if theirs.text is not None and ours.text is not None and theirs.text != ours.text:
        position = first_difference(ours.text, theirs.text)
        return Comparison(
            case.name,
            Match.TEXT,
            len(ours.ids),
            position,
            ours.text[position : position + 60],
            theirs.text[position : position + 60],
        )
    position = first_difference(ours.ids, theirs.ids)
    return Comparison(
        case.name,
        Match.IDS,
        len(ours.ids),
        position,
        renderer.encoder.decode(ours.ids[position : position + 8]),
        renderer.encoder.decode(theirs.ids[position : position + 8]),
    )


def _equal(ours: Rendered, theirs: Rendered) -> bool:
    return ours.ids == theirs.ids and (theirs.text is None or ours.text == theirs.text)


def first_difference(ours: Sequence[object], theirs: Sequence[object]) -> int:
    """Index of the first item that differs; the shorter length when one begins with the other."""
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            return index
    return min(len(ours), len(theirs))
