"""Firstchair puts a team's own model into the first chair of its agent harness."""

__version__ = "0.1.0"
