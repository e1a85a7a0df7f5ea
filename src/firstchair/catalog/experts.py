"""Models and tools in one flat list, as data: what an orchestrator may call.

Every model is a function of its own beside the tools. There is no tool with a slot for a model's name: what is learnt
about one model then never rides on another's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import Field, field_validator, model_validator

from firstchair.chat.messages import Tool
from firstchair.core.config import Strict, load_fields, validate
from firstchair.core.errors import ConfigError
from firstchair.core.yamltext import read_yaml

DispatchKind = Literal["model", "web_search", "local_search", "code_interpreter", "other"]
Provider = Literal["openai", "anthropic", "gemini", "openrouter", "local"]
SizeClass = Literal["small", "medium", "frontier"]

EXCLUDE_VARIABLE = "FIRSTCHAIR_EXCLUDE_EXPERTS"
"""Environment variable: parts of names, with commas in between, of experts that must not be used."""
MAX_NAME = 64
"""Characters of a function's name; the limit of OpenAI's and Anthropic's APIs."""


def _one_text(name: str, description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": description}},
        "required": [name],
    }


PARAMETERS: Mapping[DispatchKind, dict[str, Any]] = MappingProxyType(
    {
        "model": _one_text("input", "The whole question: the model sees nothing else of this conversation."),
        "web_search": _one_text("query", "What to search for."),
        "local_search": _one_text("query", "What to search for."),
        "code_interpreter": _one_text("code", "A whole Python program; print what you want to see."),
    }
)
"""JSON Schema by kind; tools of kind ``other`` bring their own."""


def tool_name(model: str) -> str:
    """The name of a model as a function: ``Qwen/Qwen3.5-9B`` → ``qwen3_5_9b``. It never depends on the route."""
    return re.sub(r"[^a-z0-9]", "_", model.rpartition("/")[2].lower())


class Expert(Strict):
    """A model that can be asked as a tool."""

    model: str = Field(min_length=1, max_length=200)
    """Its id, as its makers call it; also what a local server is asked for."""
    category: Literal["cloud_frontier", "local_open_source"]
    summary: str = Field(min_length=1)
    """What it is good at: the description without its price line."""
    native: Literal["openai", "anthropic", "gemini"] | None = None
    """The provider whose own API serves it."""
    openrouter: str = ""
    """OpenRouter's id; empty: not asked for there."""
    size_class: SizeClass | None = None
    """What an anonymised description says of its standing; it also decides the cost tier there."""
    params_b: float | None = Field(default=None, gt=0)
    """Billions of parameters. ``None``: read from a name such as ``…-9b``, else unspecified."""
    latency_s: float | None = Field(default=None, ge=0)
    """Mean seconds for an answer, where it was measured."""
    hides_cost: bool = False
    """Leave the price line out of its description."""
    max_tokens: int = Field(default=8192, ge=16)
    """Of one answer, reasoning included."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """``None``: whatever its server takes."""

    @field_validator("model")
    @classmethod
    def _has_a_name(cls, model: str) -> str:
        name = tool_name(model)
        if not 1 <= len(name) <= MAX_NAME:
            raise ValueError(f"gives a function name of {len(name)} characters; expected 1 to {MAX_NAME}")
        return model

    @property
    def name(self) -> str:
        """Its name in the catalog, the same on every route."""
        return tool_name(self.model)


class BasicTool(Strict):
    """A tool that is no model."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    kind: Literal["web_search", "local_search", "code_interpreter", "other"] = "other"
    summary: str = ""
    """Its description."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """JSON Schema; empty for a kind that has one of its own."""

    @property
    def category(self) -> Literal["basic_tool"]:
        """The tag in its spec."""
        return "basic_tool"

    @property
    def schema_of_kind(self) -> dict[str, Any]:
        """``parameters``, or those of its kind."""
        return self.parameters or PARAMETERS.get(self.kind, {})


class Route(Strict):
    """Where one expert is asked, whatever else would apply."""

    provider: Provider
    """Also says which API is spoken there; ``local`` costs nothing."""
    model: str = Field(min_length=1)
    """As that server calls it."""
    base_url: str = ""
    """Empty: the provider's own."""
    key_env: str = ""
    """Environment variable of the key; empty: the provider's own (none for ``local``)."""

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        if self.provider == "local" and not self.base_url:
            raise ValueError("provider local needs base_url, such as http://127.0.0.1:8000/v1")
        return self


