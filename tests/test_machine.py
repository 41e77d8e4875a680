"""`setup()`: which machine is chosen, what the card says, and that the seeds hold."""

from __future__ import annotations

import dataclasses
import os
import platform
import random
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy
import pytest
import torch
from courselib.ready import python_here
from hypothesis import assume, given
from hypothesis import strategies as st

from gpulab import VirtualGPU
from gpulab.machine import card as machine_card
from gpulab.machine import setup as machine
from gpulab.machine.diagnosis import driver, host, pytorch
from virtualgpu import choice
from virtualgpu.gpus.specs import SPECS

NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"
H200 = SimpleNamespace(name="NVIDIA H200", total_memory=150_754_820_096, major=9, minor=0)


@dataclasses.dataclass
class Shown:
    """What was last displayed."""

    text: str = ""
    svg: str = ""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    last = Shown()

    def show(text: str, *, svg: str, html: str) -> None:
        last.text, last.svg = text, svg

    monkeypatch.setattr(machine, "show", show)
    monkeypatch.setattr(machine, "_current", None)
    monkeypatch.delenv("GPULAB_GPU", raising=False)
    yield last
    machine._end()  # before the fixtures above put back what the virtual GPU has replaced


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch, shown: Shown) -> None:
    """A machine without any GPU, on whatever machine the test runs."""
    monkeypatch.setattr(pytorch, "kernel_trouble", lambda device: NO_DRIVER)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    monkeypatch.setattr(driver, "read_driver", lambda: driver.Driver(error="NVMLError_LibraryNotFound"))


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch, shown: Shown) -> None:
    """A machine whose CUDA GPU works."""
    monkeypatch.setattr(pytorch, "kernel_trouble", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: H200)


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch, no_gpu: None) -> None:
    """A Mac with Apple's GPU and no CUDA."""
    works = {"mps": None}
    monkeypatch.setattr(
        pytorch, "kernel_trouble", lambda device: works.get(torch.device(device).type, "Torch not compiled with CUDA")
    )
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 11_453_251_584)


# The choice


def test_the_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch, no_gpu: None) -> None:
    monkeypatch.setenv("GPULAB_GPU", "virtual:L4")
    assert machine.setup("A100-80").virtual_of == "A100-80"


def test_the_environment_decides_where_the_code_does_not(monkeypatch: pytest.MonkeyPatch, no_gpu: None) -> None:
    monkeypatch.setenv("GPULAB_GPU", "virtual:L4")
    assert machine.setup().virtual_of == "L4"


@pytest.mark.parametrize("value", ["", " ", None])
def test_without_argument_and_environment_the_choice_is_auto(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv("GPULAB_GPU", raising=False)
    else:
        monkeypatch.setenv("GPULAB_GPU", value)
    assert choice.choose(None) == ("auto", "T4")


@pytest.mark.parametrize("spec", choice.SPECS)
def test_every_spec_is_accepted_bare_and_virtual_in_any_case(spec: str) -> None:
    for written in (spec, spec.lower(), f"virtual:{spec}", f"Virtual:{spec.lower()}"):
        assert choice.choose(written) == ("virtual", spec)


def test_a_spec_may_be_written_with_the_space_of_its_product_name() -> None:
    assert choice.choose("RTX 3060") == ("virtual", "RTX3060")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("H20", "'H200'"),
        ("A100", "'A100-40' or 'A100-80'"),
        ("cuda", "'real'"),
        ("atuo", "'auto'"),
        ("vitrual:T4", "'T4'"),
    ],
)
def test_an_unknown_choice_names_the_argument_the_value_the_names_and_the_likely_one(wrong: str, meant: str) -> None:
    with pytest.raises(ValueError, match="gpu=") as caught:
        choice.choose(wrong)
    said = str(caught.value)
    assert said.startswith(f"gpu={wrong!r}")
    assert f"Did you mean {meant}?" in said
    assert all(spec in said for spec in choice.SPECS)


def test_an_unknown_choice_from_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, shown: Shown
) -> None:
    monkeypatch.setenv("GPULAB_GPU", "virtual:T40")
    with pytest.raises(ValueError, match=r"^GPULAB_GPU='virtual:T40' .*'T4'"):
        machine.setup()


