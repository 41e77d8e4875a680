"""The pytest plugin, by tests that pytest runs with it: which pass, which fail, and in which words."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch  # before pytester looks at which modules are loaded, which it takes out again

import virtualgpu.testing.usage  # noqa: F401

pytest_plugins = "pytester"

EXAMPLE = Path(__file__).parents[3] / "docs" / "pytest_example"
START = "import pytest\nimport torch\nfrom virtualgpu import VirtualGPU\n"


@pytest.fixture
def run(pytester: pytest.Pytester):
    def run(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=START + text)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)

    return run


def test_the_example_of_the_docs_passes_in_two_processes(pytester: pytest.Pytester) -> None:
    for file in EXAMPLE.glob("*.py"):
        shutil.copy(file, pytester.path)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n2")
    done.assert_outcomes(passed=7)


def test_a_marker_puts_its_gpu_in_force_without_the_fixture_too(run) -> None:
    done = run(
        """
@pytest.mark.virtual_gpu("L4", count=2)
def test_marked():
    assert torch.cuda.device_count() == 2
    assert "L4" in torch.cuda.get_device_name()

def test_unmarked():
    assert not torch.cuda.is_available()

def test_default(virtual_gpu):
    assert virtual_gpu.name == "T4"

@pytest.mark.virtual_gpu("T4", "H100")
def test_each():
    assert torch.cuda.get_device_capability() in [(7, 5), (9, 0)]

@pytest.mark.parametrize("virtual_gpu", ["T4", "L4"], indirect=True)
def test_parametrised(virtual_gpu):
    assert virtual_gpu.name in ("T4", "L4")

@pytest.mark.virtual_gpu("L4")
class TestClass:
    def test_method(self, virtual_gpu):
        assert virtual_gpu.name == "L4"
""",
        "-v",
    )
    done.assert_outcomes(passed=8)
    done.stdout.fnmatch_lines(["*test_each?T4? PASSED*", "*test_each?H100? PASSED*"])


def test_unittest_takes_one_gpu(run) -> None:
    done = run("""
import unittest

@pytest.mark.virtual_gpu("L4")
class Test(unittest.TestCase):
    def test_one(self):
        self.assertIn("L4", torch.cuda.get_device_name())

    @pytest.mark.virtual_gpu("L4", "T4")
    def test_two(self):
        pass
""")
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["*marker with 2 GPUs*give it one*"])


@pytest.mark.parametrize(
    ("marker", "words"),
    [('"T5"', "*T5*"), ('"T4", count=0', "*count must be a whole number*"), ('"T4", shapes=True', "*shapes*")],
)
def test_a_wrong_marker_is_an_error_that_names_it(run, marker: str, words: str) -> None:
    done = run(f"""
@pytest.mark.virtual_gpu({marker})
def test_it():
    pass

def test_next():
    assert not torch.cuda.is_available()
""")
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines([words])


def test_a_gpu_that_a_test_leaves_in_force_is_its_error_and_the_next_test_finds_none(run) -> None:
    done = run("""
def test_leaves():
    VirtualGPU("T4").start()

def test_leaves_two():
    VirtualGPU("T4").start()
    VirtualGPU("L4").start()

def test_next():
    assert not torch.cuda.is_available()
    assert torch.cuda.is_available.__module__ == "torch.cuda"
""")
    done.assert_outcomes(passed=3, errors=2)
    done.stdout.fnmatch_lines(["*test_leaves left <VirtualGPU T4*start it in a `with` block*"])


def test_a_gpu_of_a_module_stays_until_its_end(run) -> None:
    done = run("""
@pytest.fixture(scope="module")
def gpu():
    with VirtualGPU("L4") as gpu:
        yield gpu

@pytest.fixture(scope="class")
def forgotten():
    VirtualGPU("L4").start()

def test_one(gpu):
    assert torch.cuda.is_available()

def test_another(request):
    assert request.getfixturevalue("gpu").active

class TestForgotten:
    def test_within(self, gpu, forgotten):
        assert torch.cuda.is_available()

def test_after(gpu):
    assert gpu.active
""")
    done.assert_outcomes(passed=4, errors=1)
    done.stdout.fnmatch_lines(["*TestForgotten::test_within left <VirtualGPU L4*"])


def test_a_gpu_from_before_pytest_stays(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=START + """
def test_outer():
    assert "L4" in torch.cuda.get_device_name()

@pytest.mark.virtual_gpu("H100")
def test_inner():
    assert "H100" in torch.cuda.get_device_name()

def test_outer_again():
    assert "L4" in torch.cuda.get_device_name()
""")  # fmt: skip
    command = [sys.executable, "-m", "gpulab", "run", "--gpu", "L4", "-m", "pytest", "-p", "no:cacheprovider"]
    pytester.run(*command).assert_outcomes(passed=3)


def test_a_peak_too_high_is_told_in_mib_with_the_lines_that_hold_it(run) -> None:
    done = run("""
