"""Recipes: one YAML file becomes one frozen pydantic model; ``--set a.b=c`` overrides; unknown keys are errors."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from firstchair.core.errors import ConfigError
from firstchair.core.yamltext import read_yaml


class Strict(BaseModel):
    """Base of every config model: frozen; an unknown key is an error, not a surprise, and so is a number like inf."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def load_recipe(model: type[Model], path: Path | None, overrides: Sequence[str] = ()) -> Model:
    """Read ``path`` (or start from defaults when ``None``), apply ``a.b=value`` overrides, validate.

    Values of overrides are YAML: ``lr=1e-3``, ``tags=[a, b]``. Raises ``ConfigError`` naming the field, what
    was found, what was expected and, for an unknown key, the nearest known one.
    """
    data = {} if path is None else load_fields(path)
    for override in overrides:
        _apply(data, override)
    return validate(model, data, source=str(path) if path else "command line")


@contextlib.contextmanager
def fields_of(path: Path | None) -> Iterator[None]:
    """A ``ConfigError`` about a field, raised while what a file names is opened, begins with that file."""
    try:
        yield
    except ConfigError as error:
        if path is None:
            raise
        raise ConfigError(f"{path}: {error}") from None


def load_fields(path: Path) -> dict[str, Any]:
    """The fields of a YAML file as they stand there. Raises ``ConfigError``."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; check the path") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a YAML file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    data = read_yaml(text, str(path)) or {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: found {type(data).__name__}; expected a mapping of fields")
    return data


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override}: expected field.name=value")
    *parents, last = key.split(".")
    node: Any = data
    for name in parents:
        node = node.setdefault(name, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise ConfigError(f"--set {override}: {name} is not a section; it holds a value")
    value = read_yaml(text, f"--set {override}")
    # YAML 1.1 reads 1e-3 as a string; people mean the number.
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    node[last] = value


def validate(model: type[Model], data: Any, *, source: str) -> Model:
    """``data`` as ``model``; raises ``ConfigError`` with one line per problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = [f"{source} is not a valid {model.__name__}:"]
        for problem in _problems(error):
            path = ".".join(str(part) for part in problem["loc"])
            if problem["type"] == "extra_forbidden":
                near = difflib.get_close_matches(str(problem["loc"][-1]), known_fields(model), n=1, cutoff=0.4)
                hint = f"; did you mean {near[0]}?" if near else ""
                lines.append(f"  {path}: unknown field{hint}")
            else:
                # A whole section is not repeated: what is wrong in it has been said.
                found = "" if isinstance(problem["input"], dict) else f"; found {problem['input']!r}"
                words = words_of(problem)
                lines.append(f"  {path}: {words}{found}" if path else f"  {words}{found}")
        raise ConfigError("\n".join(lines)) from None


def words_of(problem: ErrorDetails) -> str:
    """What is wrong, without the heading that pydantic gives to our own words."""
    return problem["msg"].removeprefix("Value error, ")


def _problems(error: ValidationError) -> list[ErrorDetails]:
    """Each mistake once: pydantic counts right members only, so a list of wrong ones is too short for it as well."""
    found = error.errors()
    return [
        one
        for one in found
        if one["type"] != "too_short"
        or not any(other is not one and other["loc"][: len(one["loc"])] == one["loc"] for other in found)
    ]


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """``(field, before, now)`` for every leaf of nested fields that differs; ``None`` where a side has none."""
    found: list[tuple[str, Any, Any]] = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{prefix}{name}.")
        elif old != new:
            found.append((f"{prefix}{name}", old, new))
    return found


def known_fields(model: type[BaseModel]) -> list[str]:
    """Field names of a config model and of every model nested in it."""
    names: list[str] = []
    todo, seen = [model], set[type[BaseModel]]()
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        for name, info in current.model_fields.items():
            names.append(name)
            todo.extend(_models_in(info.annotation))
    return names


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found: list[type[BaseModel]] = []
    for argument in getattr(annotation, "__args__", ()):
        found.extend(_models_in(argument))
    return found