@pytest.mark.parametrize("wrong", [4, b"T4", torch.device("cpu")])
def test_a_choice_that_is_not_text_is_a_type_error(wrong: object, shown: Shown) -> None:
    with pytest.raises(TypeError, match="gpu must be text"):
        machine.setup(wrong)  # type: ignore[arg-type]


@given(st.text(max_size=30))
def test_any_other_text_is_refused_with_its_value(text: str) -> None:
    names = {"AUTO", "REAL", *choice.SPECS}
    assume("".join(text.split()).replace("_", "").upper().removeprefix("VIRTUAL:") not in names)
    with pytest.raises(ValueError, match="names no machine") as caught:
        choice.choose(text)
    assert str(caught.value).startswith(f"gpu={text!r}")


# The virtual machine


def test_a_virtual_machine_is_in_force_and_says_so(no_gpu: None, shown: Shown) -> None:
    gpu = machine.setup("T4")
    assert gpu.device == torch.ones(1, device=gpu.device).device == torch.device("cuda:0")
    assert (gpu.name, gpu.numbers, gpu.virtual_of, gpu.capability) == ("Tesla T4", "virtual", "T4", (7, 5))
    assert gpu.total_memory == torch.cuda.get_device_properties(0).total_memory == SPECS["T4"].memory_bytes
    for said in (shown.text, shown.svg):
        assert "a virtual T4" in said
        assert "bytes and GPU times are virtual" in said


def test_closing_it_puts_pytorch_back(shown: Shown) -> None:
    before = torch.cuda.is_available, torch.cuda.device_count
    gpu = machine.setup("T4")
    x = torch.arange(3, device="cuda")
    gpu.close()
    assert (torch.cuda.is_available, torch.cuda.device_count) == before
    assert (x.device.type, x.tolist()) == ("cpu", [0, 1, 2])
    gpu.close()


def test_the_same_choice_again_keeps_the_gpu_and_what_is_on_it(no_gpu: None, shown: Shown) -> None:
    machine.setup("T4")
    x = torch.ones(1000, device="cuda")
    machine.setup("virtual:T4")
    machine.setup("auto")
    assert x.is_cuda
    assert torch.cuda.memory_allocated() == 4096


def test_under_torchrun_every_rank_of_this_machine_has_its_gpu(monkeypatch: pytest.MonkeyPatch, shown: Shown) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    machine.setup("T4")
    assert torch.cuda.device_count() == 2


def test_setup_within_a_scope_is_refused(shown: Shown) -> None:
    with VirtualGPU("L4"), pytest.raises(RuntimeError, match="end the block first"):
        machine.setup("T4")


def test_the_card_is_the_same_for_virtual_t4_and_for_auto_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, no_gpu: None, shown: Shown
) -> None:
    monkeypatch.setenv("GPULAB_GPU", "virtual:T4")
    machine.setup()
    strict = dataclasses.astuple(shown)
    monkeypatch.setenv("GPULAB_GPU", "auto")
    machine.setup()
    assert dataclasses.astuple(shown) == strict


@pytest.mark.parametrize("gpu", ["virtual:T4", "auto"])
def test_a_virtual_card_tells_nothing_of_the_host(gpu: str, no_gpu: None, shown: Shown) -> None:
    machine.setup(gpu)
    card = (shown.text + shown.svg).lower()
    host = [
        platform.node(), platform.machine(), platform.processor(), platform.release(), platform.python_version(),
        torch.__version__, os.getcwd(), os.path.expanduser("~"), "thread",
    ]  # fmt: skip
    assert [fact for fact in host if len(fact) > 1 and fact.lower() in card] == []


def test_a_virtual_choice_does_not_ask_for_a_real_gpu(monkeypatch: pytest.MonkeyPatch, shown: Shown) -> None:
    asked: list[str] = []
    monkeypatch.setattr(pytorch, "kernel_trouble", asked.append)
    monkeypatch.setattr(driver, "read_driver", lambda: asked.append("NVML"))
    machine.setup("virtual:H100")
    assert asked == []


