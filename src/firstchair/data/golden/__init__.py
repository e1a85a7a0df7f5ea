"""Golden set v2: load, build, correct, freeze, verify."""

from firstchair.data.golden.build import BuildOptions, build, correct
from firstchair.data.golden.freeze import FreezeOptions, TrainingData, freeze, verify
from firstchair.data.golden.golden_set import CatalogRow, GoldenSet
from firstchair.data.golden.manifest import Manifest

__all__ = [
    "BuildOptions",
    "CatalogRow",
    "FreezeOptions",
    "GoldenSet",
    "Manifest",
    "TrainingData",
    "build",
    "correct",
    "freeze",
    "verify",
]
