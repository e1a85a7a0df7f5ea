"""What one rollout offers: each tool as the policy sees it, and what stands behind its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from firstchair.catalog.experts import DispatchKind
from firstchair.chat.messages import Tool, ToolCall
from firstchair.rollout.orchestration.task import OrchestrationTask

SUBJECT: Mapping[DispatchKind, str] = MappingProxyType(
    {"model": "input", "web_search": "query", "local_search": "query", "code_interpreter": "code"}
)
"""Kind → the one argument that a call is empty without. Other tools may need none."""


class OnOffer(Protocol):
    """One tool or expert on offer; ``catalog.offers.OfferedTool`` is one."""

    @property
    def tool(self) -> Tool:
        """Exactly as the policy sees it."""
        ...

    @property
    def label(self) -> str:
        """The name that the policy calls it by: the tool's."""
        ...

    @property
    def name(self) -> str:
        """In the catalog: what experts and tools are called by."""
        ...

    @property
    def kind(self) -> DispatchKind:
        """What is done with a call."""
        ...


@dataclass(frozen=True)
class Offered:
    """Something on offer that is in no catalog."""

    tool: Tool
    name: str
    kind: DispatchKind

    @property
    def label(self) -> str:
        """The tool's name."""
        return self.tool.name


OfferOf = Callable[[OrchestrationTask, int], Sequence[OnOffer]]
"""The offer of one rollout, by its task and its environment's seed: sampled, anonymised, or always the same."""


def subject_of(kind: DispatchKind, call: ToolCall) -> str | None:
    """The text that ``call`` is about, stripped; empty when there is none, ``None`` for a kind that needs none and
    for arguments that are no object.
    """
    field, arguments = SUBJECT.get(kind), call.parsed()
    if field is None or arguments is None:
        return None
    value = arguments.get(field)
    return value.strip() if isinstance(value, str) else "" if value is None else str(value)
