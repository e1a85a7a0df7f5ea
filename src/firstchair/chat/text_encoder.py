"""Text to token ids with a fast tokenizer: control tokens only where the template wrote them.

A tokenizer turns ``<|im_end|>`` into the control token wherever it stands, also inside a web page that a tool
returned. Text that came from a message is therefore guarded (a mark is put inside each such string)
before it is rendered; here guarded strings are encoded as plain text.
"""

from __future__ import annotations

import copy
import re
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, cast

from firstchair.chat.template import GUARD, QUOTE, guard_marks, unguard
from firstchair.core.errors import DataError

MEMORY_CHARS = 16_000_000
"""Characters of text whose ids are remembered; then the memory starts anew."""


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
        swallow = {token.content: (token.lstrip, token.rstrip) for token in added.values() if token.special}
        self._cut = (
            re.compile("|".join(_with_space(text, *swallow[text]) for text in by_length)) if by_length else None
        )
        self._hints = tuple(sorted({text[:2] for text in by_length}))
        self._memory: dict[str, Sequence[int]] = {}
        self._memory_chars = 0
        self._cuts = False
        self._cuts = self._pattern is not None and self._cuts_are_free()

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

        The text is cut at its control tokens, where no token can reach over, and the pieces are remembered: the
        prompts of a session's decisions share all of their history, and sessions share their system prompts.
        Raises ``DataError`` for text that is not Unicode (a lone surrogate).
        """
        if self._cut is None or not (self._cuts or GUARD in text):
            ids: list[int] = self._encode(self._backend, [text])[0].ids
            return ids
        # Control tokens that the template wrote are whole in the text; quoted ones are broken by a guard.
        pieces: list[str] = []
        controls: list[int] = []
        position = 0
        for match in self._cut.finditer(text):
            pieces.append(text[position : match.start()])
            token_id = self.specials.get(match[0])
            controls.append(self.specials[match[0].strip()] if token_id is None else token_id)
            position = match.end()
        pieces.append(text[position:])
        known = self._remembered(pieces)
        out = list(known[0])
        for control, piece_ids in zip(controls, known[1:], strict=True):
            out.append(control)
            out.extend(piece_ids)
        return out

    def encode_pieces(self, pieces: Sequence[str]) -> list[list[int]]:
        """Ids of each piece by itself: no token reaches over a cut."""
        return [self.encode(piece) for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``, special tokens kept. Bytes that are not whole characters become U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def _remembered(self, pieces: Sequence[str]) -> list[Sequence[int]]:
        """Ids of pieces between control tokens."""
        found: list[Sequence[int] | None] = [self._memory.get(piece) for piece in pieces]
        missing = list(dict.fromkeys(piece for piece, ids in zip(pieces, found, strict=True) if ids is None))
        if not missing:
            return cast("list[Sequence[int]]", found)
        new: dict[str, Sequence[int]] = {}
        for backend, guarded in ((self._backend, False), (None, True)):
            chosen = [piece for piece in missing if (GUARD in piece) is guarded]
            if chosen:
                encodings = self._encode(backend or self._plain_backend(), [unguard(piece) for piece in chosen])
                new |= {piece: array("I", one.ids) for piece, one in zip(chosen, encodings, strict=True)}
        size = sum(map(len, missing))
        if self._memory_chars + size > MEMORY_CHARS:
            self._memory, self._memory_chars = {}, 0
        self._memory |= new
        self._memory_chars += size
        return [new[piece] if ids is None else ids for piece, ids in zip(pieces, found, strict=True)]

    def _plain_backend(self) -> Any:
        """The tokenizer that reads special-token text as text."""
        if self._plain is None:
            self._plain = copy.deepcopy(self._backend)
            self._plain.encode_special_tokens = True
        return self._plain

    def _cuts_are_free(self) -> bool:
        """Whether encoding piece by piece gives what encoding at once gives.

        Not so where a tokenizer treats the start of a text in a special way.
        """
        sample = "".join(f"a b\n\n{text}\n c {text}{text} x\n" for text in self.specials)
        whole = self._encode(self._backend, [sample])[0].ids
        self._cuts = True
        return bool(self.encode(sample) == whole)

    def _encode(self, backend: Any, pieces: Sequence[str]) -> Any:
        try:
            if len(pieces) == 1:
                return [backend.encode(pieces[0], add_special_tokens=False)]
            return backend.encode_batch(list(pieces), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise DataError(f"text is not Unicode: {error}; remove lone surrogates") from None


def _any_of(patterns: Iterable[str]) -> re.Pattern[str] | None:
    text = "|".join(patterns)
    return re.compile(text) if text else None


def _with_space(text: str, left: bool, right: bool) -> str:
    """A pattern for a special token and the white space that it swallows on either side."""
    return (r"\s*" if left else "") + re.escape(text) + (r"\s*" if right else "")


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
