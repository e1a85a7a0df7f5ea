"""Where a policy is sampled while it is trained: the section ``engine`` of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from firstchair.core.config import Strict
from firstchair.train.config import ServerAddress, type_or


class InProcessEngine(Strict):
    """In this process; new weights are copied in memory."""

    type: Literal["transformers"] = "transformers"


class _ServerEngine(ServerAddress):
    """A server that runs already; new weights reach it as files. Loading a whole model is one answer."""

    dtype: Literal["float32", "bfloat16"]
    """What the server computes in, its ``--dtype``: whole models are written so, and what the probe after a push
    tolerates follows from it."""
    weights_dir: Path | None = None
    """Folder for the weights on their way, which the server must see under the same path, and which belongs to this
    run alone; ``pushed`` in the run directory when left out. The newest stay."""


class VllmServer(_ServerEngine):
    """vLLM; ``base_url`` with its ``/v1``."""

    type: Literal["vllm"] = "vllm"
    model: str = Field(min_length=1)
    """The served name of the model that the run begins with. An adapter is served beside it, as
    ``<model>-<name of the run directory>``."""


class SglangServer(_ServerEngine):
    """SGLang."""

    type: Literal["sglang"] = "sglang"


ServerSpec = VllmServer | SglangServer
EngineSpec = Annotated[
    Annotated[InProcessEngine, Tag("transformers")]
    | Annotated[VllmServer, Tag("vllm")]
    | Annotated[SglangServer, Tag("sglang")],
    Discriminator(type_or("transformers")),
]


def shaping_of(spec: InProcessEngine | ServerSpec) -> dict[str, Any]:
    """What of it a resumed run must share: not where a server is. The default adds nothing to older recipes."""
    return {} if isinstance(spec, InProcessEngine) else {"engine": {"type": spec.type, "dtype": spec.dtype}}
