"""The peak of a plan is the peak that `torch.cuda` counts, whatever the step."""

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualgpu.planning import plan

from .steps import steady_peak

OPTIMIZERS = (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
DTYPES = (None, torch.float16)


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 3000),
    widths=st.lists(st.integers(1, 700), min_size=2, max_size=5),
    optimizer=st.sampled_from(OPTIMIZERS),
    dtype=st.sampled_from(DTYPES),
    keep=st.booleans(),
    none=st.booleans(),
)
def test_the_peak_of_a_small_network(batch, widths, optimizer, dtype, keep, none):
    def build(batch):
        layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
        model = torch.nn.Sequential(*layers).to("cuda")
        trained = optimizer(model.parameters())

        def step():
            x = torch.randn(batch, widths[0], device="cuda")
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                y = model(x)
                loss = y.square().mean()
                if not keep:
                    del x, y
            loss.backward()
            trained.step()
            trained.zero_grad(set_to_none=none)

        return step

    peak, reserved = steady_peak(build, batch)
    found = plan(build, batch, "T4")
    assert (found.peak_allocated, found.peak_reserved) == (peak, reserved)
    assert sum(found.categories.values()) == peak
    assert found.total == reserved + found.context


def test_the_peak_is_that_of_a_run_with_values():
    def build(batch):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).to("cuda")
        optimizer = torch.optim.Adam(model.parameters())

        def step():
            model(torch.randn(batch, 3, 32, 32, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    found = plan(build, 4, "T4")
    assert (found.peak_allocated, found.peak_reserved) == steady_peak(build, 4, compute=True)