# The real machine


def test_auto_takes_a_gpu_that_works_and_the_card_describes_it(h200: None, shown: Shown) -> None:
    gpu = machine.setup()
    assert gpu.device == torch.device("cuda:0")
    assert (gpu.name, gpu.numbers, gpu.virtual_of, gpu.capability) == ("NVIDIA H200", "measured", None, (9, 0))
    assert gpu.total_memory == H200.total_memory
    for said in (shown.text, shown.svg):
        for fact in ("NVIDIA H200", "140.4 GiB", "compute capability 9.0", "measured on this GPU"):
            assert fact in said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has …"), "CUDA out of memory."),
        (
            RuntimeError("CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors …"),
            "CUDA error: no kernel image is available for execution on the device.",
        ),
        (
            RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update …"),
            "The NVIDIA driver on your system is too old (found version 11040).",
        ),
    ],
)
def test_a_gpu_that_fails_at_its_first_tensor_is_replaced_by_the_virtual_one_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, shown: Shown, error: Exception, said: str
) -> None:
    def ones(*size: int, device: str) -> torch.Tensor:
        raise error

    machine.setup("virtual:T4").close()  # what follows replaces PyTorch's functions, not the virtual GPU's
    strict = shown.text
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", ones)
    gpu = machine.setup()
    assert gpu.virtual_of == "T4"
    assert gpu.notes == (f"A GPU is here, but cannot be used: {said} What to do: python -m gpulab doctor",)
    extra = shown.text.removeprefix(strict)
    assert shown.text.startswith(strict)
    assert extra.split()[0] == "note"
    assert said in " ".join(extra.split())


def test_a_cpu_build_beside_an_nvidia_gpu_is_told(monkeypatch: pytest.MonkeyPatch, no_gpu: None) -> None:
    monkeypatch.setattr(pytorch, "kernel_trouble", lambda device: "Torch not compiled with CUDA enabled")
    monkeypatch.setattr(driver, "read_driver", lambda: driver.Driver(gpus=(driver.Gpu(0, "NVIDIA L4"),)))
    (note,) = machine.setup().notes
    assert "A GPU is here, but cannot be used: Torch not compiled with CUDA enabled." in note


def test_a_gpu_that_computes_wrongly_does_not_count_as_working(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "ones", lambda *size, device: torch.zeros(*size))
    assert pytorch.kernel_trouble("cuda") == "it computes 2 + 2 as 2.0"


def test_the_kernel_test_passes_on_a_device_that_computes() -> None:
    assert pytorch.kernel_trouble("cpu") is None


@pytest.mark.parametrize("by_argument", [True, False])
def test_real_without_a_gpu_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, no_gpu: None, by_argument: bool
) -> None:
    monkeypatch.setenv("GPULAB_GPU", "real")
    with pytest.raises(RuntimeError) as caught:
        machine.setup("real" if by_argument else None)
    said = str(caught.value)
    assert said.startswith("gpu='real'" if by_argument else "GPULAB_GPU='real'")
    assert "python -m gpulab doctor" in said
    assert "gpulab.setup('T4')" in said


def test_real_names_the_reason_a_gpu_fails(monkeypatch: pytest.MonkeyPatch, no_gpu: None) -> None:
    monkeypatch.setattr(pytorch, "kernel_trouble", lambda device: "CUDA out of memory. Tried to allocate")
    with pytest.raises(RuntimeError, match="none works here: CUDA out of memory"):
        machine.setup("real")


def test_auto_on_a_mac_stays_virtual_and_says_that_the_gpu_is_there(mac: None, shown: Shown) -> None:
    gpu = machine.setup()
    assert gpu.virtual_of == "T4"
    assert "Apple's GPU is here: gpulab.setup('real') uses it" in " ".join(shown.text.split())


def test_real_on_a_mac_takes_apples_gpu(mac: None, shown: Shown) -> None:
    gpu = machine.setup("real")
    assert gpu.device == torch.device("mps:0")
    assert (gpu.virtual_of, gpu.total_memory) == (None, 11_453_251_584)
    assert "10.7 GiB of the machine's memory at most" in shown.text


