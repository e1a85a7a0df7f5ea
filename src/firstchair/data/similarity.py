"""How alike two sessions are: the Jaccard similarity of their word shingles.

Only what people and models wrote counts: user and assistant text, and the names and arguments of calls. System
prompts, tool schemas and tool results are left out; one harness repeats them in every session, and they would make
all alike.
MinHash with LSH banding proposes pairs; the exact similarity of the two sets decides.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from firstchair.chat.messages import Message
from firstchair.traces.session import Session

THRESHOLD = 0.6
SHINGLE_WORDS = 3

Shingles = npt.NDArray[np.uint64]
"""The distinct shingles of one session: sorted 64-bit hashes."""

# A word is a run of letters and digits; in scripts written without spaces each character is one.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two sessions that are alike."""

    left: str
    right: str
    similarity: float
    """Exact Jaccard similarity of their shingles, 0 to 1."""
    shared_text: str = ""
    """The longest run of words that both hold."""


def conversation_text(messages: Sequence[Message]) -> str:
    """The part of a conversation that is compared, one line per message or call."""
    lines: list[str] = []
    for message in messages:
        if message.role in ("user", "assistant") and message.text:
            lines.append(message.text)
        for call in message.tool_calls:
            lines.append(f"{call.name} {call.arguments}")
    return "\n".join(lines)


def words_of(text: str) -> list[str]:
    """The words of ``text``, case folded."""
    return _WORD.findall(text.casefold())


@lru_cache(maxsize=1 << 20)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8"), digest_size=8).digest(), "little")


def shingles(text: str, width: int = SHINGLE_WORDS) -> Shingles:
    """The distinct runs of ``width`` words as sorted 64-bit hashes; a shorter text is one run.

    The hash of a run depends on its words alone (BLAKE2b of each, mixed by multiply and shift), so it is equal on
    every machine. Two different runs collide with probability 2**-64.
    """
    return np.unique(_run_hashes(words_of(text), width))


def _run_hashes(words: Sequence[str], width: int) -> Shingles:
    hashes = np.fromiter((_word_hash(word) for word in words), dtype=np.uint64, count=len(words))
    runs = len(words) - width + 1
    if not len(words):
        return hashes
    if runs < 1:
        hashes = np.concatenate([hashes, np.zeros(width - len(words), dtype=np.uint64)])
        runs = 1
    mixed = np.zeros(runs, dtype=np.uint64)
    for place in range(width):
        mixed = (mixed ^ hashes[place : place + runs]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def jaccard(left: Shingles, right: Shingles) -> float:
    """|A ∩ B| / |A ∪ B|; two empty sets are not alike (0): there is nothing that they share."""
    if not len(left) or not len(right):
        return 0.0
    shared = len(np.intersect1d(left, right, assume_unique=True))
    return shared / (len(left) + len(right) - shared)


def text_shingles(session: Session) -> Shingles:
    """The shingles of a session's conversation."""
    return shingles(conversation_text(session.messages))


def shared_text(left: str, right: str, *, width: int = SHINGLE_WORDS, max_chars: int = 200) -> str:
    """The longest stretch of ``left`` all of whose shingles ``right`` holds too, cut at ``max_chars``."""
    spans = [match.span() for match in _WORD.finditer(left)]
    words = [left[start:end].casefold() for start, end in spans]
    if len(words) < width:
        return left[:max_chars] if words == words_of(right) else ""
    common = np.isin(_run_hashes(words, width), shingles(right, width))
    best, best_end, streak = 0, 0, 0
    for place, hit in enumerate(common.tolist()):
        streak = streak + 1 if hit else 0
        if streak > best:
            best, best_end = streak, place
    if not best:
        return ""
    return left[spans[best_end - best + 1][0] : spans[best_end + width - 1][1]][:max_chars]
