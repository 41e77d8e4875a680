"""Virtual GPUs as most tests of the virtual GPU want them."""

import pytest

from .surface_scope import scope


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def gpu(request):
    with scope(compute=request.param) as gpu:
        yield gpu


@pytest.fixture
def computing():
    with scope() as gpu:
        yield gpu
