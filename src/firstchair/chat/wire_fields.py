"""What both wires share: telling what cannot be carried, checking types, and pairing calls with results.

Where a provider's field has no counterpart it is kept verbatim under the provider's name in ``extra``
(``{"openai": {…}}``, ``{"anthropic": {…}}``), beside notes on how a known field was written when that is not the
usual way (``content``: null, absent, a list), so that the way back is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from firstchair.chat.messages import Message
from firstchair.core.errors import DataError

Wire = Literal["openai", "anthropic"]


class Loss:
    """Collects what a conversion cannot carry; without a list to put it in, the conversion is refused."""

    def __init__(self, dropped: list[str] | None):
        self._dropped = dropped

    def note(self, field: str, why: str) -> None:
        """List ``field``, or raise ``DataError`` naming it."""
        if self._dropped is None:
            raise DataError(f"{why}; pass a list as dropped= to convert without it", field=field)
        self._dropped.append(f"{field}: {why}")

    def extras(self, extra: Mapping[str, Any], foreign: Wire, where: str, *, carried: Iterable[str] = ()) -> None:
        """Note the fields that only the ``foreign`` wire has; nulls and notes of ours say nothing."""
        fields = extra.get(foreign)
        if not fields:
            return
        for key, value in fields.items():
            if value not in (None, "", [], {}) and key not in _OUR_NOTES and key not in carried:
                self.note(f"{where}.{key}", f"{key!r} exists only on the {foreign} wire")


_OUR_NOTES = frozenset({"content", "is_error", "role", "key", "arguments", "no_type"})
"""Keys in ``extra[wire]`` that say how something was written, not what."""


def kind_of(value: Any) -> str:
    """The JSON word for a value in an error message."""
    names = {"NoneType": "null", "dict": "an object", "list": "a list", "str": "text", "bool": "a boolean"}
    return names.get(type(value).__name__, "a number" if isinstance(value, int | float) else type(value).__name__)


def need(value: Any, kind: type, field: str, expected: str) -> Any:
    """``value`` when it is a ``kind``; raises ``DataError`` otherwise."""
    if not isinstance(value, kind):
        raise DataError(f"found {kind_of(value)}; expected {expected}", field=field)
    return value


def rest(row: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The fields of ``row`` beyond ``known``, verbatim."""
    if row.keys() <= known:
        return {}
    return {key: value for key, value in row.items() if key not in known}


def check_results(
    messages: Sequence[Message],
    *,
    places: Sequence[str] | None = None,
    result_field: str = "tool_call_id",
    call_field: str = "tool_calls",
) -> None:
    """Every tool message answers, once, a call of the last assistant message that made calls before it.

    Ids may return in later messages; a call without a result is allowed here. ``places`` names the messages
    where they do not stand at their own index. Raises ``DataError`` with the field, such as
    ``messages[3].tool_call_id``.
    """
    open_ids: dict[str, bool] = {}
    for index, message in enumerate(messages):
        if message.role == "assistant":
            open_ids = {}
            for call in message.tool_calls:
                if call.id in open_ids:
                    raise DataError(
                        f"id {call.id!r} stands twice in one message; results could not be told apart",
                        field=f"{places[index] if places else f'messages[{index}]'}.{call_field}",
                    )
                open_ids[call.id] = True
        elif message.role == "tool":
            call_id = message.tool_call_id
            if call_id is not None and open_ids.get(call_id):
                open_ids[call_id] = False
                continue
            if not open_ids:
                problem = f"result {call_id!r} answers no call: the assistant message before it made none"
            elif call_id in open_ids:
                problem = f"call {call_id!r} is answered twice; keep one result"
            else:
                problem = f"found {call_id!r}; the calls before it are {', '.join(map(repr, open_ids))}"
            place = places[index] if places else f"messages[{index}]"
            raise DataError(problem, field=f"{place}.{result_field}")