class ProviderLimits(Strict):
    """How hard one provider may be asked, over all its experts."""

    concurrency: int = Field(default=16, ge=1)
    """Calls under way at once."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    timeout_s: float = Field(default=60.0, gt=0)
    """Of one try."""
    retries: int = Field(default=2, ge=0)
    """After the first try."""


class ExpertCatalog(Strict):
    """Experts and tools, and how the experts are reached."""

    experts: tuple[Expert, ...] = Field(min_length=1)
    tools: tuple[BasicTool, ...] = ()
    exclude: tuple[str, ...] = ()
    """Parts of names or models of experts that must not be used; upper and lower case are one."""
    endpoints: dict[str, str] = Field(default_factory=dict)
    """Expert → base URL, with its ``/v1``, of a server of OpenAI's API that serves it here."""
    routes: dict[str, Route] = Field(default_factory=dict)
    """Expert → where it is asked, before everything else."""
    providers: dict[Provider, ProviderLimits] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [expert.name for expert in self.experts] + [tool.name for tool in self.tools]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name} stands twice among experts and tools; a name belongs to one")
        known = [expert.name for expert in self.experts]
        for section, given in (("endpoints", self.endpoints), ("routes", self.routes)):
            for name in given:
                if name not in known:
                    near = difflib.get_close_matches(name, known, n=1)
                    hint = f"; did you mean {near[0]}?" if near else f"; expected one of {', '.join(known)}"
                    raise ValueError(f"{section}.{name}: no such expert{hint}")
        for name, url in self.endpoints.items():
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"endpoints.{name}: expected an address such as http://127.0.0.1:8000/v1")
        return self

    @classmethod
    def load(cls, path: Path | None = None, exclude: Iterable[str] = ()) -> ExpertCatalog:
        """The catalog of ``path``, whose sections take the place of the packaged ones; the packaged one for ``None``.

        Experts that its ``exclude`` or ``exclude`` here names are gone. Raises ``ConfigError`` naming the field.
        """
        source = "experts.yaml" if path is None else str(path)
        text = resources.files("firstchair.catalog").joinpath("experts.yaml").read_text(encoding="utf-8")
        fields = read_yaml(text, "experts.yaml") | ({} if path is None else load_fields(path))
        catalog = validate(cls, fields, source=source)
        return catalog.without((*catalog.exclude, *exclude))

    def without(self, parts: Iterable[str]) -> ExpertCatalog:
        """This catalog without the experts whose name or model has one of ``parts`` in it.

        Raises ``ConfigError`` when no expert is left.
        """
        wanted = [part.strip().lower() for part in parts if part.strip()]
        kept = [one for one in self.experts if not any(p in one.name or p in one.model.lower() for p in wanted)]
        if not kept:
            raise ConfigError(f"exclude: {', '.join(wanted)} leaves no expert; leave one in")
        return self.model_copy(update={"experts": tuple(kept)})

    def only(self, names: Collection[str]) -> ExpertCatalog:
        """This catalog with the experts of ``names`` alone. Raises ``ConfigError`` for one that it does not have."""
        for name in names:
            self.expert(name)
        return self.model_copy(update={"experts": tuple(one for one in self.experts if one.name in names)})

    def with_tools(self, tools: Iterable[Tool]) -> ExpertCatalog:
        """This catalog with ``tools`` as they are offered where they run: those of MCP servers, say.

        A tool whose name is here already keeps its kind and gets that description and schema; any other is added as
        kind ``other``. Raises ``ConfigError`` for the name of an expert.
        """
        mixed = {tool.name: tool for tool in self.tools}
        for tool in tools:
            known = mixed.get(tool.name)
            fields = {
                "name": tool.name,
                "kind": known.kind if known else "other",
                "summary": tool.description or "",
                "parameters": tool.parameters,
            }
            mixed[tool.name] = validate(BasicTool, fields, source=f"tool {tool.name}")
        names = {expert.name for expert in self.experts}
        taken = names.intersection(mixed)
        if taken:
            raise ConfigError(f"tool {min(taken)}: an expert has that name; rename the tool or exclude the expert")
        return self.model_copy(update={"tools": tuple(mixed.values())})

    def expert(self, name: str) -> Expert:
        """The expert of that name. Raises ``ConfigError`` naming those there are."""
        for expert in self.experts:
            if expert.name == name:
                return expert
        known = ", ".join(expert.name for expert in self.experts)
        raise ConfigError(f"{name}: no such expert; expected one of {known}")

    def with_expert(self, expert: Expert) -> ExpertCatalog:
        """This catalog with ``expert`` in the place of the one of its name."""
        self.expert(expert.name)
        experts = tuple(expert if one.name == expert.name else one for one in self.experts)
        return self.model_copy(update={"experts": experts})

    def to_yaml(self) -> str:
        """YAML that ``load`` reads back equal; fields at their default are left out."""
        data = self.model_dump(mode="json", exclude_defaults=True)
        return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)


def exclusions(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What ``FIRSTCHAIR_EXCLUDE_EXPERTS`` excludes."""
    return tuple(part.strip() for part in environ.get(EXCLUDE_VARIABLE, "").split(",") if part.strip())
