"""Optional experiment trackers behind one small interface. A tracker is imported only when a recipe names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol

from firstchair.core.errors import ConfigError


class TrackerSink(Protocol):
    """Where metrics go beside the files."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers of one step."""
        ...

    def close(self) -> None:
        """End the run."""
        ...


class _Mlflow:
    def __init__(self, module: Any, project: str, name: str, config: Mapping[str, Any]):
        self._mlflow = module
        module.set_experiment(project)
        module.start_run(run_name=name)
        module.log_dict(dict(config), "recipe.json")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(metrics), step=step)

    def close(self) -> None:
        self._mlflow.end_run()


class _WandbLike:
    """W&B, and Trackio, which speaks the same interface."""

    def __init__(self, module: Any, project: str, name: str, config: Mapping[str, Any]):
        self._module = module
        module.init(project=project, name=name, config=dict(config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._module.log(dict(metrics), step=step)

    def close(self) -> None:
        self._module.finish()


_SINKS: Mapping[str, Callable[[Any, str, str, Mapping[str, Any]], TrackerSink]] = MappingProxyType(
    {"mlflow": _Mlflow, "wandb": _WandbLike, "trackio": _WandbLike}
)


def open_trackers(
    names: Sequence[str], *, project: str, name: str, config: Mapping[str, Any]
) -> tuple[TrackerSink, ...]:
    """Open the trackers named; raises ``ConfigError`` with the pip command when a package is missing."""
    sinks = []
    for tracker in names:
        if tracker not in _SINKS:
            raise ConfigError(f"log.trackers: {tracker!r} is unknown; use {', '.join(sorted(_SINKS))}")
        try:
            module = import_module(tracker)
        except ImportError:
            raise ConfigError(
                f"log.trackers: {tracker} is not installed; run `pip install {tracker}` or take it out of the recipe"
            ) from None
        sinks.append(_SINKS[tracker](module, project, name, config))
    return tuple(sinks)