# The second setup, and how a machine prints


def test_a_second_run_of_all_cells_says_what_the_first_still_holds(no_gpu: None, shown: Shown) -> None:
    machine.setup("T4")
    x = torch.ones(2**20, device="cuda")
    cycle: list[object] = [torch.ones(2**20, device="cuda")]
    cycle.append(cycle)
    machine.setup("T4")
    words = " ".join(shown.text.split())
    assert "earlier cells still hold 8.0 MiB: for this page's numbers, Restart and Run All" in words
    del x, cycle
    machine.setup("T4")
    assert "still hold" not in shown.text


def test_a_second_setup_says_what_it_replaces_only_when_the_choice_changed(no_gpu: None, shown: Shown) -> None:
    machine.setup("T4")
    assert "replaces" not in shown.text
    machine.setup("auto")
    assert "replaces" not in shown.text
    machine.setup("L4")
    assert "replaces the earlier setup: a virtual T4" in shown.text


def test_a_virtual_card_after_a_real_one_does_not_name_the_hosts_gpu(h200: None, shown: Shown) -> None:
    machine.setup("real")
    machine.setup("T4")
    assert "replaces the earlier setup: the real GPU (cuda:0)" in shown.text
    assert "H200" not in shown.text + shown.svg


def test_a_failed_setup_leaves_the_earlier_one_in_place(no_gpu: None, shown: Shown) -> None:
    machine.setup("L4")
    with pytest.raises(RuntimeError):
        machine.setup("real")
    machine.setup("T4")
    assert "replaces the earlier setup: a virtual L4" in shown.text


def test_a_machine_prints_in_one_short_line_and_cannot_be_changed(no_gpu: None) -> None:
    gpu = machine.setup("T4")
    assert repr(gpu) == "<Machine: Tesla T4; device cuda:0, numbers virtual>"
    with pytest.raises(dataclasses.FrozenInstanceError):
        gpu.name = "another"  # type: ignore[misc]


