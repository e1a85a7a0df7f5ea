"""What an environment gave back, looked at before an episode is built on it: anybody may have written it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from firstchair.chat.messages import Message, Tool
from firstchair.core.errors import DataError
from firstchair.rollout.environment import Check, Observation, Outcome, Step

Answer = TypeVar("Answer", Observation, Step, Outcome)


def checked(found: Any, wanted: type[Answer]) -> Answer:
    """``found``, which is a whole ``wanted`` that a record can hold.

    Raises ``DataError`` naming the field, what was found and what was expected.
    """
    if not isinstance(found, wanted):
        raise DataError(f"found {found!r:.200}; expected {wanted.__name__}")
    if isinstance(found, Outcome):
        _check_outcome(found)
        recorded: Any = found
    else:
        _each(found.messages, Message, "messages")
        recorded = [list(found.messages)]
        if isinstance(found, Observation):
            _each(found.tools, Tool, "tools")
            recorded.append(list(found.tools))
            if not found.messages:
                raise DataError("found none; expected the conversation so far", field="messages")
        else:
            _is(found.done, bool, "done")
            _is(found.retracts, bool, "retracts")
    try:
        msgspec.json.encode(recorded)
    except (TypeError, ValueError, OverflowError) as error:  # half a surrogate pair, an object in a message's extra
        raise DataError(f"found what JSON cannot hold: {error!r:.200}; expected plain values") from None
    return found


def _check_outcome(found: Outcome) -> None:
    _is(found.completed, bool, "completed")
    _each(found.checks, Check, "checks")
    for check in found.checks:
        _is(check.ok, bool, f"checks.{check.name}.ok")
    _each(found.violations, str, "violations")
    _each(found.undecided, str, "undecided")
    if found.score is not None and not _is_finite(found.score):
        raise DataError(f"found {found.score!r:.200}; expected a finite number or None", field="score")
    _is(found.measures, Mapping, "measures")
    for name, value in found.measures.items():
        _is(name, str, "measures")
        if not _is_finite(value):
            raise DataError(f"found {value!r:.200}; expected a finite number", field=f"measures.{name}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _each(values: Any, kind: type, field: str) -> None:
    _is(values, (tuple, list), field)
    for value in values:
        _is(value, kind, field)


def _is(value: Any, kind: type | tuple[type, ...], field: str) -> None:
    if not isinstance(value, kind):
        names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise DataError(f"found {value!r:.200}; expected {names}", field=field)
