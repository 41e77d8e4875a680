"""Provides the course's data without a download: handwritten digits, generated photographs, published speeds.

1797 grey images of 8×8 pixels, ten classes: the test part of the UCI set "Optical Recognition of
Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, CC BY 4.0), as whole numbers 0 to 16 in the package. The
speeds are from the `results` folder of pytorch-image-models (R. Wightman, Hugging Face, Apache-2.0).
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import torch

TRAIN_SAMPLES = 1500  # the other 297 images are the test set


class Digits(NamedTuple):
    """`images`: float32, (N, 1, 8, 8), values 0 to 1. `labels`: int64, (N,), values 0 to 9."""

    images: torch.Tensor
    labels: torch.Tensor


def digits(split: Literal["train", "test"] | None = None) -> Digits:
    """Return the digits on the CPU: all 1797, the first 1500 (`"train"`) or the last 297 (`"test"`).

    Raises ValueError for another split.
    """
    if split not in (None, "train", "test"):
        raise ValueError(f"split must be 'train', 'test' or None for all images, not {split!r}")
    import torch

    rows = csv.reader(_unpacked("gpulab", "digits.csv.gz").splitlines())
    table = torch.tensor([[int(v) for v in row] for row in rows], device="cpu")
    part = {None: slice(None), "train": slice(TRAIN_SAMPLES), "test": slice(TRAIN_SAMPLES, None)}[split]
    table = table[part]
    images = (table[:, :64].to(torch.float32) / 16).reshape(-1, 1, 8, 8)
    return Digits(images, table[:, 64].clone())


PHOTOGRAPH = 768, 1024  # its height and width in pixels
CLASSES = 4


def photographs(count: int = 320, *, folder: str | Path | None = None) -> list[Path]:
    """Return the paths of `count` JPEG files CLASS/NUMBER.jpg, in order, for lessons on reading and decoding.

    1024 by 768 pixels in colour, some 90 kB each, in four classes that differ in tint. The first call generates them
    with a fixed seed, in a few seconds, in `folder`, by default `gpulab` in the user's cache (`XDG_CACHE_HOME`, or
    `.cache` at home). An interrupted call leaves a folder of another name, never an incomplete one.

    Raises ValueError for a count below 1, and for an existing folder with another number of files.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count must be a whole number from 1 on, not {count!r}")
    if folder is None:
        cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cached / "gpulab" / f"photographs-{count}"
    place = Path(folder).absolute()
    if not place.exists():
        _draw_into(place, count)
    files = sorted(place.glob("*/*.jpg"))
    if len(files) != count:
        raise ValueError(
            f"folder {str(place)!r} holds {len(files)} photographs, not {count}: remove it, or give another"
        )
    return files


