"""What some tests need beside Python: a PostgreSQL, a Chromium, a small disk."""

import os
from typing import NoReturn

import pytest

REQUIRED = "FIRSTCHAIR_TEST_SERVICES"


def missing(what: str, fix: str) -> NoReturn:
    """Skip the test with the reason; where all services must be there (as in CI), fail it."""
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"no {what}: {fix}", pytrace=False)
    pytest.skip(f"no {what}: {fix}")