def test_it(virtual_gpu):
    weights = torch.ones(3 * 2**20, device="cuda")
    with virtual_gpu.watch() as seen:
        more = torch.ones(2**20, device="cuda")
        del more
    assert seen.peak_memory <= 16 * 2**20
    assert seen.peak_memory < 10 * 2**20
""")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        [
            "E*assert 16.0 MiB < 10.0 MiB",
            "E*held by",
            'E*12.0 MiB  test_it.py:6  weights = torch.ones(3 ? 2**20, device="cuda")',
            "E*4.0 MiB  test_it.py:8  more = *",
        ]
    )


def test_a_wait_a_copy_and_a_kernel_too_many_are_named_with_their_lines(run) -> None:
    done = run("""
def step(virtual_gpu):
    with virtual_gpu.watch() as seen:
        x = torch.ones(2**20).to("cuda")
        for _ in range(3):
            x.sum().item()
    return seen

def test_waits(virtual_gpu):
    assert not step(virtual_gpu).host_waits

def test_copies(virtual_gpu):
    assert not step(virtual_gpu).copies

def test_kernels(virtual_gpu):
    assert len(step(virtual_gpu).kernels) == 2
""")
    done.assert_outcomes(failed=3)
    done.stdout.fnmatch_lines(
        [
            "*assert not 4: [[]*copy to host*at test_it.py:*x.sum().item()*",
            "*assert not 4: [[]3 x 8 bytes to host*4.0 MiB to GPU, pageable, at test_it.py:*",
            "*3 == 2*",
            "*3: [[]3 x sum[]]*",
        ]
    )


@pytest.mark.virtual_gpu("T4", count=2)
def test_a_block_within_another_gives_its_copies_to_both_each_gpu_has_its_own(virtual_gpu) -> None:
    with virtual_gpu.watch() as outer, virtual_gpu.watch(device=1) as second:
        torch.ones(2**20).to("cuda:0")
        torch.ones(2**20).pin_memory().to("cuda:1", non_blocking=True)
    assert [(copy.nbytes, copy.pinned) for copy in outer.copies] == [(2**22, False)]
    assert [(copy.nbytes, copy.pinned) for copy in second.copies] == [(2**22, True)]
    assert 'torch.ones(2**20).to("cuda:0")' in outer.copies[0].line
    assert second.peak_memory == 2**22


def test_what_does_not_fit_says_what_was_asked_for_where_and_other_errors_pass_through(run) -> None:
    done = run("""
def big():
    torch.empty(20 * 2**30, dtype=torch.int8, device="cuda")

def wrong():
    torch.ones(2, device="cuda") + torch.ones(3, device="cuda")

@pytest.mark.virtual_gpu("T4", "A100-80", compute=False)
def test_big(virtual_gpu):
    assert virtual_gpu.fits(big)

def test_wrong(virtual_gpu):
    with pytest.raises(RuntimeError, match="must match the size"):
        virtual_gpu.fits(wrong)
""")
    done.assert_outcomes(passed=2, failed=1)
    asked = "*does not fit on a T4: 20,480 MiB were asked for at test_it.py:6*and *were free (virtual)*"
    done.stdout.fnmatch_lines([asked])


def test_blocks_nest_and_each_has_its_own_peak(run) -> None:
    run("""
MIB = 2**20

def of(mib):
    return torch.empty(mib * MIB, dtype=torch.int8, device="cuda")

def test_it(virtual_gpu):
    first = of(40)
    del first
    with virtual_gpu.watch() as outer:
        a = of(10)
        with virtual_gpu.watch() as inner:
            b = of(20)
            del b
        with virtual_gpu.watch() as small:
            pass
        with pytest.raises(RuntimeError, match="peak_memory is known only after the block"):
            outer.peak_memory
    assert outer.peak_memory == 30 * MIB == inner.peak_memory
    assert small.peak_memory == 10 * MIB
    assert small.peak_memory.shares[0].nbytes == 10 * MIB
    assert outer.peak_reserved >= inner.peak_memory
    assert len(outer.kernels) == 0

def test_devices(virtual_gpu):
    with pytest.raises(ValueError, match="device is 1"), virtual_gpu.watch(device=1):
        pass
    with virtual_gpu.watch() as seen:
        pass
    with pytest.raises(AttributeError, match="no 'peak'; it has peak_memory"):
        seen.peak
""").assert_outcomes(passed=2)


@pytest.mark.virtual_gpu("T4", compute=False)
def test_an_error_within_the_block_passes_and_puts_the_peaks_back(virtual_gpu) -> None:
    with pytest.raises(KeyError), virtual_gpu.watch():
        raise KeyError
    x = torch.ones(2**20, device="cuda")
    with virtual_gpu.watch() as seen:
        (x + 1).sum()
    assert seen.peak_memory >= 2 * x.nbytes
    assert [kernel.name for kernel in seen.kernels] == ["add", "sum"]
    assert seen.seconds >= sum(kernel.seconds for kernel in seen.kernels)