def test_in_a_script_the_card_is_printed(
    monkeypatch: pytest.MonkeyPatch, no_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    from virtualgpu.pictures.display import show

    monkeypatch.setattr(machine, "show", show)
    machine.setup("T4")
    assert capsys.readouterr().out.startswith("This notebook uses a virtual T4\n  device   cuda:0: Tesla T4, 14.7 GiB")


# Seeds


def draw() -> tuple[float, float, float]:
    return random.random(), float(torch.rand(())), float(numpy.random.random())


def test_the_same_seed_gives_the_same_numbers_in_random_torch_and_numpy(no_gpu: None) -> None:
    machine.setup("T4", seed=7)
    first = draw()
    machine.setup("T4", seed=7)
    assert draw() == first
    machine.setup("T4", seed=8)
    assert all(new != old for new, old in zip(draw(), first, strict=True))


@pytest.mark.parametrize("seed", [0, 2**32 - 1, numpy.int64(3)])
def test_every_whole_number_that_numpy_takes_is_a_seed(seed: int, no_gpu: None, shown: Shown) -> None:
    machine.setup("T4", seed=seed)
    assert f"{int(seed)}, for Python's random" in shown.text


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused_before_anything_changes(seed: int, no_gpu: None, shown: Shown) -> None:
    with pytest.raises(ValueError, match=rf"seed must be from 0 to 2\*\*32 - 1 .*not {seed}"):
        machine.setup("T4", seed=seed)
    assert shown.text == ""


@pytest.mark.parametrize("seed", [True, 1.0, "1", None])
def test_a_seed_that_is_not_a_whole_number_is_a_type_error(seed: object, no_gpu: None) -> None:
    with pytest.raises(TypeError, match="seed must be a whole number from 0"):
        machine.setup("T4", seed=seed)  # type: ignore[arg-type]


# The picture


def test_the_svg_is_an_image_with_a_title_that_says_all_its_rows(no_gpu: None, shown: Shown) -> None:
    machine.setup("T4")
    picture = ElementTree.fromstring(shown.svg)
    assert picture.attrib["role"] == "img"
    title = picture[0]
    assert title.tag.endswith("title")
    assert title.text is not None
    for said in ("a virtual T4", "numbers: bytes and GPU times are virtual", "seed: 0"):
        assert said in title.text


def test_the_svg_escapes_what_it_shows() -> None:
    card = machine_card.Card("A <GPU> & \x1b[0m more", (("note", "</text><script>x</script> & so on"),))
    picture = ElementTree.fromstring(machine_card.as_svg(card))
    texts = [node.text for node in picture.iter() if node.tag.endswith("text")]
    assert texts == ["A <GPU> & [0m more", "note", "</text><script>x</script> & so on"]


@given(st.text(st.characters(codec="utf-8"), max_size=60), st.text(st.characters(codec="utf-8"), max_size=400))
def test_any_card_is_well_formed_and_its_lines_stay_inside(heading: str, note: str) -> None:
    picture = ElementTree.fromstring(machine_card.as_svg(machine_card.Card(heading, (("note", note),))))
    height = float(picture.attrib["height"])
    for node in picture.iter("{http://www.w3.org/2000/svg}text"):
        assert float(node.attrib["y"]) < height - 10
        assert len(node.text or "") <= 74


# Threads on the CPU


@pytest.fixture
def pytorch_threads(monkeypatch: pytest.MonkeyPatch, no_gpu: None) -> list[int]:
    """A PyTorch that computes with so many threads, and the numbers that it was given; nobody has chosen one."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    given: list[int] = [8]
    monkeypatch.setattr(machine, "_threads", None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: given[-1])
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    return given


def processors(monkeypatch: pytest.MonkeyPatch, *of: float) -> None:
    monkeypatch.setattr(host, "read_processors", lambda: host.Processors(*of))  # type: ignore[arg-type]


def test_threads_that_have_no_processor_are_not_started(
    monkeypatch: pytest.MonkeyPatch, pytorch_threads: list[int], shown: Shown
) -> None:
    processors(monkeypatch, 8, 8, None, 6.0)
    gpu = machine.setup("T4")
    assert pytorch_threads == [8, 2]
    assert (gpu.threads, gpu.threads_because) == (2, "other programs keep 6.0 of 8 processors busy")
    assert "6.0" not in shown.text  # the card of a virtual GPU says nothing of the host


def test_a_machine_that_is_quiet_again_gives_back_what_setup_took(
    monkeypatch: pytest.MonkeyPatch, pytorch_threads: list[int]
) -> None:
    processors(monkeypatch, 8, 8, None, 6.0)
    machine.setup("T4")
    processors(monkeypatch, 8, 8)
    assert machine.setup("T4").threads == 8
    assert machine.setup("T4").threads_because == ""
    assert pytorch_threads == [8, 2, 8]


def test_a_number_that_the_user_has_set_is_never_raised(
    monkeypatch: pytest.MonkeyPatch, pytorch_threads: list[int]
) -> None:
    processors(monkeypatch, 64, 64)
    pytorch_threads.append(3)
    assert machine.setup("T4").threads == 3
    processors(monkeypatch, 64, 64, None, 62.0)
    assert machine.setup("T4").threads == 2
    pytorch_threads.append(1)
    processors(monkeypatch, 64, 64)
    assert machine.setup("T4").threads == 1
    assert pytorch_threads == [8, 3, 2, 1]


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_a_number_in_the_environment_is_left_alone(
    name: str, monkeypatch: pytest.MonkeyPatch, pytorch_threads: list[int]
) -> None:
    monkeypatch.setenv(name, "8")
    processors(monkeypatch, 2, 2, 1.0, 2.0)
    assert machine.setup("T4").threads == 8
    assert pytorch_threads == [8]


def test_pytorch_itself_takes_the_number() -> None:
    code = (
        "import os, torch; [os.environ.pop(name, 0) for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS')];"
        "from gpulab.machine.diagnosis import host; host.read_processors = lambda: host.Processors(4, 4, 1.0);"
        "torch.set_num_threads(4); import gpulab; gpu = gpulab.setup('T4'); print(torch.get_num_threads(), gpu.threads)"
    )
    done = subprocess.run([*python_here(), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1 1"
