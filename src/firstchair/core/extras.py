"""Packages that come with an extra of ours, and what to install when one is missing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType

from firstchair.core.errors import ConfigError

PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "train": ("llguidance", "peft", "safetensors", "tokenizers", "torch", "transformers"),
        "gateway": ("httptools", "starlette", "uvicorn"),
        "mcp": ("mcp",),
        "inspect": ("inspect_ai", "inspect_evals", "openai"),
        "tools": ("bm25s", "ddgs", "math_verify", "pyarrow", "pypdf"),
    }
)
"""Extra → the packages that cannot be done without where it is needed."""


def require(*extras: str) -> None:
    """Raise ``ConfigError`` with the command to run, unless every package of ``extras`` is there."""
    missing = [package for extra in extras for package in PACKAGES[extra] if find_spec(package) is None]
    if missing:
        raise ConfigError(advice(missing, extras))


def extra_of(package: str | None) -> str | None:
    """The extra that brings ``package`` (or one of its modules); ``None`` when none does."""
    root = (package or "").partition(".")[0]
    return next((extra for extra, packages in PACKAGES.items() if root in packages), None)


def advice(missing: list[str], extras: tuple[str, ...]) -> str:
    """What is not installed, and the command that installs it."""
    return f"{', '.join(missing)}: not installed; run: pip install 'firstchair[{','.join(extras)}]'"