def _draw_into(place: Path, count: int) -> None:
    """Generate the files in a temporary folder, and rename it to `place` when it is complete."""
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{place.name}-unfinished-", dir=place.parent))
    try:
        _draw(unfinished, count)
        unfinished.chmod(0o755)  # mkdtemp makes it private
        try:
            unfinished.rename(place)
        except OSError:
            if not place.exists():  # else another process was first
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _draw(folder: Path, count: int) -> None:
    """Crop each image from one large random landscape of blobs and grain, and add the tint of its class."""
    import torch
    from torch.nn.functional import interpolate
    from torchvision.transforms.v2.functional import to_pil_image

    from virtualgpu.gpu import without_gpu

    height, width = PHOTOGRAPH
    with without_gpu():  # a virtual GPU with shapes alone computes no values
        dice = torch.Generator().manual_seed(0)
        land = torch.randn(1, 3, 2 * height, 2 * width, generator=dice, device="cpu").mul_(0.06)
        for cells in (3, 9, 27, 81, 243):
            blobs = torch.randn(1, 3, cells, cells * 4 // 3, generator=dice, device="cpu")
            land += interpolate(blobs, size=land.shape[2:], mode="bilinear", align_corners=False) / cells**0.5
        tints = torch.randn(CLASSES, 3, 1, 1, generator=dice, device="cpu")
        for number in range(count):
            top, left = (int(torch.randint(size + 1, (), generator=dice, device="cpu")) for size in PHOTOGRAPH)
            kind = number % CLASSES
            cut = land[0, :, top : top + height, left : left + width] + tints[kind]
            pixels = cut.sigmoid_().mul_(255).to(torch.uint8)
            (folder / str(kind)).mkdir(exist_ok=True)
            to_pil_image(pixels).save(folder / str(kind) / f"{number:05d}.jpg", quality=85)


class Measurement(NamedTuple):
    """The recorded speed of an image model of `timm` in a setting, with square images of `image_size` pixels.

    `setting` is task, precision, layout, PyTorch, CUDA, machine and, if compiled, "dynamo", joined by "-".
    """

    setting: str
    model: str
    batch: int
    image_size: int
    samples_per_s: float


def published(setting: str | None = None) -> list[Measurement]:
    """Return the published measurements of the image models of `timm` in one setting, or in all 18.

    Source and licence: `virtualgpu/published/README.md`. Raises ValueError for an unknown setting.
    """
    rows = list(_measurements())
    names = list(dict.fromkeys(row.setting for row in rows))
    if setting is None:
        return rows
    if setting not in names:
        raise ValueError(f"setting is {setting!r}; it must be one of {', '.join(names)}")
    return [row for row in rows if row.setting == setting]


def recorded(gpu: str) -> dict[str, Any]:
    """Return the recording of a real GPU by `python -m gpulab validate`, by section: `virtualgpu/recordings/README.md`.

    `gpu` is a name as for `VirtualGPU`. Raises ValueError for one without a recording.
    """
    from virtualgpu.clock.rates import recording_path
    from virtualgpu.gpus.specs import SPECS

    found = {name: recording_path(spec) for name, spec in SPECS.items()}
    path = found.get(gpu)
    if path is None:
        known = ", ".join(name for name, path in found.items() if path is not None)
        raise ValueError(f"gpu is {gpu!r}; recorded were {known}")
    recording: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return recording


@cache
def _measurements() -> tuple[Measurement, ...]:
    rows = csv.DictReader(_unpacked("virtualgpu", "published", "timm.csv.gz").splitlines())
    return tuple(
        Measurement(
            row["setting"], row["model"], int(row["batch"]), int(row["image_size"]), float(row["samples_per_s"])
        )
        for row in rows
    )


class Network(NamedTuple):
    """The numbers of parameters and of multiply-adds of an image model of `timm`, for one forward pass over one square
    image of `image_size` pixels.
    """

    parameters: float
    multiply_adds: float
    image_size: int


@cache
def networks() -> dict[str, Network]:
    """Return the image models of `timm` with published multiply-adds, by name. The dictionary is shared."""
    text = resources.files("virtualgpu").joinpath("published", "timm-models.csv").read_text(encoding="utf-8")
    return {
        row["model"]: Network(
            1e6 * float(row["parameters_millions"]), 1e9 * float(row["gmacs"]), int(row["gmacs_image_size"])
        )
        for row in csv.DictReader(text.splitlines())
        if row["gmacs"]
    }


class Training(NamedTuple):
    """A published number of a training run, `value` in `unit`; `setting` is the source's name for it."""

    source: str
    setting: str
    gpu: str
    unit: str
    value: float
    note: str


def trainings(source: str | None = None) -> list[Training]:
    """Return published speeds and memory of training runs, of one source or of all.

    The sources and their settings: `virtualgpu/published/README.md`. Raises ValueError for an unknown source.
    """
    text = resources.files("virtualgpu").joinpath("published", "others.csv").read_text(encoding="utf-8")
    rows = [Training(**{**row, "value": float(row["value"])}) for row in csv.DictReader(text.splitlines())]  # type: ignore[arg-type]
    names = list(dict.fromkeys(row.source for row in rows))
    if source is not None and source not in names:
        raise ValueError(f"source is {source!r}; it must be one of {', '.join(names)}")
    return [row for row in rows if source in (None, row.source)]


class Gain(NamedTuple):
    """One model in two settings; `ratio` is the speed of the second over that of the first."""

    model: str
    image_size: int
    batches: tuple[int, int]
    ratio: float


def gains(before: str, after: str, *, equal_batch: bool = True) -> list[Gain]:
    """Return the speedup of each model from the setting `before` to `after`, for equal image sizes.

    Only rows of equal batch are compared, else the speedup of the batch would count too; `equal_batch=False` compares
    all, as for a CPU, whose batch is 1. Raises ValueError for an unknown setting.
    """
    rows = {(row.model, row.image_size): row for row in published(before)}
    pairs = [(rows[row.model, row.image_size], row) for row in published(after) if (row.model, row.image_size) in rows]
    return [
        Gain(new.model, new.image_size, (old.batch, new.batch), new.samples_per_s / old.samples_per_s)
        for old, new in pairs
        if not equal_batch or old.batch == new.batch
    ]


def _unpacked(package: str, *path: str) -> str:
    return gzip.decompress(resources.files(package).joinpath(*path).read_bytes()).decode()


# GB/s (10⁹ bytes) by bytes.
_RTX6000 = {  # pageable, pinned
    1024: (0.166182, 0.143581),
    2048: (0.315349, 0.294239),
    4096: (0.597544, 0.514139),
    8192: (0.951496, 0.873362),
    16384: (1.43369, 1.51713),
    32768: (2.19823, 2.99854),
    65536: (2.62084, 4.90551),
    131072: (3.19112, 6.95676),
    262144: (3.49482, 8.69639),
    524288: (3.69481, 10.1432),
    1048576: (3.75782, 11.0621),
}
_V100 = {
    100_000: 9.2,
    200_000: 10.5,
    400_000: 11.4,
    1_000_000: 11.7,
    2_000_000: 12.1,
    4_000_000: 12.3,
    10_000_000: 12.4,
    20_000_000: 12.4,
    30_000_000: 12.4,
    32_000_000: 10.5,
    36_000_000: 12.2,
    40_000_000: 10.8,
    44_000_000: 12.4,
    60_000_000: 12.4,
}


def copies() -> dict[str, dict[int, float]]:
    """Return recorded times of copies from the host to a GPU, in milliseconds, by number of bytes.

    "pageable" and "pinned": a Quadro RTX 6000, 1 KiB to 1 MiB, each the mean of 100 calls of cudaMemcpy, one after the
    other (github.com/npho/cse554, assignment1/host_GPU/benchmark.csv). "pinned, V100": a V100 with 32 GB on PCIe 3,
    100 kB to 60 MB, the mean of 100 copies that were queued together, by NVIDIA's bandwidthTest
    (github.com/microsoft/superbenchmark, tests/data/cuda_memory_h2d_bw.log; MIT).
    """
    return {
        "pageable": {size: size / pageable * 1e-6 for size, (pageable, _) in _RTX6000.items()},
        "pinned": {size: size / pinned * 1e-6 for size, (_, pinned) in _RTX6000.items()},
        "pinned, V100": {size: size / rate * 1e-6 for size, rate in _V100.items()},
    }
