"""Write the reference of ``gateway.yaml``, ``docs/gateway-config.md``, from the models that read it.

    python docs/generate_gateway_config.py

A test fails when the page is stale. Names, defaults and limits come from the pydantic models; what a field means is
the string below it, taken from their source.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import annotated_types
from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from firstchair.core.atomic import write_text
from firstchair.gateway.config import GatewayConfig
from firstchair.gateway.control.slots import SlotConfig, check_name
from firstchair.gateway.reload import changeable_fields

PAGE = Path(__file__).parent / "gateway-config.md"

HEAD = """\
# gateway.yaml

<!-- Written by docs/generate_gateway_config.py; change the models, then run it again. -->

Every field of the [gateway](gateway.md)'s file and of a slot. The file is strict: an unknown field is an error that
names the nearest known one. Relative paths count from the file's folder. `--set` overrides a field for one start:
`firstchair gateway serve --set listen.port=9000`. `deploy/gateway.yaml` is a commented example.

The file is read at the start and at a [reload](gateway-operations.md#reload), which takes from it
RELOADED;
all else waits for a restart. Slots and keys live in the database: slots of the file are written there only while it
has none; after that `firstchair gateway slots set` changes them, on the next request of every worker.

A **slot** is also a file of its own: `firstchair gateway slots show SLOT` prints it, `slots set FILE` takes it,
and a file of several under `slots`, `gateway.yaml` too: all of them or none. `--dry-run` shows what would change.

A request's `model` finds its slot so: a slot of that name, then a plain name in `match`, then the glob with the most
characters that stand for themselves; of equals the first in the alphabet. The provider gets the route's model name in
its place.

A *name* is up to 64 of a–z, 0–9, `.`, `_`, `-`, beginning with a letter or digit.
"""

LABELS = {str: "text", int: "whole number", float: "number", bool: "true, false", Path: "path"}


def page() -> str:
    """The whole page as Markdown."""
    found = list(sections())
    *most, last = (f"`{name}`" for name in changeable_fields())
    head = HEAD.replace("RELOADED", f"{', '.join(most)} and {last}")
    return "\n".join([head, *(section(title, model) for title, model in found)])


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Each model once, under the place where it stands first: the file, then the slot."""
    seen: set[type[BaseModel]] = set()
    for title, model in (("The file", GatewayConfig), ("A slot", SlotConfig)):
        yield from _below(title, "", model, seen)


def _below(
    title: str, path: str, model: type[BaseModel], seen: set[type[BaseModel]]
) -> Iterator[tuple[str, type[BaseModel]]]:
    if model in seen or (model is SlotConfig and path):
        return
    seen.add(model)
    yield title, model
    above = path or ("slots" if model is SlotConfig else "")
    for name, info in model.model_fields.items():
        for inner in models_in(info.annotation):
            below = f"{above}.{name}" if above else name
            yield from _below(f"`{below}`", below, inner, seen)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for argument in typing.get_args(annotation):
        yield from models_in(argument)


def section(title: str, model: type[BaseModel]) -> str:
    """Heading, what the model says of itself, and its fields."""
    about = in_words(model.__doc__ or "")
    notes = notes_of(model)
    lines = [f"## {title}", "", about, "", "| field | takes | default | |", "| --- | --- | --- | --- |"]
    for name, info in model.model_fields.items():
        lines.append(f"| `{name}` | {takes(info)} | {default(info)} | {notes.get(name, '')} |")
    return "\n".join(lines) + "\n"


def notes_of(model: type[BaseModel]) -> Mapping[str, str]:
    """Field → the string that stands below it in the source, of base classes too."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not issubclass(cls, BaseModel) or not cls.__module__.startswith("firstchair.gateway"):
            continue
        (tree,) = ast.parse(inspect.getsource(cls)).body
        assert isinstance(tree, ast.ClassDef)
        for field, note in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(note, ast.Expr):
                text = ast.literal_eval(note.value)
                found[field.target.id] = cell(in_words(text))
    return found


def in_words(text: str) -> str:
    """A docstring on one line of Markdown; YAML has no ``None``."""
    line = " ".join(text.split()).replace("``", "`")
    return re.sub(r"`None`(?= on|:|$)", "none", line)


def takes(info: FieldInfo) -> str:
    """Type and limits of a field."""
    return _limited(info.annotation, info.metadata)


def _limited(annotation: Any, marks: Iterable[Any]) -> str:
    if any(isinstance(mark, AfterValidator) and mark.func is check_name for mark in marks):
        return "name"
    return ", ".join([kind(annotation), *(text for mark in marks if (text := bound(mark)))])


def kind(annotation: Any) -> str:
    """A type in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    if origin is typing.Annotated:
        return _limited(arguments[0], arguments[1:])
    if origin in (types.UnionType, typing.Union):
        return " or ".join(kind(one) for one in arguments if one is not type(None))
    if origin is tuple:
        return f"list of {kind(arguments[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"{kind(arguments[0])} → {kind(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return LABELS[annotation]


def bound(mark: Any) -> str:
    """A limit in words; empty for what is none."""
    if isinstance(mark, annotated_types.Ge):
        return f"≥ {number(mark.ge)}"
    if isinstance(mark, annotated_types.Gt):
        return f"> {number(mark.gt)}"
    if isinstance(mark, annotated_types.Le):
        return f"≤ {number(mark.le)}"
    if isinstance(mark, annotated_types.MinLen):
        return f"at least {mark.min_length}"
    if isinstance(mark, annotated_types.MaxLen):
        return f"at most {mark.max_length}"
    return ""


def number(value: Any) -> str:
    return f"{value:,}"


def default(info: FieldInfo) -> str:
    """The default as YAML would have it."""
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    assert value is not PydanticUndefined
    if isinstance(value, BaseModel):
        return ""
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def cell(text: str) -> str:
    """Text that a table's cell can hold."""
    return re.sub(r"\|", r"\\|", text)


if __name__ == "__main__":
    write_text(PAGE, page(), force=True)
