"""Times of batch norms and depthwise convolutions, as an H200 had them."""

import json
import statistics

import pytest
import torch

from gpulab import VirtualGPU

from .recorded import HERE, recorder

measure_norms = recorder("measure_norms")
MEASURED = json.loads((HERE / "norms_h200.json").read_text())
TIMES = "forward", "backward", "input", "weight"
# Median of predicted over recorded, of 64 images, by what it is; where nothing says otherwise, within 0.6 and 1.4.
LOW = {"batch_norms, last, evaluation": 0.2}  # its backward with channels last is not mirrored


def once(call):
    """One call's, with the host ahead."""
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


@pytest.fixture(scope="module")
def ratios():
    """Predicted over recorded by kind."""
    found = {}
    with VirtualGPU("H200", compute=False):
        for table in ("batch_norms", "depthwise"):
            for row in MEASURED[table]:
                if row["batch"] != 64:
                    continue
                given = {name: value for name, value in row.items() if name not in TIMES}
                run = measure_norms.batch_norm if table == "batch_norms" else measure_norms.depthwise
                predicted = run(**given, time=once)
                kind = ", ".join(
                    [table, "last" if row["last"] else "first", *([] if row.get("train", True) else ["evaluation"])]
                )
                for name in TIMES:
                    if name in row:
                        found.setdefault((kind, row["dtype"], name), []).append(predicted[name] / row[name])
    return found


def test_medians_are_near_and_no_single_shape_is_far(ratios):
    assert len(ratios) == 3 * (4 * 2 + 2 * 3)
    for (kind, dtype, name), values in ratios.items():
        middle = statistics.median(values)
        assert LOW.get(kind, 0.6) < middle < 1.4, (kind, dtype, name, values)


def test_few_channels_first_take_longer_than_many_of_the_same_bytes(ratios):
    """Each channel is one block's."""
    with VirtualGPU("H200", compute=False):
        few, many = (
            measure_norms.batch_norm(channels, side, 64, "float32", False, True, time=once)["forward"]
            for channels, side in ((64, 112), (256, 56))
        )
    assert few > 1.5 * many  # an H200: 0.46 and 0.21 ms


@pytest.mark.parametrize("shape", [(4096, 512), (4096, 512, 1, 1)], ids=["rows", "images of one pixel"])
@pytest.mark.parametrize("train", [True, False], ids=["training", "evaluation"])
def test_what_was_not_measured_is_bound_by_memory(shape, train):
    """Rows have no planes that one block could have."""
    took = {}
    for name in ("A100-80", "H100"):
        with VirtualGPU(name, compute=False):
            layer = (torch.nn.BatchNorm1d if len(shape) == 2 else torch.nn.BatchNorm2d)(512).cuda().train(train)
            x = torch.empty(shape, device="cuda")
            took[name] = once(lambda layer=layer, x=x: layer(x))
    assert took["H100"] < 2 * took["A100-80"]
