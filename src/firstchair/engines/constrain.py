"""Decoding in which a malformed tool call cannot be written.

Text and thinking are free until ``<tool_call>`` stands complete. From there to ``</tool_call>`` each token must
follow the tools' grammar, keys may not repeat, numbers stay finite. A call is only opened, and an optional part of
it only begun, while the tokens left suffice to finish it, so that the length limit never cuts a call in two.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firstchair.chat.formats.hermes import OPEN
from firstchair.chat.messages import Tool
from firstchair.engines.base import ErrorKind
from firstchair.engines.call_grammar import CallGrammar, TokenTable, mask_of
from firstchair.engines.jobs import GrammarFailure, RequestRefused
from firstchair.engines.json_guard import JsonGuard

_OPEN = OPEN.encode()

_CACHED_GRAMMARS = 64

FAR_FROM_THE_LIMIT = 256
"""With so many tokens to spare beyond twice the longest call, how to end it need not be worked out yet."""


class Grammars:
    """Compiled grammars by tool list."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._table: TokenTable | None = None
        # The tools are kept beside their grammar, so that their id cannot be given to another object meanwhile.
        self._cache: OrderedDict[int, tuple[tuple[Tool, ...], CallGrammar]] = OrderedDict()

    def guide(self, tools: tuple[Tool, ...], tool_format: str, vocab_size: int) -> CallGuide:
        """A guide for one reply. Raises ``RequestRefused`` naming a tool whose schema cannot be used."""
        if tool_format != "hermes":
            raise RequestRefused(
                ErrorKind.BAD_REQUEST, f"constrain: calls of format {tool_format!r}; only 'hermes' can be constrained"
            )
        if self._tokenizer is None:
            raise RequestRefused(ErrorKind.BAD_REQUEST, "constrain: the model directory has no tokenizer")
        entry = self._cache.get(id(tools))
        if entry is None:
            if self._table is None:
                self._table = TokenTable(self._tokenizer)
            entry = (tools, CallGrammar(tools, self._table))
            self._cache[id(tools)] = entry
            if len(self._cache) > _CACHED_GRAMMARS:
                self._cache.popitem(last=False)
        return CallGuide(entry[1], vocab_size)


class CallGuide:
    """Follows one reply: asked before each token (``allowed``) and about it (``admits``), then told (``consume``)."""

    def __init__(self, grammar: CallGrammar, vocab_size: int):
        self._grammar, self._table, self._vocab_size = grammar, grammar.table, vocab_size
        self._tail = b""
        """The end of the free text, shorter than the opening tag."""
        self._matcher: Any = None
        """Set inside a call."""
        self._written = b""
        """The call's text so far."""
        self._guard = JsonGuard()
        self._left = 0
        """Tokens that may still be sampled, the one in question included."""
        self._need = 0
        """Tokens that certainly suffice to end the call from here."""
        self._admitted: tuple[int, JsonGuard, int] | None = None
        """A token found good: its guard and need afterwards."""

    def allowed(self, left: int) -> Tensor | None:
        """Tokens the grammar allows with ``left`` tokens to go, ``[vocabulary]`` bool; ``None``: any."""
        self._left = left
        if self._matcher is None:
            return None
        mask = np.zeros(self._vocab_size, dtype=np.bool_)
        grammar = mask_of(self._matcher, self._table.size)
        mask[: len(grammar)] = grammar
        return torch.from_numpy(mask)

    def admits(self, token: int) -> bool:
        """Whether ``token`` may stand next; asked after ``allowed``, of tokens that it allows."""
        if self._matcher is None:
            text = self._tail + self._bytes(token)
            if _OPEN not in text:
                return True
            # A token that runs past the tag would write into the call unseen.
            return text.endswith(_OPEN) and self._grammar.need_to_open <= self._left - 1
        guard = self._guard.copy()
        if not guard.feed(self._bytes(token)):
            return False
        need = self._need_after(token, guard)
        self._admitted = (token, guard, need)
        return need <= self._left - 1

    def _need_after(self, token: int, guard: JsonGuard) -> int:
        """Tokens that suffice to end the call after ``token``."""
        if self._left > 2 * self._grammar.longest_need + FAR_FROM_THE_LIMIT:
            return self._need
        trial = self._matcher.deep_copy()
        trial.consume_token(token)
        # Inside a free string one more piece changes nothing: the same quote ends it. Not so in a tool's name.
        if self._guard.in_string and guard.in_string and guard.depth > 1 and self._need <= self._left - 1:
            grammar = self._grammar
            if grammar.may_end_string(self._matcher) and grammar.may_end_string(trial):
                return self._need
        if trial.is_accepting():
            return 0
        need, _ = self._grammar.need(trial, guard, self._written + self._bytes(token), self._left - 1)
        return need

    def barred(self, token: int) -> list[int]:
        """Tokens that need not be tried after ``token`` was not admitted."""
        if self._matcher is not None:
            return [token]
        return [other for other, data in enumerate(self._table.bytes) if data and not self.admits(other)]

    def way_out(self) -> int | None:
        """The next token of the shortest way to end the call; ``None`` outside a call."""
        if self._matcher is None:
            return None
        _, token = self._grammar.need(self._matcher, self._guard, self._written, 2 * self._left + 256)
        return token if token >= 0 else None

    def consume(self, token: int) -> None:
        """Take in the token that was chosen."""
        data = self._bytes(token)
        if self._matcher is None:
            self._tail = (self._tail + data)[-len(_OPEN) :]
            if self._tail == _OPEN:
                self._matcher = self._grammar.matcher.deep_copy()
                self._tail, self._written, self._guard = b"", b"", JsonGuard()
                self._need = self._grammar.need_to_open
            return
        if self._admitted is not None and self._admitted[0] == token:
            _, self._guard, self._need = self._admitted
        else:
            self._guard.feed(data)
            self._need = max(self._need - 1, 0)
        self._admitted = None
        self._written += data
        if not self._matcher.consume_token(token):
            raise GrammarFailure(f"the grammar refuses token {token}: {self._matcher.get_error()}")
        if self._matcher.is_accepting():
            self._matcher = None

    def _bytes(self, token: int) -> bytes:
        return self._table.bytes[token] if token < self._table.size else b""
