"""The pytest plugin: the marker and the fixture `virtual_gpu`, and no virtual GPU that outlasts its test.

    @pytest.mark.virtual_gpu("T4", "A100-80", compute=False)
    def test_a_step_fits(virtual_gpu): ...

Loading it imports neither torch nor the virtual GPU: a test without them does not pay for them.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from .usage import GPUInTest

_MARKER = (
    "virtual_gpu(*names, **options): run the test on a virtual GPU, once for each name (default T4); the options are "
    "those of virtualgpu.VirtualGPU, such as count=2 or compute=False"
)
_STAYS = "virtual_gpu_stays: a GPU that starts in this test belongs to a fixture of several tests, which ends it"
_of_fixtures: dict[Any, list[VirtualGPU]] = {}  # what fixtures of wider scope than a test keep in force
# What was in force before pytest began, as under `python -m gpulab run -m pytest`.
_FROM_OUTSIDE = pytest.StashKey[list["VirtualGPU"]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    config.addinivalue_line("markers", _STAYS)


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_FROM_OUTSIDE] = _in_force()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each GPU of its marker."""
    marker = metafunc.definition.get_closest_marker("virtual_gpu")
    if marker is not None and len(marker.args) > 1:
        if "virtual_gpu" not in metafunc.fixturenames:
            metafunc.fixturenames.append("virtual_gpu")
        metafunc.parametrize("virtual_gpu", marker.args, indirect=True)


@pytest.fixture
def virtual_gpu(request: pytest.FixtureRequest) -> Iterator[GPUInTest]:
    """A virtual GPU in force for one test, a T4 unless its marker or parameter says another: `watch`, `fits`."""
    from ..gpu import VirtualGPU
    from .usage import in_test

    marker = request.node.get_closest_marker("virtual_gpu")
    names = () if marker is None else marker.args
    name = request.param if hasattr(request, "param") else names[0] if names else "T4"
    if len(names) > 1 and not hasattr(request, "param"):
        raise pytest.UsageError(
            f"{request.node.nodeid} has a marker with {len(names)} GPUs, and unittest's tests cannot be run once for "
            "each: give it one"
        )
    with (
        VirtualGPU(name, **({} if marker is None else marker.kwargs)) as gpu,
        in_test(gpu, request.path.parent) as found,
    ):
        yield found


@pytest.fixture(autouse=True)
def _virtual_gpu_of_the_marker(request: pytest.FixtureRequest) -> None:
    """Put the marker's GPU in force for a test that does not ask for the fixture."""
    if request.node.get_closest_marker("virtual_gpu") is not None:
        request.getfixturevalue("virtual_gpu")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """Note the GPUs that a fixture for several tests puts in force: it ends them itself."""
    before = _in_force()
    result = yield
    if fixturedef.scope != "function":
        started = [gpu for gpu in _in_force() if gpu not in before]
        if started:
            _of_fixtures[fixturedef] = started
    return result


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any]) -> None:
    _of_fixtures.pop(fixturedef, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """End the GPUs that a test has left in force, and let the test fail for it: the next one finds none."""
    yield
    if item.get_closest_marker("virtual_gpu_stays") is not None:
        return
    kept = [*item.config.stash[_FROM_OUTSIDE], *(gpu for started in _of_fixtures.values() for gpu in started)]
    left = [gpu for gpu in _in_force() if gpu not in kept]
    for gpu in left:
        gpu.stop()
    if left:
        pytest.fail(
            f"{item.nodeid} left {', '.join(map(repr, left))} in force: start it in a `with` block, "
            "or use the fixture virtual_gpu",
            pytrace=False,
        )


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Show bytes in MiB, and the lines that held them."""
    usage = sys.modules.get(f"{__package__}.usage")
    if usage is None or not isinstance(left, usage.Bytes) or not isinstance(right, int | float):
        return None
    return left.compared(op, right)


def _in_force() -> list[VirtualGPU]:
    """Return the virtual GPUs in force, the innermost first."""
    module = sys.modules.get("virtualgpu.scope.in_force")
    found, gpu = [], None if module is None else module.current
    while gpu is not None:
        found.append(gpu)
        gpu = gpu._outer
    return found
