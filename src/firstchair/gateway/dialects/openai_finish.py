"""What a Chat Completions answer says beside its message; the same words end a whole answer and a stream."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from firstchair.chat.wire_request import Finish, finish_from_anthropic, finish_from_openai, finish_to_openai
from firstchair.core.errors import DataError
from firstchair.gateway.dialects.base import EngineTokens
from firstchair.gateway.dialects.collect import derived_finish

_HEAD = frozenset(
    {"id", "object", "model", "choices", "usage", "prompt_token_ids", "prompt_logprobs", "error", "obfuscation"}
)


def read_finish(choice: Mapping[str, Any], *, has_calls: bool) -> tuple[Finish, str | None, str | None]:
    """The ending, the provider's own word for it, and the stop sequence that ended it.

    ``native_finish_reason`` (OpenRouter, and this gateway) may be more exact than OpenAI's word. Raises
    ``DataError`` for an unknown ending.
    """
    word = choice.get("finish_reason")
    if not isinstance(word, str | None):
        raise DataError("expected text", field="finish_reason")
    finish = derived_finish(finish_from_openai(word, has_calls=has_calls), has_calls=has_calls)
    native = choice.get("native_finish_reason")
    stop = choice.get("stop_reason", choice.get("matched_stop"))
    stop_sequence = stop if isinstance(stop, str) and finish is Finish.STOP else None
    if not isinstance(native, str):
        return (Finish.STOP_SEQUENCE if stop_sequence is not None else finish), word, stop_sequence
    exact = _exact(native)
    if exact is not None and finish_to_openai(exact)[0] == word and not (has_calls and word == "stop"):
        finish = exact
    elif stop_sequence is not None:
        finish = Finish.STOP_SEQUENCE
    return finish, native, stop_sequence


def _exact(native: str) -> Finish | None:
    try:
        finish = finish_from_anthropic(native, has_calls=False)
    except DataError:
        return None
    return finish if finish in (Finish.PAUSE, Finish.CONTEXT_WINDOW, Finish.STOP_SEQUENCE) else None


def engine_tokens(prompt: Any, ids: Any, scored: Any) -> EngineTokens | None:
    """vLLM's token ids and logprobs (``return_token_ids`` with ``logprobs``).

    ``None`` unless all is there and belongs together: one finite number for each id.
    """
    if not (isinstance(prompt, list) and isinstance(ids, list) and isinstance(scored, list)) or not prompt:
        return None
    logprobs = [entry.get("logprob") if isinstance(entry, Mapping) else None for entry in scored]
    if len(logprobs) != len(ids) or not all(_is_id(value) for value in (*prompt, *ids)):
        return None
    numbers = [float(p) for p in logprobs if isinstance(p, int | float) and not isinstance(p, bool)]
    if len(numbers) != len(ids) or not all(map(math.isfinite, numbers)):
        return None
    return EngineTokens(prompt_ids=tuple(prompt), completion_ids=tuple(ids), logprobs=tuple(numbers))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def answer_extra(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an answer or of its chunks beside the usual."""
    return {key: value for key, value in body.items() if key not in _HEAD and value is not None}


def other_choices(count: int, scored: Mapping[str, Any]) -> dict[str, Any]:
    """Notes on what a canonical answer does not hold: the number of choices, and the scores of the first."""
    lists = {key: value for key, value in scored.items() if isinstance(value, list) and value}
    return ({"n": count} if count > 1 else {}) | ({"logprobs": lists} if lists else {})
