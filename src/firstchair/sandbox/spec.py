"""Which sandbox there is, as a YAML file says; and the one place where it is opened.

sandbox:
  type: process
  limits: {wall_s: 5, memory_mb: 256}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from firstchair.core.config import Strict
from firstchair.sandbox.base import Sandbox, SandboxLimits
from firstchair.sandbox.container import ContainerSandbox, Engine
from firstchair.sandbox.process import Namespaces, ProcessSandbox


class ProcessSpec(Strict):
    """Processes of this machine, Linux only."""

    type: Literal["process"] = "process"
    namespaces: Namespaces = "required"
    """``if_available`` accepts weaker isolation where this machine has no namespaces for us, ``off`` asks for it."""
    readable: tuple[Path, ...] = ()
    """Absolute; what commands may read beside the system and this Python."""
    limits: SandboxLimits = SandboxLimits()


class ContainerSpec(Strict):
    """Containers of an engine that is installed here."""

    type: Literal["container"]
    engine: Engine = "docker"
    image: str = Field(min_length=1)
    """Here already: nothing is pulled. For apptainer a ``.sif`` file or a folder, too."""
    limits: SandboxLimits = SandboxLimits()


SandboxSpec = Annotated[ProcessSpec | ContainerSpec, Field(discriminator="type")]


def open_sandbox(spec: ProcessSpec | ContainerSpec) -> Sandbox:
    """The sandbox of ``spec``. Raises ``ConfigError`` where it cannot be."""
    if isinstance(spec, ContainerSpec):
        return ContainerSandbox(engine=spec.engine, image=spec.image, limits=spec.limits)
    return ProcessSandbox(namespaces=spec.namespaces, readable=spec.readable, limits=spec.limits)
