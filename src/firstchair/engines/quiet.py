"""Loading a model without its libraries' own noise."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Loading a model is one step of somebody's longer work, which shows its own progress.

    PEFT asks transformers for an attribute that is deprecated there; nobody here can do anything about it.
    """
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            yield
    finally:
        if shown:
            logging.enable_progress_bar()
