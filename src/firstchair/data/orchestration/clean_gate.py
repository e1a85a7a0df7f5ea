"""The clean gate: whether a trajectory may be imitated, and if not, every reason why.

It judges what would be taught (the policy's own text and its final answer) and how the answer came about (the
observations, the dispatches); whether the answer is right is not its business. Control tokens are stripped first, as
serialization does. A rule has no exceptions beyond those written at it: a good trajectory that is dropped costs one
sample, a bad one that is kept is learnt.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from types import MappingProxyType

import msgspec

from firstchair.chat.messages import ENDINGS, Message
from firstchair.data.orchestration.wording import control_token_in, strip_control_tokens
from firstchair.rollout.orchestration.trajectory import Trajectory

REPEATS = 4
LINE_CHARS = 2_000
ANSWER_CHARS = 2_000
FINAL_CHARS = 8_000
SECTIONS = 6
CAPITALS = 0.7
WORD_CHARS = 25
EXOTIC = 0.1
COPY_CHARS = 40
"""A shorter answer may well be the same as what an expert said."""


class Unclean(StrEnum):
    """Why a trajectory is not imitated. The first of several is the one that it is counted by."""

    EMPTY = "empty"
    """There is no final answer."""
    ERROR_MARKER = "error_marker"
    """The policy's text holds a traceback, or speaks of a rate limit or a quota that was hit."""
    THINK_TAGS = "think_tags"
    """Think tags that do not pair."""
    CUT = "cut"
    """The answer ends in the middle of an expression, or its message was cut."""
    CALL_TAGS = "call_tags"
    """Tags of a tool call in the text."""
    CONTROL_TOKENS = "control_tokens"
    """Control tokens, whole or broken, that stripping leaves."""
    REPEATED_LINE = "repeated_line"
    """One line at least four times in one text; a line without letter or digit (a brace, a rule) is none."""
    LONG_LINE = "long_line"
    """A line of more than 2,000 characters."""
    MARKDOWN_ANSWER = "markdown_answer"
    """A table, a heading or six numbered sections after the marker, outside of code fences."""
    LONG_ANSWER = "long_answer"
    """More than 2,000 characters after the marker."""
    LONG_FINAL = "long_final"
    """A last message of more than 8,000 characters."""
    STATUS_ECHO = "status_echo"
    """The answer is what a tool says of itself: ``ok``, ``exit code 0``, ``{"success": true}``."""
    CAPITALS = "capitals"
    """More than 70% capitals in an answer of at least three words; a single letter is no word."""
    LONG_WORD = "long_word"
    """More than 25 letters in a row in the answer, of a script that separates words."""
    COPIED_OBSERVATION = "copied_observation"
    """The answer is an observation word for word (40 characters or more)."""
    NO_DELEGATION = "no_delegation"
    """No model was asked."""
    EMPTY_OBSERVATION = "empty_observation"
    ERROR_OBSERVATION = "error_observation"
    EXOTIC_SYMBOLS = "exotic_symbols"
    """More than 10% of the reasoning are symbols that are neither text nor mathematics."""


class Finding(msgspec.Struct, frozen=True):
    """One reason, and what was found."""

    reason: Unclean
    found: str


@dataclass(frozen=True)
class _Seen:
    """A trajectory as the rules look at it. Texts are stripped of control tokens."""

    answer: str
    final: str
    """The last message, when it is one without a call."""
    reasoning: tuple[tuple[str, str], ...]
    """Where, and what the policy wrote there besides calls and ``final``."""
    observations: tuple[tuple[str, Message], ...]
    trajectory: Trajectory

    def texts(self) -> Iterator[tuple[str, str]]:
        """Everything that the policy wrote."""
        yield from self.reasoning
        yield "final", self.final
        yield "answer", self.answer


def unclean(trajectory: Trajectory) -> tuple[Finding, ...]:
    """Every reason why ``trajectory`` should not be imitated, at most one of a kind; empty when it is clean."""
    seen = _seen(trajectory)
    found = ((reason, rule(seen)) for reason, rule in RULES.items())
    return tuple(Finding(reason, text[:200]) for reason, text in found if text is not None)


def _seen(trajectory: Trajectory) -> _Seen:
    messages = trajectory.messages
    last = messages[-1] if messages else None
    is_reply = last is not None and last.role == "assistant" and not last.tool_calls
    reasoning: list[tuple[str, str]] = []
    observations: list[tuple[str, Message]] = []
    step = -1
    for index, message in enumerate(messages):
        if message.role == "tool":
            observations.append((f"step {step}", message))
        if message.role != "assistant":
            continue
        step += 1
        is_last = is_reply and index == len(messages) - 1
        texts = (message.thinking,) if is_last else (message.thinking, message.text)
        reasoning += [(f"step {step}", strip_control_tokens(text)) for text in texts if text]
    return _Seen(
        answer=strip_control_tokens(trajectory.final_answer).strip(),
        final=strip_control_tokens(last.text) if last is not None and is_reply else "",
        reasoning=tuple(reasoning),
        observations=tuple(observations),
        trajectory=trajectory,
    )


