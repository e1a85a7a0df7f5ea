import pytest

from firstchair.testing.tokenizers import FAMILIES, make_renderer


@pytest.fixture(params=FAMILIES)
def renderer(request):
    return make_renderer(request.param)
