"""What of a policy's text is not taught: control tokens, boxes around answers, and talk about its instructions."""

from __future__ import annotations

import re

from firstchair.rollout.orchestration.final_answer import marked_answer

_CONTROL = re.compile(
    r"<\|[\w▁\"'.:/-]{1,64}\|>"  # ChatML, Llama, Qwen, …
    r"|<｜[^<>｜\n]{1,64}｜>"  # DeepSeek
    r"|</?(?:start_of_turn|end_of_turn|bos|eos|pad|unk)>"  # Gemma
    r"|</s>|\A\s*<s>"  # Llama 2, Mistral; elsewhere <s> is HTML
)
_BROKEN_CONTROL = re.compile(
    r"<\|[A-Za-z_]\w*|\b(?:im_start|im_end|eot_id|endoftext|end_header_id)\|>|<｜|｜>|\[/?INST\]|<</?SYS>>"
)


def strip_control_tokens(text: str) -> str:
    """``text`` without the tokens that chat templates write; ``x < 3``, ``List<int>`` and ``a |> b`` stay."""
    return _CONTROL.sub("", text)


def control_token_in(text: str) -> str | None:
    """The first control token, whole or broken, in a text that was stripped of them."""
    found = _CONTROL.search(text) or _BROKEN_CONTROL.search(text)
    return found[0] if found else None


_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def unwrap_boxed(text: str) -> str:
    """``text`` with each ``\\boxed{…}`` replaced by what it holds; braces may nest, one that never closes stays."""
    opened: list[tuple[int, int] | None] = []
    cuts: list[tuple[int, int]] = []
    for found in _BRACES.finditer(text):
        if found[0] == "}":
            box = opened.pop() if opened else None
            if box is not None:
                cuts += [box, found.span()]
        elif found[0] == "{":
            opened.append(None)
        elif found[0].startswith("\\boxed"):
            opened.append(found.span())
    parts, at = [], 0
    for start, end in sorted(cuts):
        parts.append(text[at:start])
        at = end
    return "".join([*parts, text[at:]])


_SAYS = r"(?:say|state|require|ask|tell|mention|specif(?:y|ie)|want|forbid|demand)s?\b|said|told"
_INSTRUCTION_TALK = re.compile(
    r"\b(?:system|developer)[ -](?:prompt|message|instructions?)\b"
    rf"|\b(?:the|my|these|those|our|given) (?:instructions?|guidelines|rules|prompt)\b[^.\n]{{0,40}}\b(?:{_SAYS})"
    r"|\b(?:according to|per|following|follow|obey) (?:the|my|these) (?:instructions?|guidelines|prompt)\b"
    r"|\b(?:i|we)(?:'m| am| was|'ve been| have been|'re| are| were) (?:instructed to|told to|supposed to)\b"
    r"|\bas (?:i (?:was|am) )?instructed\b"
    r"|\b(?:required|requested|expected|specified) (?:output |answer |response )?format\b"
    r"|\bthe user (?:wants|asked|asks|requires|told) me to (?:use|call|respond|reply|answer|output|end|format)\b"
    r"|\bthe (?:reminder|nudge|note) (?:says|asks|tells|wants)\b"
    r"|FINAL_ANSWER",
    re.IGNORECASE,
)


def scrub_instruction_talk(text: str) -> str:
    """``text`` without its lines that talk about the instructions rather than the problem."""
    lines = text.split("\n")
    kept = [line for line in lines if not _INSTRUCTION_TALK.search(line)]
    return text if len(kept) == len(lines) else re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n")


def taught_reasoning(text: str) -> str:
    """What a model learns of reasoning between calls."""
    return unwrap_boxed(scrub_instruction_talk(strip_control_tokens(text)))


def taught_answer(text: str) -> str:
    """What a model learns to write after the marker; of doubled markers the last counts."""
    plain = strip_control_tokens(text)
    return unwrap_boxed(plain if (marked := marked_answer(plain)) is None else marked).strip()
