"""How a model was trained to be prompted: ``firstchair.json`` beside its weights, and the renderer that obeys it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from firstchair.chat.renderer import Arguments, Renderer
from firstchair.core.errors import ConfigError, DataError

RENDERING = "firstchair.json"


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """What, beside the tokenizer's files, decides how prompts are written."""

    template_hash: str
    tool_format: str
    arguments: Arguments
    variables: dict[str, Any] = {}


def write_rendering(renderer: Renderer, directory: Path) -> None:
    """Write ``firstchair.json`` into a new model directory."""
    rendering = Rendering(
        template_hash=renderer.template_hash,
        tool_format=renderer.tool_format.name,
        arguments=renderer.arguments,
        variables=renderer.variables,
    )
    (directory / RENDERING).write_bytes(msgspec.json.format(msgspec.json.encode(rendering), indent=2) + b"\n")


def read_rendering(directory: Path) -> Rendering | None:
    """How the model in ``directory`` was trained; ``None``: nothing says so. Raises ``DataError`` at a bad file."""
    path = directory / RENDERING
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Rendering)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"not what training writes: {error}; export the model again", path=str(path)) from None


def prompts_from(model: Path, adapter: Path | None) -> Path:
    """The directory whose tokenizer and template the weights were trained with: the adapter's own, if it has them."""
    return adapter if adapter is not None and (adapter / "tokenizer.json").is_file() else model


def trained_renderer(
    directory: Path | str,
    template: str | None = None,
    tool_format: str | None = None,
    *,
    arguments: Arguments | None = None,
) -> Renderer:
    """The renderer of a model directory. What is not given is as the model was trained, as far as the directory says.

    Whoever gives a template, a syntax or a spelling of arguments means it, and may get other prompts than training's.
    Raises ``ConfigError`` when nothing is given and the files there no longer render as they did in training.
    """
    trained = read_rendering(Path(directory))
    if trained is None:
        return Renderer.from_pretrained(directory, template, tool_format, arguments=arguments or "verbatim")
    renderer = Renderer.from_pretrained(
        directory,
        template,
        # Another template has its own syntax.
        tool_format or (trained.tool_format if template is None else None),
        variables=trained.variables,
        arguments=arguments or trained.arguments,
    )
    as_trained = template is None and tool_format is None and arguments is None
    if as_trained and renderer.template_hash != trained.template_hash:
        raise ConfigError(
            f"{directory}: the model was trained with template {trained.template_hash[:12]}…, and the tokenizer and "
            f"template there now render as {renderer.template_hash[:12]}…; put the exported files back, or give "
            "--template, --tool-format or --arguments to render otherwise on purpose"
        )
    return renderer
