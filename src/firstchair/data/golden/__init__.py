"""Golden set v2: load, build, correct, accept, freeze, verify."""

from firstchair.data.golden.build import BuildOptions, accept, build, correct
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
    "accept",
    "build",
    "correct",
    "freeze",
    "verify",
]
