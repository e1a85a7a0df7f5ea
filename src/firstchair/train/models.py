"""Loading a base model for training, and writing what was trained so that transformers and vLLM load it as it is."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from firstchair.chat.renderer import Renderer
from firstchair.chat.trained import RENDERING, prompts_from, trained_renderer, write_rendering
from firstchair.core.atomic import atomic_dir
from firstchair.core.errors import ConfigError, RunFailed
from firstchair.core.model_dirs import not_a_model
from firstchair.engines.quiet import quiet_loading
from firstchair.train import attention
from firstchair.train.config import FullMethod, LoraMethod
from firstchair.train.norms import speed_up_norms

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    ImportError,
    EOFError,
    pickle.UnpicklingError,
    SafetensorError,
)
"""What transformers and PEFT raise for files that they cannot read."""


def pick_device(wanted: str) -> torch.device:
    """``auto`` is CUDA when there is one. Raises ``ConfigError`` when CUDA is asked for and missing."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: found cuda, and torch sees none; set device=cpu, or install a CUDA build of torch")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def model_vocab_size(directory: Path) -> int:
    """Rows of the embedding table, from ``config.json`` alone."""
    from transformers import AutoConfig

    if not (directory / "config.json").is_file():
        raise not_a_model(directory, "config.json")
    try:
        return int(AutoConfig.from_pretrained(directory, local_files_only=True).get_text_config().vocab_size)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{directory}: config.json cannot be used: {error}") from None


def load_base(directory: Path, *, precision: str, device: torch.device) -> Any:
    """A transformers causal LM with the attention of ``firstchair.train.attention``, in training mode.

    Raises ``ConfigError`` when the directory is not a model that transformers can read.
    """
    from transformers import AutoModelForCausalLM

    if not (directory / "config.json").is_file():
        raise not_a_model(directory, "config.json")
    if (directory / "adapter_config.json").is_file():
        raise ConfigError(f"{directory}: an adapter, not a model; merge it first with `firstchair train merge`")
    try:
        with quiet_loading():
            model = AutoModelForCausalLM.from_pretrained(
                directory.resolve(),
                dtype=DTYPES[precision],
                attn_implementation=attention.install(),
                local_files_only=True,
            )
    except UNREADABLE as error:
        _refuse_broken_weights(directory)
        raise ConfigError(f"{directory}: the model cannot be loaded: {error}") from None
    model = model.to(device).train()
    speed_up_norms(model)
    return model


def _refuse_broken_weights(directory: Path) -> None:
    """Raise ``ConfigError`` for a weight file that is cut short or is something else; transformers names none."""
    for file in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{file}: not whole safetensors: {error}; copy or export the file again") from None


def apply_method(model: Any, method: FullMethod | LoraMethod, *, gradient_checkpointing: bool) -> Any:
    """Make trainable what ``method`` trains; LoRA wraps the model in PEFT.

    Raises ``ConfigError`` when no linear module has one of the target names.
    """
    if gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    if isinstance(method, FullMethod):
        model.requires_grad_(True)
        return model
    from peft import LoraConfig, get_peft_model

    targets = method.targets if isinstance(method.targets, str) else list(method.targets)
    config = LoraConfig(
        r=method.rank,
        lora_alpha=method.alpha,
        lora_dropout=method.dropout,
        target_modules=targets,
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        with quiet_loading():
            return get_peft_model(model, config)
    except ValueError as error:
        linear = {name.rpartition(".")[2] for name, part in model.named_modules() if isinstance(part, nn.Linear)}
        raise ConfigError(f"method.targets: {error} Linear modules here: {', '.join(sorted(linear))}") from None


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """All parameters and the trained ones; tied ones count once."""
    parameters = list(model.parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)


def export_model(
    model: Any, renderer: Renderer, directory: Path, *, precision: torch.dtype, force: bool = False
) -> None:
    """Write weights (or the adapter), config, tokenizer, chat template, and how it was trained to be prompted.

    Full weights go out as ``precision``; adapters stay in the type they were trained in. Raises ``RunFailed`` when
    the disk refuses, or when what was written does not read back as what is in memory.
    """
    tensors: dict[str, torch.Tensor] = {}
    try:
        with atomic_dir(directory, force=force) as temporary, quiet_loading():
            if hasattr(model, "peft_config"):
                model.save_pretrained(temporary)
                (temporary / "README.md").unlink(missing_ok=True)  # an empty model card
            else:
                state = {name: value.detach().to("cpu", precision) for name, value in model.state_dict().items()}
                model.save_pretrained(temporary, state_dict=state)
                config = json.loads((temporary / "config.json").read_text(encoding="utf-8"))
                config["dtype"] = str(precision).removeprefix("torch.")
                (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
                tensors = {name: state[name] for name, _ in model.named_parameters()}
            save_tokenizer(renderer, temporary)
            write_rendering(renderer, temporary)
            # safetensors lets the owner alone read its files; the mode that the umask gives is that of any other.
            mode = (temporary / RENDERING).stat().st_mode
            for file in temporary.glob("*.safetensors"):
                file.chmod(mode)
                with safe_open(file, "pt") as handle:
                    for name in handle.keys():  # noqa: SIM118 - not a dict
                        if name in tensors and not torch.equal(handle.get_tensor(name), tensors[name]):
                            raise RunFailed(f"{directory}: {name} reads back changed; check the disk and try again")
    except (SafetensorError, RuntimeError) as error:
        raise RunFailed(f"cannot write {directory}: {error}; free space and resume") from error


def save_tokenizer(renderer: Renderer, directory: Path) -> None:
    """The tokenizer's files, with the renderer's template as its chat template."""
    before = renderer.tokenizer.chat_template
    renderer.tokenizer.chat_template = renderer.template.text
    try:
        renderer.tokenizer.save_pretrained(directory)
    finally:
        renderer.tokenizer.chat_template = before


def stored_precision(base: Path) -> torch.dtype:
    """The type that a model directory's weights are stored in, by its ``config.json``."""
    from transformers import AutoConfig

    dtype = AutoConfig.from_pretrained(base, local_files_only=True).dtype
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def merge_adapter(adapter: Path, out: Path, *, base: Path | None = None, force: bool = False) -> None:
    """Write the full model that ``adapter`` and its base make together.

    ``base`` replaces the path that the adapter remembers. Raises ``ConfigError`` when either cannot be read.
    """
    from peft import PeftModel

    config = adapter / "adapter_config.json"
    if not config.is_file():
        raise ConfigError(f"{adapter}: no adapter_config.json; expected the model/ folder of a LoRA run")
    base = base or _base_of(config)
    if not (base / "config.json").is_file():
        raise ConfigError(f"{adapter}: its base {base} is not here; pass --base with the base model's directory")
    model = load_base(base, precision="fp32", device=torch.device("cpu"))
    try:
        with quiet_loading():
            merged = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    except UNREADABLE as error:
        _refuse_broken_weights(adapter)
        raise ConfigError(f"{adapter}: does not fit {base}: {error}") from None
    renderer = trained_renderer(prompts_from(base, adapter))
    export_model(merged, renderer, out, precision=stored_precision(base), force=force)


def _base_of(config: Path) -> Path:
    """The base model that an ``adapter_config.json`` remembers."""
    try:
        return Path(json.loads(config.read_text(encoding="utf-8")).get("base_model_name_or_path") or "")
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{config}: not the JSON of an adapter: {error}; copy or export the file again") from None
