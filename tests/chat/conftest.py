import pytest
from hypothesis import settings

from firstchair.testing.tokenizers import FAMILIES, make_renderer

# A shared machine stalls; how long an example takes says nothing about it.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(params=FAMILIES)
def renderer(request):
    return make_renderer(request.param)