def _empty(seen: _Seen) -> str | None:
    return None if seen.answer else "no final answer"


_ERROR = re.compile(
    r"Traceback \(most recent call last\)"
    r"|\brate[ -]?limit(?:s|ing)?[ -](?:error|exceeded|reached|hit)\b|\brate[ -]?limited\b|RateLimitError"
    r"|\btoo many requests\b"
    r"|\bquota (?:has been |was |is )?(?:exceeded|exhausted)\b|\bexceeded (?:your|my|the|our) (?:\w+ )?quota\b"
    r"|\binsufficient[_ ]quota\b",
    re.IGNORECASE,
)


def _in_texts(pattern: re.Pattern[str]) -> Callable[[_Seen], str | None]:
    """The rule that no text of the policy may hold ``pattern``."""

    def rule(seen: _Seen) -> str | None:
        found = ((where, pattern.search(text)) for where, text in seen.texts())
        return next((f"{where}: {match[0]}" for where, match in found if match), None)

    return rule


_THINK = re.compile(r"<(/?)think(?:ing)?>")


def _think_tags(seen: _Seen) -> str | None:
    for where, text in seen.texts():
        open_ = False
        for tag in _THINK.finditer(text):
            if open_ is not bool(tag[1]):
                return f"{where}: {tag[0]} without its other half"
            open_ = not open_
        if open_:
            return f"{where}: <think> never closes"
    return None


def _cut(seen: _Seen) -> str | None:
    last = seen.trajectory.messages[-1] if seen.trajectory.messages else None
    if last is not None and any(last.extra.get(ending) for ending in ENDINGS):
        return "the last message was cut or stopped"
    return f"ends in {seen.answer[-20:]!r}" if seen.answer.endswith(tuple("=,([{+-*/")) else None


_CALL_TAGS = re.compile(
    r"</?(?:tool_call|tool_calls|tool_response|function_call|function_calls|invoke)\b[^>\n]{0,200}>"
    r"|<function=\w|\[TOOL_CALLS\]|\[/?TOOL_RESULTS\]"
)


def _control_tokens(seen: _Seen) -> str | None:
    found = ((where, control_token_in(text)) for where, text in seen.texts())
    return next((f"{where}: {token}" for where, token in found if token is not None), None)


def _repeated_line(seen: _Seen) -> str | None:
    for where, text in seen.texts():
        lines = Counter(line.strip() for line in text.split("\n") if re.search(r"[^\W_]", line))
        line, count = max(lines.items(), key=lambda item: item[1], default=("", 0))
        if count >= REPEATS:
            return f"{where}, {count} times: {line}"
    return None


def _long_line(seen: _Seen) -> str | None:
    for where, text in seen.texts():
        longest = max(map(len, text.split("\n")))
        if longest > LINE_CHARS:
            return f"{where}: a line of {longest:,} characters"
    return None


_FENCED = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)", re.DOTALL | re.MULTILINE)
_TABLE = re.compile(r"^[ \t]*(?:\|[ \t]*)?:?-{2,}:?[ \t]*\|[ \t|:-]*$", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}[ \t]+\S.*$", re.MULTILINE)
_SECTION = re.compile(r"^[ \t]*(?:\*\*)?\d{1,2}[.)][ \t]", re.MULTILINE)


def _markdown_answer(seen: _Seen) -> str | None:
    prose = _FENCED.sub("", seen.answer)
    if _TABLE.search(prose):
        return "a table"
    if heading := _HEADING.search(prose):
        return f"a heading: {heading[0]}"
    sections = len(_SECTION.findall(prose))
    return f"{sections} numbered sections" if sections >= SECTIONS else None


def _longer(name: str, most: int) -> Callable[[_Seen], str | None]:
    """The rule that the answer, or the last message, has at most ``most`` characters."""

    def rule(seen: _Seen) -> str | None:
        length = len(seen.answer if name == "answer" else seen.final)
        return f"{length:,} characters; at most {most:,}" if length > most else None

    return rule


