"""The only thing that trainer and rollout share: token ids, which of them are trained, and who wrote them.

Sampled tokens enter as they were sampled and are never re-tokenised (decoding and encoding again is not the
identity under BPE). Environment text enters as the template's delta, outside the loss, with log-probability 0.
The next request's prompt is the whole stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from firstchair.chat.messages import Role
from firstchair.core.errors import DataError


class Span(NamedTuple):
    """Tokens ``[start, end)`` that belong to a message.

    An assistant span is what the model wrote or would write: after the generation prompt, up to and including
    the end-of-turn token. Everything between two assistant spans is one span named after the first message in
    it: template text and several messages may share it. Template text that follows the last message has index -1.
    """

    role: Role
    message_index: int
    start: int
    end: int


@dataclass(slots=True)
class TokenConversation:
    """A conversation as one token stream; the three lists always have one length."""

    ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    """True on tokens that are trained: the model's own, the end-of-turn token among them."""
    logprobs: list[float] = field(default_factory=list)
    """Nats under the behaviour policy, at temperature 1; 0.0 outside sampled tokens."""
    spans: list[Span] = field(default_factory=list)
    sampled: bool = False
    """Whether trained tokens carry log-probabilities. False for recordings: there 0.0 means unknown, not certain."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trained_tokens(self) -> int:
        """How many tokens are in the loss."""
        return sum(self.loss_mask)

    def assistant_spans(self) -> list[Span]:
        """Spans of assistant messages, in order."""
        return [span for span in self.spans if span.role == "assistant"]

    def append_sampled(
        self, ids: Sequence[int], logprobs: Sequence[float], *, message_index: int = -1, trained: bool = True
    ) -> None:
        """Append tokens as the model sampled them, with one log-probability each (nats).

        Raises ``DataError`` when the lengths differ or a log-probability is positive or not finite.
        """
        if len(ids) != len(logprobs):
            raise DataError(
                f"{len(logprobs)} log-probabilities for {len(ids)} sampled tokens; expected one each",
                field="logprobs",
            )
        self._append("assistant", message_index, ids, trained, logprobs)
        self.sampled = self.sampled or trained

    def append_env(self, ids: Sequence[int], *, role: Role = "user", message_index: int = -1) -> None:
        """Append environment tokens: not trained, log-probability 0."""
        self._append(role, message_index, ids, False, [0.0] * len(ids))

    def _append(
        self, role: Role, message_index: int, ids: Sequence[int], trained: bool, logprobs: Sequence[float]
    ) -> None:
        for position, value in enumerate(logprobs):
            # A server rounds; a hair above zero is a rounding, more is another quantity.
            if not math.isfinite(value) or value > 1e-3:
                raise DataError(
                    f"log-probability {value!r} at token {position}; expected a finite number of nats, at most 0",
                    field="logprobs",
                )
        start = len(self.ids)
        self.ids.extend(ids)
        self.loss_mask.extend([trained] * len(ids))
        self.logprobs.extend(logprobs)
        self.spans.append(Span(role, message_index, start, len(self.ids)))

    def validate(self, *, vocab_size: int | None = None, need_logprobs: bool = False) -> None:
        """Check what every consumer relies on. Called where a conversation enters a trainer.

        Raises ``DataError`` when lengths differ, spans do not tile the stream in order, a token outside the
        assistant spans is trained, an id is outside the vocabulary, or log-probabilities are needed and unknown.
        """
        lengths = {"ids": len(self.ids), "loss_mask": len(self.loss_mask), "logprobs": len(self.logprobs)}
        if len(set(lengths.values())) != 1:
            raise DataError(f"lengths differ: {lengths}; expected one length", field="ids")
        if vocab_size is not None and self.ids and not 0 <= min(self.ids) <= max(self.ids) < vocab_size:
            raise DataError(
                f"ids span {min(self.ids)}..{max(self.ids)}; the vocabulary has {vocab_size} tokens", field="ids"
            )
        position, own = 0, 0
        for index, span in enumerate(self.spans):
            if span.start != position or span.end < span.start:
                raise DataError(
                    f"starts at {span.start} and ends at {span.end}; expected it to follow on token {position}",
                    field=f"spans[{index}]",
                )
            position = span.end
            if span.role == "assistant":
                own += sum(self.loss_mask[span.start : span.end])
        if position != len(self.ids):
            raise DataError(f"spans end at {position}; the stream has {len(self.ids)} tokens", field="spans")
        if own != self.trained_tokens:
            raise DataError(
                f"{self.trained_tokens - own} trained tokens lie outside assistant spans", field="loss_mask"
            )
        if need_logprobs and not self.sampled and own:
            raise DataError("this conversation was recorded, not sampled; its log-probabilities are unknown")
