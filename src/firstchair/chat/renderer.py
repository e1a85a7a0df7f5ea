"""The only renderer of the product: conversations to text, to token ids and to loss masks, and back.

Record, SFT, RL, replay eval and the gateway all go through this class; ``template_hash`` names what it does.

    messages ──view──► template messages ──Jinja──► text ──encode once──► ids ──find turns──► masks
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from firstchair.chat.actions import ParsedReply
from firstchair.chat.formats import tool_call_format
from firstchair.chat.messages import TRUNCATED, Message, Tool
from firstchair.chat.probes import is_append_only, is_local, probe
from firstchair.chat.prompt_view import PromptView
from firstchair.chat.template import (
    CHOOSE,
    QUOTE,
    SPAN_END,
    SPAN_START,
    ChatTemplate,
    load_template,
    unguard,
    without_spans,
)
from firstchair.chat.text_encoder import TextEncoder
from firstchair.chat.token_conversation import Span, TokenConversation
from firstchair.chat.turns import TurnIds, TurnStyle, find_turns, turn_start
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsontext import content_id
from firstchair.core.model_dirs import not_a_model

Policy = Literal["strict", "segment"]

Arguments = Literal["verbatim", "respaced"]
"""``verbatim``: the JSON text of a call's arguments, byte for byte, where the template takes text. ``respaced``: as
``json.dumps`` spaces it, which is what servers write that parse arguments first (vLLM does)."""


class Renderer:
    """Renders conversations with one tokenizer, one chat template and one tool-call syntax."""

    def __init__(
        self,
        tokenizer: Any,
        template_text: str,
        tool_format: str | None = None,
        *,
        source: str = "tokenizer",
        variables: Mapping[str, Any] | None = None,
        stop_ids: Sequence[int] = (),
        arguments: Arguments = "verbatim",
    ):
        """Use ``tokenizer`` (a transformers fast tokenizer) with ``template_text``.

        ``variables`` are given to the template (``enable_thinking``). ``stop_ids`` are further ids that end a
        reply (a model's ``generation_config``). ``arguments`` says how call arguments are written, see
        ``Arguments``. Raises ``ConfigError`` when assistant turns cannot be found.
        """
        special = {key: value for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str | list)}
        self.tokenizer = tokenizer
        self.variables = dict(variables or {})
        self.arguments: Arguments = arguments
        self.template = ChatTemplate(template_text, {**special, **(variables or {})}, source=source)
        self._encoder = TextEncoder(tokenizer)
        self._facts = facts = probe(self.template)
        if tool_format is None:
            tool_format = facts.call_syntax or "hermes"
        self.tool_format = tool_call_format(tool_format)
        self._view = PromptView(self._encoder, self.tool_format, facts.arguments_as, respace=arguments == "respaced")
        self._turn = self._turn_ids(source)
        ends = [self._encoder.specials[end] for end in (facts.style.ends if facts.style else ()) if self._known(end)]
        eos = tokenizer.eos_token_id
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys([*ends, *([eos] if eos is not None else []), *stop_ids]))
        self.pad_id: int = next(i for i in (tokenizer.pad_token_id, eos, 0) if i is not None)
        self.vocab_size: int = len(tokenizer)
        self.append_only = is_append_only(self.template, facts.arguments_as)
        """Whether a longer conversation always begins with the prompts of its earlier decisions."""
        self._is_local = self.append_only and is_local(self.template, facts.arguments_as)
        self.template_hash = content_id(
            {
                "template": template_text,
                "tool_format": self.tool_format.name,
                "arguments": f"{facts.arguments_as} {arguments}",
                "special_tokens": special,
                "variables": dict(variables or {}),
            }
        )

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        template: str | None = None,
        tool_format: str | None = None,
        *,
        variables: Mapping[str, Any] | None = None,
        arguments: Arguments = "verbatim",
    ) -> Renderer:
        """Load the tokenizer in directory ``path``.

        ``template`` replaces its own chat template: a pinned name (``qwen3``, ``llama3``, ``gemma``, ``tiny``)
        or the path of a ``.jinja`` file. Raises ``ConfigError`` when there is no tokenizer or no template.
        """
        directory = Path(path)
        if not (directory / "tokenizer.json").is_file():
            raise not_a_model(directory, "tokenizer.json")
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{directory}: the tokenizer cannot be loaded: {error}") from None
        text = load_template(template) if template is not None else _own_template(tokenizer, directory)
        return cls(
            tokenizer,
            text,
            tool_format,
            source=str(directory) if template is None else f"template {template}",
            variables=variables,
            stop_ids=_generation_stops(directory),
            arguments=arguments,
        )

    def text(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), add_generation_prompt: bool = False
    ) -> str:
        """The rendered text. Special-token text inside messages looks the same here as control tokens do."""
        return unguard(without_spans(self._render(messages, tools, add_generation_prompt)))

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Token ids of the prompt for the next assistant message."""
        return self._encode_turns(self._render(messages, tools, True))[0]

    def quotes_special_tokens(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> bool:
        """Whether messages or tools hold special-token text, which servers would read as control tokens."""
        return QUOTE in self._render(messages, tools, False)

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), loss: Sequence[bool] | None = None
    ) -> TokenConversation:
        """Render once and find the masks on the token stream.

        Every assistant span is trained, its end-of-turn token included, except those that ``loss`` (one flag a
        message) switches off. Raises ``DataError`` when the number of turns found is not the number of assistant
        messages, or when the template rewrites earlier turns (see ``segments``).
        """
        flags = self._flags(messages, loss)
        marked = self._render(messages, tools, False)
        trained = self._trained(messages, flags)
        # The probes have shown that the template only appends; the first and the last turn are checked in each
        # conversation all the same, for rules that look at the content.
        checked = trained if not self.append_only else dict.fromkeys([*trained[:1], *trained[-1:]])
        for index in checked:
            self._refuse_rewriting(messages, tools, index, marked)
        return self._build(messages, marked, flags)

    def segments(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        loss: Sequence[bool] | None = None,
        policy: Policy = "segment",
    ) -> tuple[TokenConversation, ...]:
        """The conversation as training rows in which every trained turn has the prompt that serving saw.

        One row for templates that only append. Where a template rewrites history (it strips earlier think
        blocks, say), ``strict`` raises ``DataError`` and ``segment`` starts a new row. Each trained turn is in
        the loss of exactly one row.
        """
        flags = self._flags(messages, loss)
        if self.append_only or policy == "strict":
            return (self.conversation(messages, tools, loss),)
        groups: list[list[int]] = []
        upto = ""
        for index in self._trained(messages, flags):
            prompt = self._render(messages[:index], tools, True)
            if not groups or not prompt.startswith(upto):
                groups.append([])
            groups[-1].append(index)
            upto = self._render(messages[: index + 1], tools, False)
            self._check_continues(prompt, upto, index)
        rows = []
        for group in groups:
            part = messages[: group[-1] + 1]
            chosen = [index in group for index in range(len(part))]
            rows.append(self._build(part, self._render(part, tools, False), chosen))
        return tuple(rows)

    def env_delta(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, ended: bool = True) -> list[int]:
        """Token ids to append after the last assistant turn of ``messages``: what came since, and the next prompt.

        ``ended`` says whether the stream already has the end-of-turn token; a truncated reply has none, and gets
        the template's. The turns before are in the stream as they were sampled, so call arguments that a template
        cannot write do not matter here. Raises ``DataError`` when the template rewrites the turns before (strict).
        """
        last = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=None)
        if last is None or self._facts.style is None:
            raise DataError("no assistant turn to continue from, or the template's turns have no known markers")
        if self._is_local:
            # Rendering tools and earlier turns again is most of what a step of a long episode would cost.
            start = turn_start([message.role for message in messages], last)
            return self._encoder.encode(self._after_reply(messages[start:], last - start, self._facts.style, ended))
        messages = self._view.with_writable_calls(messages)
        full = without_spans(self._render(messages, tools, True))
        upto = without_spans(self._render(messages[: last + 1], tools, False))
        before = without_spans(self._render(messages[:last], tools, True))
        if not full.startswith(before) or not full.startswith(upto):
            raise DataError(
                "the template rewrites earlier turns when messages are added; start a new segment",
                field=f"messages[{last}]",
            )
        end = next((end for end in self._facts.style.ends if upto.rstrip("\n").endswith(end)), "")
        tail = upto[len(upto.rstrip("\n")) :]
        return self._encoder.encode(("" if ended else end) + tail + full[len(upto) :])

    def _after_reply(self, turn: Sequence[Message], last: int, style: TurnStyle, ended: bool) -> str:
        """What stands behind the end of the reply ``turn[last]``, the next prompt included.

        Markers inside of messages are quoted, so the first end behind the reply's header is its own.
        """
        full = without_spans(self._render(self._view.with_writable_calls(turn), (), True))
        position = 0
        for _ in range(sum(message.role == "assistant" for message in turn[: last + 1])):
            position = full.index(style.header, position) + len(style.header)
        place, end = min((place, end) for end in style.ends if (place := full.find(end, position)) >= 0)
        return full[place + (len(end) if ended else 0) :]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids: special tokens kept, one end-of-turn token at the end removed."""
        if ids and ids[-1] in self.stop_ids:
            ids = ids[:-1]
        return self._encoder.decode(ids)

    def parse(
        self, text: str, tools: Sequence[Tool] = (), salvage: bool = False, *, id_prefix: str = "call_"
    ) -> ParsedReply:
        """Read a reply that was sampled after this renderer's prompt. Never raises."""
        if "<think>" in self._facts.suffix and "</think>" not in self._facts.suffix:
            text = "<think>" + text
        return self.tool_format.parse(text, tools, salvage, id_prefix=id_prefix)

    def with_arguments(self, arguments: Arguments) -> Renderer:
        """The same renderer with another way to write call arguments."""
        return Renderer(
            self.tokenizer,
            self.template.text,
            self.tool_format.name,
            source=self.template.source,
            variables=self.variables,
            stop_ids=self.stop_ids,
            arguments=arguments,
        )

    @property
    def encoder(self) -> TextEncoder:
        """Text to ids and back, special tokens guarded."""
        return self._encoder

    # Rendering and finding turns

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], add_generation_prompt: bool) -> str:
        if tools and not self._facts.shows_tools:
            raise ConfigError(f"{self.template.source}: the chat template shows no tools to the model; {CHOOSE}")
        if not self._facts.shows_results and any(message.role == "tool" for message in messages):
            raise ConfigError(f"{self.template.source}: the chat template does not show tool results; {CHOOSE}")
        return self.template.render_marked(
            self._view.messages(messages), self._view.tools(tools), add_generation_prompt
        )

    def _known(self, token: str) -> bool:
        return token in self._encoder.specials

    def _turn_ids(self, source: str) -> TurnIds | None:
        style = self._facts.style
        if style is None:
            if self.template.has_spans:
                return None
            raise ConfigError(
                f"{source}: cannot tell where assistant turns begin: the chat template is not ChatML, Llama 3 or "
                f"Gemma style and has no {{% generation %}} marks; add the marks, or {CHOOSE}"
            )
        ends = frozenset(self._encoder.specials[end] for end in style.ends if self._known(end))
        header = tuple(self._encoder.encode(style.header))
        if not ends or header[0] not in self._encoder.specials.values():
            raise ConfigError(
                f"{source}: the {style.name} template needs {style.header!r} and {style.ends[0]!r}, and the "
                "tokenizer does not have their markers as special tokens; add them, or use another template"
            )
        return TurnIds(header, tuple(self._encoder.encode(self._facts.suffix)), ends)

    def _encode_turns(self, marked: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a rendered text and its assistant spans."""
        style = self._facts.style
        if style is None or self._turn is None:
            return self._encode_spans(marked)
        text = without_spans(marked)
        ids = self._encoder.encode(text)
        spans, with_suffix = find_turns(ids, self._turn)
        opening = style.header + self._facts.suffix
        if len(spans) == text.count(style.header) and (not self._facts.suffix or with_suffix == text.count(opening)):
            return ids, spans
        # A token reached over the end of a header ("\n" of the header and "\n" of the reply as one). A sampled
        # reply can never be such a token, so the text is cut there.
        pieces = _cut_after(text, style.header, opening)
        ids = [token for piece in self._encoder.encode_pieces(pieces) for token in piece]
        return ids, find_turns(ids, self._turn)[0]

    def _encode_spans(self, marked: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The same for templates that mark what the model wrote."""
        pieces, inside = [], []
        for index, part in enumerate(marked.split(SPAN_START)):
            own, end, rest = part.partition(SPAN_END) if index else ("", SPAN_END, part)
            if not end:
                raise DataError("generation marks of the chat template are not closed or are nested")
            if index:
                pieces.append(own)
                inside.append(True)
            pieces.append(rest)
            inside.append(False)
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for own_piece, piece in zip(inside, self._encoder.encode_pieces(pieces), strict=True):
            if own_piece:
                spans.append((len(ids), len(ids) + len(piece)))
            elif spans and spans[-1][1] == len(ids) and piece and piece[0] in self.stop_ids:
                # The author marked the text alone; the end-of-turn token is the model's too.
                spans[-1] = (spans[-1][0], len(ids) + 1)
            ids.extend(piece)
        return ids, spans

    def _build(self, messages: Sequence[Message], marked: str, flags: Sequence[bool]) -> TokenConversation:
        ids, found = self._encode_turns(marked)
        own = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if len(found) != len(own):
            raise DataError(
                f"found {len(found)} assistant turns in the rendered text for {len(own)} assistant messages; "
                "the template merges, drops or invents turns: use another template",
                field="messages",
            )
        mask = [False] * len(ids)
        spans: list[Span] = []
        position, message_position = 0, 0
        for index, (start, end) in zip(own, found, strict=True):
            if start > position:
                spans.append(Span(_role_at(messages, message_position, index), message_position, position, start))
            spans.append(Span("assistant", index, start, end))
            position, message_position = end, index + 1
            if flags[index]:
                # A cut message has no end token of its own; the one that the template writes is not trained.
                if messages[index].extra.get(TRUNCATED) and end > start and ids[end - 1] in self.stop_ids:
                    end -= 1
                mask[start:end] = [True] * (end - start)
        if position < len(ids):
            after = message_position < len(messages)
            role = messages[message_position].role if after else "system"
            spans.append(Span(role, message_position if after else -1, position, len(ids)))
        return TokenConversation(ids=ids, loss_mask=mask, logprobs=[0.0] * len(ids), spans=spans)

    # Templates that rewrite history

    @staticmethod
    def _flags(messages: Sequence[Message], loss: Sequence[bool] | None) -> Sequence[bool]:
        if loss is None:
            return [True] * len(messages)
        if len(loss) != len(messages):
            raise DataError(f"{len(loss)} loss flags for {len(messages)} messages; expected one each", field="loss")
        return loss

    @staticmethod
    def _trained(messages: Sequence[Message], flags: Sequence[bool]) -> list[int]:
        return [index for index, message in enumerate(messages) if message.role == "assistant" and flags[index]]

    def _refuse_rewriting(self, messages: Sequence[Message], tools: Sequence[Tool], index: int, marked: str) -> None:
        prompt = self._render(messages[:index], tools, True)
        upto = marked if index == len(messages) - 1 else self._render(messages[: index + 1], tools, False)
        self._check_continues(prompt, upto, index)
        if not marked.startswith(upto):
            raise DataError(
                "the chat template renders this turn in another way once later messages follow, so these "
                "are not the tokens that serving saw; use segments(policy='segment')",
                field=f"messages[{index}]",
            )

    @staticmethod
    def _check_continues(prompt: str, upto: str, index: int) -> None:
        if not without_spans(upto).startswith(without_spans(prompt)):
            raise DataError(
                "the chat template does not continue its own generation prompt here, so what it writes is "
                "not what a model could have sampled; use another template",
                field=f"messages[{index}]",
            )


def _role_at(messages: Sequence[Message], start: int, end: int) -> Any:
    return messages[start].role if start < end else "system"


def _cut_after(text: str, header: str, opening: str) -> list[str]:
    """``text`` cut after every header, or after the whole opening where it stands."""
    pieces: list[str] = []
    position = 0
    while (found := text.find(header, position)) >= 0:
        cut = found + len(opening if text.startswith(opening, found) else header)
        pieces.append(text[position:cut])
        position = cut
    pieces.append(text[position:])
    return [piece for piece in pieces if piece]


def _own_template(tokenizer: Any, directory: Path) -> str:
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    if not isinstance(template, str) or not template:
        raise ConfigError(f"{directory}: the tokenizer has no chat template; {CHOOSE}")
    return template


def _generation_stops(directory: Path) -> list[int]:
    path = directory / "generation_config.json"
    if not path.is_file():
        return []
    stops = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    return [stops] if isinstance(stops, int) else list(stops or [])
