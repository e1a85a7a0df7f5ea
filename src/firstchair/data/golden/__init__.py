"""Golden set v2: load, build, correct, accept, freeze, verify."""

from firstchair.data.golden.build import BuildOptions, accept, build, correct
from firstchair.data.golden.freeze import FreezeOptions, TrainingData, freeze
from firstchair.data.golden.golden_set import CatalogRow, GoldenSet
from firstchair.data.golden.manifest import Manifest
from firstchair.data.golden.verify import Checked, verify

__all__ = [
    "BuildOptions",
    "CatalogRow",
    "Checked",
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
