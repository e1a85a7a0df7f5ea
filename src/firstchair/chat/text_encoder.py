"""Text to token ids with a fast tokenizer: control tokens only where the template wrote them.

A tokenizer turns ``<|im_end|>`` into the control token wherever it stands, also inside a web page that a tool
returned. Text that came from a message is therefore guarded (a mark is put inside each such string)
before it is rendered; here guarded strings are encoded as plain text.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

from firstchair.chat.template import GUARD, QUOTE, guard_marks, unguard
from firstchair.core.errors import DataError


class TextEncoder:
    """Encodes rendered text; knows the tokenizer's special tokens."""

    def __init__(self, tokenizer: Any):
        """``tokenizer`` is a transformers fast tokenizer; its backend is copied, so its settings stay its own."""
        # A caller's tokenizer(..., truncation=True) leaves the backend truncating; a copy cannot be reached.
        self._backend = copy.deepcopy(tokenizer.backend_tokenizer)
        self._backend.no_truncation()
        self._backend.no_padding()
        self._plain: Any = None
        added = tokenizer.added_tokens_decoder
        self.specials: dict[str, int] = {
            token.content: token_id for token_id, token in added.items() if token.special and token.content
        }
        """Text → id of every special token."""
        by_length = sorted(self.specials, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, by_length))) if by_length else None
        self._hints = tuple(sorted({text[:2] for text in by_length}))

    def guard(self, text: str) -> str:
        """``text`` with every special-token string in it broken by a guard, see ``template.GUARD``."""
        if not text.isascii():
            text = guard_marks(text)
        for hint in self._hints:
            if hint in text:
                assert self._pattern is not None
                return self._pattern.sub(lambda match: f"{match[0][0]}{QUOTE}{match[0][1:]}", text)
        return text

    def guard_value(self, value: Any) -> Any:
        """``guard`` for every string inside a JSON value, keys too; the value itself when nothing needs it."""
        if isinstance(value, str):
            return self.guard(value)
        if isinstance(value, list):
            return [self.guard_value(item) for item in value]
        if isinstance(value, dict):
            return {self.guard(key): self.guard_value(item) for key, item in value.items()}
        return value

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, which may hold guards; nothing is added before or after.

        Raises ``DataError`` for text that is not Unicode (a lone surrogate).
        """
        if GUARD in text:
            return self._encode_guarded(text)
        ids: list[int] = self._encode(self._backend, [text])[0].ids
        return ids

    def encode_pieces(self, pieces: Sequence[str]) -> list[list[int]]:
        """Ids of each piece by itself: no token reaches over a cut."""
        if any(GUARD in piece for piece in pieces):
            return [self.encode(piece) for piece in pieces]
        return [encoding.ids for encoding in self._encode(self._backend, pieces)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``, special tokens kept. Bytes that are not whole characters become U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def _encode_guarded(self, text: str) -> list[int]:
        if self._plain is None:
            self._plain = copy.deepcopy(self._backend)
            self._plain.encode_special_tokens = True
        # Control tokens that the template wrote are whole in the text; quoted ones are broken by a guard.
        assert self._pattern is not None
        pieces: list[str] = []
        controls: list[int] = []
        position = 0
        for match in self._pattern.finditer(text):
            pieces.append(unguard(text[position : match.start()]))
            controls.append(self.specials[match[0]])
            position = match.end()
        pieces.append(unguard(text[position:]))
        ids: list[int] = []
        for index, encoding in enumerate(self._encode(self._plain, pieces)):
            ids.extend(encoding.ids)
            if index < len(controls):
                ids.append(controls[index])
        return ids

    def _encode(self, backend: Any, pieces: Sequence[str]) -> Any:
        try:
            if len(pieces) == 1:
                return [backend.encode(pieces[0], add_special_tokens=False)]
            return backend.encode_batch(list(pieces), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise DataError(f"text is not Unicode: {error}; remove lone surrogates") from None


class StreamDecoder:
    """Text of a token stream as it grows; a character that is split over tokens comes when it is whole."""

    def __init__(self, encoder: TextEncoder):
        self._encoder = encoder
        self._ids: list[int] = []
        self._start = 0
        self._shown = ""

    def push(self, token_id: int) -> str:
        """Take one token; returns the text that is certain now, often empty."""
        self._ids.append(token_id)
        text = self._encoder.decode(self._ids[self._start :])
        if text.endswith("\ufffd"):
            return ""
        new = text[len(self._shown) :]
        # Keep the last token as context: some decoders drop the space before the first token they see.
        self._start = len(self._ids) - 1
        self._shown = self._encoder.decode(self._ids[self._start :])
        return new

    def flush(self) -> str:
        """The text held back, at the end of the stream; broken bytes become U+FFFD."""
        text = self._encoder.decode(self._ids[self._start :])
        new, self._shown = text[len(self._shown) :], text
        return new
