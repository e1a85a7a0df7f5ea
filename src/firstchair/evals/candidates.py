"""From flags to an engine: who is replayed, and which renderer its prompts and replies go through."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import read_jsonl
from firstchair.core.jsontext import dumps
from firstchair.core.model_dirs import not_a_model
from firstchair.data.golden.golden_set import GoldenSet
from firstchair.engines.base import Engine, Request
from firstchair.evals.replay import ReplayOptions, replay_async
from firstchair.evals.run_record import Run

if TYPE_CHECKING:
    from firstchair.chat.renderer import Arguments, Renderer
    from firstchair.engines.scripted import Reply

EngineName = Literal["transformers", "openai", "anthropic", "scripted"]

GOLD = "gold"
"""Model name of the scripted candidate that always gives the gold action."""


@dataclass(frozen=True)
class CandidateOptions:
    """How a candidate is reached."""

    engine: EngineName
    model: str
    """A model directory, a served model's name, or for ``scripted`` a file of replies or ``gold``."""
    base_url: str = ""
    tokenizer: Path | None = None
    """Directory whose tokenizer and template render prompts; makes ``openai`` send token ids."""
    template: str | None = None
    tool_format: str | None = None
    arguments: Arguments | None = None
    """How call arguments are written in prompts; ``None``, here and above, is as the model was trained."""
    adapter: str = ""
    dtype: str = "float32"
    device: str = "cpu"
    prefix_sharing: bool = True
    api_key_env: str = ""
    """Environment variable that holds the key."""
    concurrency: int = 16


def open_candidate(options: CandidateOptions, golden: GoldenSet) -> tuple[Engine, Renderer | None]:
    """Build the engine and its renderer. Raises ``ConfigError`` naming the flag that is missing or wrong."""
    if options.engine == "transformers":
        return _transformers(options)
    if options.engine == "scripted":
        return _scripted(options, golden), _renderer(options, options.tokenizer)
    if not options.base_url:
        example = "http://127.0.0.1:8000" + ("/v1" if options.engine == "openai" else "")
        raise ConfigError(f"--engine {options.engine} needs --base-url, e.g. {example}")
    if options.adapter:
        raise ConfigError("--adapter is for --engine transformers; a server is asked for an adapter by --model")
    key = _key(options)
    if options.engine == "anthropic":
        from firstchair.engines.anthropic_engine import AnthropicEngine

        return AnthropicEngine(options.base_url, options.model, api_key=key, concurrency=options.concurrency), None
    from firstchair.engines.openai_engine import OpenAIEngine

    renderer = _renderer(options, options.tokenizer)
    engine = OpenAIEngine(options.base_url, options.model, renderer, api_key=key, concurrency=options.concurrency)
    return engine, renderer


def _transformers(options: CandidateOptions) -> tuple[Engine, Renderer | None]:
    directory = Path(options.model)
    if not directory.is_dir():
        raise not_a_model(directory, "config.json")
    from firstchair.engines.transformers_engine import TransformersEngine

    renderer = _renderer(options, _prompts_from(options))
    engine = TransformersEngine(
        directory,
        renderer,
        options.dtype,
        prefix_sharing=options.prefix_sharing,
        adapter=options.adapter or None,
        device=options.device,
    )
    return engine, renderer


def _prompts_from(options: CandidateOptions) -> Path | None:
    """The directory whose tokenizer and template render prompts here, if any do."""
    from firstchair.chat.trained import prompts_from

    if options.tokenizer is not None or options.engine != "transformers":
        return options.tokenizer
    return prompts_from(Path(options.model), Path(options.adapter) if options.adapter else None)


def _renderer(options: CandidateOptions, directory: Path | None) -> Renderer | None:
    if directory is None:
        if options.template or options.tool_format or options.arguments:
            raise ConfigError(
                "--template, --tool-format and --arguments need --tokenizer DIR: prompts are rendered with it"
            )
        return None
    from firstchair.chat.trained import trained_renderer

    return trained_renderer(directory, options.template, options.tool_format, arguments=options.arguments)


def _trained_template(options: CandidateOptions) -> str:
    """Hash of the template that the candidate was trained with; empty when nothing says so."""
    from firstchair.chat.trained import read_rendering

    directory = _prompts_from(options)
    trained = read_rendering(directory) if directory else None
    return trained.template_hash if trained else ""


def _key(options: CandidateOptions) -> str:
    name = options.api_key_env or ("ANTHROPIC_API_KEY" if options.engine == "anthropic" else "OPENAI_API_KEY")
    key = os.environ.get(name, "")
    if not key and options.api_key_env:
        raise ConfigError(f"--api-key-env {name}: the environment variable is not set")
    return key or "none"


def _scripted(options: CandidateOptions, golden: GoldenSet) -> Engine:
    from firstchair.engines.scripted import ScriptedEngine

    replies: Mapping[str, Reply]
    if options.model == GOLD:
        replies = {decision.dp_id: decision.gold or decision.observed for decision in golden.decisions}
    else:
        replies = _read_replies(Path(options.model))

    def reply(request: Request) -> Reply:
        if request.request_id not in replies:
            raise LookupError(f"{options.model} has no reply for {request.request_id}")
        return replies[request.request_id]

    return ScriptedEngine(reply, model=options.model)


def _read_replies(path: Path) -> dict[str, Reply]:
    """``{dp_id, text}`` (raw, parsed by ``--tokenizer``'s syntax) or ``{dp_id, message}`` (OpenAI) a line."""
    from firstchair.chat.openai_wire import messages_from_openai

    replies: dict[str, Reply] = {}
    for number, row in read_jsonl(path):
        try:
            dp_id, text, message = (row.get(key) for key in ("dp_id", "text", "message"))
            if isinstance(dp_id, str) and isinstance(text, str):
                replies[dp_id] = text
            elif isinstance(dp_id, str) and isinstance(message, dict) and "text" not in row:
                replies[dp_id] = messages_from_openai([message])[0]
            else:
                raise DataError(f"found {dumps(row)[:120]}; expected {{dp_id, text}} or {{dp_id, message: {{…}}}}")
        except DataError as error:
            raise error.at(str(path), number) from None
    return replies


def _refuse_constrain(who: CandidateOptions, renderer: Renderer | None) -> None:
    """Raise ``ConfigError`` where every request would be refused for it."""
    if who.engine == "anthropic":
        raise ConfigError("--constrain: Anthropic's API has no such field; leave it away")
    if who.engine == "openai" and renderer is not None:
        raise ConfigError(
            "--constrain: with --tokenizer, ids are sent, and a server is not asked to constrain those; leave one of "
            "the two away, or use --engine transformers"
        )
    if who.engine == "transformers" and renderer is not None and renderer.tool_format.name != "hermes":
        raise ConfigError(
            f"--constrain: this template writes calls in the syntax {renderer.tool_format.name!r}, and only 'hermes' "
            "can be constrained in this process; leave it away"
        )


def replay_candidate(golden: GoldenSet, who: CandidateOptions, out: Path, options: ReplayOptions) -> Run:
    """Open a candidate, replay ``golden`` against it, close it."""

    async def whole() -> Run:
        engine, renderer = open_candidate(who, golden)
        try:
            if options.constrain:
                _refuse_constrain(who, renderer)
            marked = replace(options, trained_template=_trained_template(who))
            return await replay_async(golden, engine, renderer, out, marked)
        finally:
            await engine.close()

    return asyncio.run(whole())
