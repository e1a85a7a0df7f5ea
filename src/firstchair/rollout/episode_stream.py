"""The token stream of one live episode: the prompt of each decision is all that was read and sampled before.

    render once ─► prompt ─► sampled ids ─► delta of the environment ─► prompt ─► …

Where the stream cannot go on (the template rewrites earlier turns, the history was compacted or branched, the
server does not tell its ids), the next prompt is rendered afresh: a new segment, which shows in the record as a
prompt that does not begin with the ids before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from firstchair.chat.messages import Message, Tool, assistant_message
from firstchair.chat.token_conversation import TokenConversation
from firstchair.core.errors import DataError
from firstchair.engines.base import Generation
from firstchair.rollout.policy import EpisodeTokens

if TYPE_CHECKING:
    from firstchair.chat.renderer import Renderer


class EpisodeStream:
    """Grows with the episode. Call ``prompt`` before each generation and ``sampled`` after it."""

    def __init__(self, renderer: Renderer):
        self._renderer = renderer
        self._closed: list[TokenConversation] = []
        self._revisions: list[str] = []
        self._messages: tuple[Message, ...] = ()
        self._tools: tuple[Tool, ...] = ()
        self._left_out = 0
        self._replies: tuple[Message, ...] = ()
        """The forms in which the last reply may enter the messages; empty when the stream cannot go on."""
        self.conversation = TokenConversation()
        """The present segment."""

    def prompt(self, messages: tuple[Message, ...], tools: tuple[Tool, ...], *, left_out: int = 0) -> tuple[int, ...]:
        """Ids of the prompt for the next decision. Raises ``DataError`` when the messages cannot be rendered.

        ``left_out``: how many messages of the conversation are not among ``messages``.
        """
        first, ids = len(self._messages) + 1, self._delta(messages, tools)
        self._replies = ()
        if ids is None:
            first, ids = 0, self._renderer.prompt_ids(messages, tools)
            self._closed.append(self.conversation)
            self.conversation = TokenConversation()
        follows = first < len(messages)
        self.conversation.append_env(
            ids,
            role=messages[first].role if follows else "system",
            message_index=first + (left_out if first else 0) if follows else -1,
        )
        self._messages, self._tools, self._left_out = messages, tools, left_out
        return tuple(self.conversation.ids)

    def sampled(self, generation: Generation, reply: Message) -> None:
        """Append what the model wrote, as it was sampled; ``reply`` is how it was read."""
        ids, logprobs = generation.ids, generation.logprobs
        if ids is None or generation.prompt_ids != tuple(self.conversation.ids):
            return
        try:
            self.conversation.append_sampled(
                ids,
                [0.0] * len(ids) if logprobs is None else logprobs,
                message_index=len(self._messages) + self._left_out,
                trained=logprobs is not None,
            )
        except DataError:  # a log-probability that is none: the recorded call shows it, the segment ends here
            return
        if logprobs is not None:
            self._revisions.append(generation.revision)
        # A reply that cannot be read enters the messages as its raw text.
        self._replies = (reply, assistant_message(generation.text))

    def tokens(self) -> EpisodeTokens:
        """All segments with a sampled token, and the weights of each call."""
        segments = [segment for segment in map(_up_to_sampled, [*self._closed, self.conversation]) if segment.sampled]
        return EpisodeTokens(tuple(segments), tuple(self._revisions))

    def _delta(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> list[int] | None:
        """What to append since the last reply; ``None`` when the stream cannot go on."""
        known = len(self._messages)
        if not self._replies or tools != self._tools or messages[:known] != self._messages:
            return None
        if len(messages) == known or _said(messages[known]) not in map(_said, self._replies):
            return None
        if any(message.role == "assistant" for message in messages[known + 1 :]):
            return None
        ended = self.conversation.ids[-1] in self._renderer.stop_ids
        try:
            return self._renderer.env_delta(messages, tools, ended=ended)
        except DataError:
            return None


def _up_to_sampled(conversation: TokenConversation) -> TokenConversation:
    """The stream without what follows its last sampled token: there is nothing to learn from that."""
    spans = list(conversation.spans)
    while spans and spans[-1].role != "assistant":
        spans.pop()
    end = spans[-1].end if spans else 0
    return TokenConversation(
        ids=conversation.ids[:end],
        loss_mask=conversation.loss_mask[:end],
        logprobs=conversation.logprobs[:end],
        spans=spans,
        sampled=conversation.sampled,
    )


def _said(message: Message) -> tuple[str, str, Sequence[tuple[str, str]]]:
    """A message without what the episode adds to it (ids of calls, marks)."""
    return message.text, message.thinking, tuple((call.name, call.arguments) for call in message.tool_calls)
