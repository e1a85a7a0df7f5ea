"""Models are directories: what is said where there is none."""

from __future__ import annotations

from pathlib import Path

from firstchair.core.errors import ConfigError


def not_a_model(path: Path, missing: str) -> ConfigError:
    """``path`` has no ``missing``, or is not there at all; a name on the hub gets the command that fetches it."""
    if path.is_dir():
        return ConfigError(f"{path}: no {missing}; expected a model directory as save_pretrained writes it")
    looks_like_a_hub_name = len(path.parts) == 2 and not path.is_absolute() and not path.parent.is_dir()
    fix = (
        f"if it is a model on the hub, `hf download {path} --local-dir models/{path.name.lower()}` makes one"
        if looks_like_a_hub_name
        else "check the path"
    )
    return ConfigError(f"{path}: no such directory; expected a local model directory; {fix}")
