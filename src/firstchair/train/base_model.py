"""The tiny base model that ships with the package: pretrained on generic tool conversations, on no platform's rules.

``examples/tiny_base`` holds the script that made it; ``recipe.json`` beside the weights its seed and settings.
"""

from __future__ import annotations

from pathlib import Path


def base_model_dir() -> Path:
    """Directory of the shipped model: Qwen3 weights (bfloat16), tokenizer, chat template, recipe."""
    return Path(__file__).parent / "base"
