"""Chat templates: the model's own Jinja, compiled once, sandboxed, and without a clock.

The environment matches what transformers and vLLM give a template (``tojson`` that keeps non-ASCII, loop
controls, ``raise_exception``, ``{% generation %}``), except ``strftime_now``: a prompt that changes at midnight
can be neither trained on nor compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from firstchair.core.errors import ConfigError, DataError

PINNED: Mapping[str, str] = MappingProxyType(
    {
        "tiny": "tiny.jinja",
        "qwen3": "qwen3.jinja",
        "llama3": "llama3.jinja",
        "gemma": "gemma.jinja",
    }
)
"""Templates that ship with us, for base models and tests: name → file."""

CHOOSE = f"choose one with --template, or data.template in a recipe: {', '.join(sorted(PINNED))}, or a .jinja file"
"""What to do about a template that does not serve."""

# Noncharacters: never assigned, so nearly never in real text; where they are, ``guard_marks`` escapes them.
SPAN_START, SPAN_END = "\ufdd0", "\ufdd1"
"""Written around ``{% generation %}`` blocks while rendering."""
GUARD = "\ufdd2"
"""Begins an escape inside text that came from a message: a dot after it breaks special-token text, so that it is
not taken for a control token; a digit stands for one of the three marks themselves."""
QUOTE = GUARD + "."
_MARKS = {SPAN_START: GUARD + "0", SPAN_END: GUARD + "1", GUARD: GUARD + "2"}
_ESCAPES = {QUOTE: "", **{escape: mark for mark, escape in _MARKS.items()}}
_ANY_MARK, _ANY_ESCAPE = re.compile(f"[{''.join(_MARKS)}]"), re.compile(f"{GUARD}[.012]")


def guard_marks(text: str) -> str:
    """Message text with the marks of rendering escaped."""
    return _ANY_MARK.sub(lambda match: _MARKS[match[0]], text)


def unguard(text: str) -> str:
    """Rendered text as it is meant: escapes undone."""
    return _ANY_ESCAPE.sub(lambda match: _ESCAPES[match[0]], text) if GUARD in text else text


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}``: what the model wrote."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_wrap"), [], [], body).set_lineno(line)

    def _wrap(self, caller: Callable[[], str]) -> str:
        return f"{SPAN_START}{caller()}{SPAN_END}"


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters; a model must see `<`, not `\u003c`.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


_OF_DICT = frozenset(dir(dict))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a short way to the items of a dict, which are most of what chat templates ask for."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """``obj.attribute``. Jinja first tries the attribute of a dict, and that exception costs most."""
        if type(obj) is dict and attribute in obj and attribute not in _OF_DICT:
            return obj[attribute]
        return super().getattr(obj, attribute)


@lru_cache(maxsize=64)
def _compile(text: str) -> jinja2.Template:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment.from_string(text)


def pinned(name: str) -> str:
    """The text of a template that ships with us; raises ``ConfigError`` for an unknown name."""
    if name not in PINNED:
        raise ConfigError(f"template {name!r} is unknown; use one of {sorted(PINNED)} or the path of a .jinja file")
    return (resources.files("firstchair.chat") / "templates" / PINNED[name]).read_text(encoding="utf-8")


def load_template(reference: str) -> str:
    """Template text from a pinned name, or from the path of a ``.jinja`` file."""
    if reference in PINNED:
        return pinned(reference)
    path = Path(reference)
    if path.suffix in {".jinja", ".jinja2", ".j2"} and path.is_file():
        return path.read_text(encoding="utf-8")
    return pinned(reference)


class ChatTemplate:
    """A compiled chat template with the fixed variables it is rendered with."""

    def __init__(self, text: str, variables: Mapping[str, Any] | None = None, *, source: str = "chat template"):
        """Compile ``text``. ``variables`` are given to every rendering: special tokens, ``enable_thinking``.

        Raises ``ConfigError`` when the template is not Jinja or reads the clock.
        """
        if "strftime_now" in text:
            raise ConfigError(
                f"{source}: the template reads the clock (strftime_now), so its prompts change from day to day; "
                f"{CHOOSE}, or give a copy with a literal date"
            )
        self.text, self.variables, self.source = text, dict(variables or {}), source
        try:
            self._template = _compile(text)
        except jinja2.TemplateError as error:
            raise ConfigError(f"{source}: not a Jinja template: {error}") from None
        self.has_spans = re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", text) is not None

    def render_marked(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], add_generation_prompt: bool
    ) -> str:
        """The rendered text with generation spans still marked by ``SPAN_START`` and ``SPAN_END``.

        Raises ``DataError`` when the template refuses the conversation (``raise_exception``, a missing field).
        """
        try:
            return self._template.render(
                messages=messages,
                # "No tools" has exactly one form: templates test the variable's truth or its being none.
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.variables,
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise DataError(f"the chat template refuses this conversation: {error}", path=self.source) from None


def without_spans(text: str) -> str:
    """Rendered text without the marks of generation spans."""
    return text.replace(SPAN_START, "").replace(SPAN_END, "") if SPAN_START in text else text