_STATUS = re.compile(
    r"(?:ok|okay|done|success|successful|completed|no output|\(no output\)|\(empty\)|null|undefined)[.!]?"
    r"|(?:status|exit(?: code| status)?|return ?code|http)[ :=]*\d{1,3}(?: \w+)?[.]?"
    r"|(?:status|result)[ :=]*(?:ok|success|done|completed|failed|error)[.!]?"
    r"|(?:the )?(?:command|tool|code|script|call|execution|request|operation|query)(?: was)? "
    r"(?:executed|completed|ran|run|finished|succeeded|failed)(?: successfully)?[.!]?"
    r"|(?:file )?(?:written|saved|created|updated|wrote \d+ (?:bytes|characters|lines))"
    r"(?: (?:successfully|to \S+))*[.!]?"
    r"|\{\s*\"(?:status|ok|success|error|code|exit_code)\"\s*:[^{}\[\]]{0,80}\}",
    re.IGNORECASE,
)


def _status_echo(seen: _Seen) -> str | None:
    return seen.answer if _STATUS.fullmatch(seen.answer) else None


def _capitals(seen: _Seen) -> str | None:
    words = re.findall(r"[^\W\d_]{2,}", seen.answer)
    letters = "".join(words)
    share = sum(map(str.isupper, letters)) / max(len(letters), 1)
    return f"{share:.0%} capitals" if len(words) >= 3 and share > CAPITALS else None


_LETTERS = re.compile(r"[A-Za-zÀ-ÖØ-öø-ɏͰ-ϿЀ-ӿԱ-֏]+")
"""Words of scripts that put spaces between them: Latin, Greek, Cyrillic, Armenian."""


def _long_word(seen: _Seen) -> str | None:
    longest = max(_LETTERS.findall(seen.answer), key=len, default="")
    return longest if len(longest) > WORD_CHARS else None


def _copied_observation(seen: _Seen) -> str | None:
    said = {" ".join(text.split()) for text in (seen.answer, seen.final) if len(text) >= COPY_CHARS}
    for where, message in seen.observations:
        if " ".join(message.text.split()) in said:
            return f"{where}: the same text"
    return None


def _no_delegation(seen: _Seen) -> str | None:
    return None if any(one.kind == "model" for one in seen.trajectory.dispatches) else "no model was asked"


def _empty_observation(seen: _Seen) -> str | None:
    blank = (f"{where}: {message.name or ''}" for where, message in seen.observations if not message.text.strip())
    empty = (f"step {one.step}: {one.name}" for one in seen.trajectory.dispatches if one.empty)
    return next(chain(blank, empty), None)


_ERROR_TEXT = re.compile(r"\s*(?:\[?error\]?:|\[error\b|Traceback \(most recent call last\))", re.IGNORECASE)


def _error_observation(seen: _Seen) -> str | None:
    for where, message in seen.observations:
        if message.is_error or _ERROR_TEXT.match(message.text):
            return f"{where}: {message.text}"
    failed = (
        f"step {one.step}: {one.name}: {one.error_kind}" for one in seen.trajectory.dispatches if one.error_kind
    )
    return next(failed, None)


_EXOTIC_KINDS = frozenset({"So", "Co", "Cn", "Cs", "Cc", "Cf"})


def _exotic_symbols(seen: _Seen) -> str | None:
    letters = [letter for _, text in seen.reasoning for letter in text if not letter.isspace()]
    exotic = sum(unicodedata.category(letter) in _EXOTIC_KINDS for letter in letters)
    share = exotic / max(len(letters), 1)
    return f"{share:.0%} of the reasoning" if share > EXOTIC else None


RULES: Mapping[Unclean, Callable[[_Seen], str | None]] = MappingProxyType(
    {
        Unclean.EMPTY: _empty,
        Unclean.ERROR_MARKER: _in_texts(_ERROR),
        Unclean.THINK_TAGS: _think_tags,
        Unclean.CUT: _cut,
        Unclean.CALL_TAGS: _in_texts(_CALL_TAGS),
        Unclean.CONTROL_TOKENS: _control_tokens,
        Unclean.REPEATED_LINE: _repeated_line,
        Unclean.LONG_LINE: _long_line,
        Unclean.MARKDOWN_ANSWER: _markdown_answer,
        Unclean.LONG_ANSWER: _longer("answer", ANSWER_CHARS),
        Unclean.LONG_FINAL: _longer("final", FINAL_CHARS),
        Unclean.STATUS_ECHO: _status_echo,
        Unclean.CAPITALS: _capitals,
        Unclean.LONG_WORD: _long_word,
        Unclean.COPIED_OBSERVATION: _copied_observation,
        Unclean.NO_DELEGATION: _no_delegation,
        Unclean.EMPTY_OBSERVATION: _empty_observation,
        Unclean.ERROR_OBSERVATION: _error_observation,
        Unclean.EXOTIC_SYMBOLS: _exotic_symbols,
    }
)
"""Reason → what was found, or ``None``."""
