"""A model directory loaded for inference: weights, adapter, limits and the hash that names them."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firstchair.core.errors import ConfigError
from firstchair.core.hashing import set_sha256, sha256_file
from firstchair.engines.quiet import quiet_loading

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model ready to run."""

    model: Any
    """``transformers`` model in evaluation mode, adapter merged."""
    source: str
    adapter: str | None
    revision: str
    """Hash of every byte of the weight files; see ``weights_revision``."""
    vocab_size: int
    context_window: int | None
    layers: int
    stop_ids: tuple[int, ...]
    """End-of-sequence tokens that the model's own configuration names."""
    attention: str
    """The attention that transformers chose for it."""
    arguments: frozenset[str]
    """Names that ``forward`` takes."""

    @property
    def cache_argument(self) -> str:
        """How this transformers version calls the cache argument of ``forward``."""
        return "cache" if "cache" in self.arguments else "past_key_values"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def with_weights(self, weights: Mapping[str, Tensor]) -> LoadedModel:
        """The same model with ``weights`` copied into it, by the names of its parameters; others are ignored.

        Raises ``ConfigError`` when a parameter is missing or has another shape; nothing is changed then.
        """
        own: dict[str, Tensor] = dict(self.model.named_parameters())
        for name, parameter in own.items():
            found = weights.get(name)
            if found is None or found.shape != parameter.shape:
                shape = "nothing" if found is None else f"shape {tuple(found.shape)}"
                raise ConfigError(f"weights: {name}: found {shape}; expected shape {tuple(parameter.shape)}")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(weights[name])
        return replace(self, revision=parameters_revision(own))


def weights_revision(model_dir: Path, adapter: Path | None = None, base: Mapping[str, str] | None = None) -> str:
    """SHA-256 over the names and full contents of the weight files, the adapter's and its config's included.

    Contents, not headers: two steps of one training run differ in nothing else. Reading costs about a second
    a gigabyte; ``base`` is ``base_hashes(model_dir)`` when that is known.
    """
    files = dict(base_hashes(model_dir) if base is None else base)
    if adapter is not None:
        files |= {f"adapter/{file.name}": sha256_file(file) for file in weight_files(adapter)}
        # The same matrices at another alpha are another adapter.
        files["adapter/adapter_config.json"] = sha256_file(adapter / "adapter_config.json")
    return set_sha256(files)


def parameters_revision(parameters: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types and contents of weights in memory; not that of any file they are written to."""
    digest = hashlib.sha256()
    for name in sorted(parameters):
        value = parameters[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def base_hashes(model_dir: Path) -> dict[str, str]:
    """SHA-256 of each weight file of a model directory, by file name."""
    return {file.name: sha256_file(file) for file in weight_files(model_dir)}


def check_device(device: str) -> None:
    """Raise ``ConfigError`` unless torch can put a tensor on ``device``; asked before anything large is read."""
    try:
        usable = not torch.empty(1, device=device).is_meta
        reason = "it holds no numbers"
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        usable, reason = False, str(error).partition("\n")[0]
    if not usable:
        raise ConfigError(
            f"device: found {device!r}, and torch cannot use it here ({reason}); expected cpu or cuda:N"
        )


def weight_files(directory: Path) -> list[Path]:
    """Weight files of a model or adapter directory: safetensors when there are any, else PyTorch files."""
    for pattern in _WEIGHT_PATTERNS:
        if found := sorted(directory.glob(pattern)):
            return found
    raise ConfigError(f"{directory}: no weight files; expected *.safetensors, as save_pretrained writes them")


def load_model(
    model_dir: Path, *, dtype: str = "float32", adapter: Path | None = None, device: str = "cpu"
) -> LoadedModel:
    """Read ``model_dir`` (``config.json`` and weights) and merge a PEFT ``adapter`` into it.

    Raises ``ConfigError`` for a device that is not there, a missing directory, an unknown dtype or files that
    transformers cannot read.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    check_device(device)
    if dtype not in DTYPES:
        raise ConfigError(f"dtype: found {dtype!r}; expected one of {', '.join(DTYPES)}")
    if not (model_dir / "config.json").is_file():
        raise ConfigError(f"{model_dir}: no config.json; expected a model directory as save_pretrained writes it")
    if adapter is not None and not (adapter / "adapter_config.json").is_file():
        raise ConfigError(f"{adapter}: no adapter_config.json; expected a PEFT adapter directory")
    revision = weights_revision(model_dir, adapter)
    try:
        with quiet_loading():
            model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=DTYPES[dtype])
            if adapter is not None:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        place = model_dir if adapter is None else f"{model_dir} with adapter {adapter}"
        raise ConfigError(f"{place}: cannot be loaded: {error}") from error
    model = model.to(device).eval()
    text_config = model.config.get_text_config()
    return LoadedModel(
        model=model,
        source=str(model_dir),
        adapter=str(adapter) if adapter else None,
        revision=revision,
        vocab_size=int(model.get_input_embeddings().num_embeddings),
        context_window=getattr(text_config, "max_position_embeddings", None),
        layers=int(text_config.num_hidden_layers),
        stop_ids=_stop_ids(model),
        attention=str(model.config._attn_implementation),
        arguments=frozenset(inspect.signature(model.forward).parameters),
    )


def _stop_ids(model: Any) -> tuple[int, ...]:
    for config in (getattr(model, "generation_config", None), model.config):
        value = getattr(config, "eos_token_id", None)
        if value is not None:
            return tuple(value) if isinstance(value, list | tuple) else (int(value),)
    return ()
