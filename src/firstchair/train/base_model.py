"""The tiny base model that ships with the package: pretrained on generic tool conversations, on no platform's rules.

``examples/tiny_base`` holds the script that made it; ``recipe.json`` beside the weights its seed and settings.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from firstchair.core.atomic import atomic_dir


def base_model_dir() -> Path:
    """Directory of the shipped model: Qwen3 weights (bfloat16), tokenizer, chat template, recipe."""
    return Path(__file__).parent / "base"


def copy_base_model(out: Path, *, force: bool = False) -> Path:
    """Copy the shipped model to the directory ``out`` and return it.

    Raises ``ConfigError`` when ``out`` exists without ``force``.
    """
    with atomic_dir(out, force=force) as temporary:
        for file in base_model_dir().iterdir():
            shutil.copyfile(file, temporary / file.name)
    return out
