"""The workers that the check of seeds plays draw what real ones draw."""

import functools
import itertools
import multiprocessing
import random
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

import gpulab
from gpulab.course import lesson

Drawing = lesson(9).part("checks.seeded_workers").Drawing
Workers = lesson(9).part("checks.workers").Workers

forks = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the functions are local")


def own(worker):
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


def counts(calls=[]):  # noqa: B006 - what a worker's copy of it does is what is tested
    def init(worker):
        calls.append(worker)
        get_worker_info().dataset.rng = np.random.default_rng(len(calls))

    return init


class Counts:
    def __init__(self):
        self.calls = 0

    def __call__(self, worker):
        self.calls += 1
        get_worker_info().dataset.rng = np.random.default_rng(self.calls)


def with_default(worker, calls=[]):  # noqa: B006 - the same
    calls.append(worker)
    get_worker_info().dataset.rng = np.random.default_rng(len(calls))


def with_attribute(worker):
    with_attribute.calls = getattr(with_attribute, "calls", 0) + 1
    get_worker_info().dataset.rng = np.random.default_rng(with_attribute.calls)


def drawn(numbers, worker):
    get_worker_info().dataset.rng = np.random.default_rng([next(numbers), worker])


INITS = {
    "none": None,
    "own": own,
    "counts": counts(),
    "object": Counts(),
    "method": Counts().__call__,
    "default": with_default,
    "attribute": with_attribute,
    "iterator": functools.partial(drawn, itertools.count()),
    "seeds": functools.partial(drawn, iter(np.random.SeedSequence(3).generate_state(9).tolist())),
}


def loader(workers, **options):
    random.seed(1)
    data = Drawing(13)
    return DataLoader(data, 3, num_workers=workers, generator=torch.Generator().manual_seed(5), **options)


@forks
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("init", INITS.values(), ids=INITS)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_played_workers_draw_what_real_ones_draw(workers, persistent, init):
    options = {"shuffle": True, "persistent_workers": persistent, "worker_init_fn": init}
    real, played = loader(workers, multiprocessing_context="fork", **options), Workers(loader(workers, **options))
    for _ in range(2):
        assert torch.equal(torch.cat(list(real)), torch.cat(played.epoch()))


def test_played_workers_leave_the_process_as_it_was():
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    threads = set(threading.enumerate())  # Another test's may end meanwhile.
    own_loader = loader(2, shuffle=True, worker_init_fn=own)
    before = own_loader.dataset.rng.bit_generator.state
    random.setstate(states[1])
    Workers(own_loader).epoch()
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert own_loader.dataset.rng.bit_generator.state == before
    assert get_worker_info() is None
    assert set(threading.enumerate()) <= threads


def test_an_answer_that_goes_over_its_loader_starts_no_worker(monkeypatch):
    """A check has so many scenes and ranks that it would be hundreds."""
    asked, started = [], []
    monkeypatch.setattr(multiprocessing.Process, "start", lambda process: started.append(process))
    monkeypatch.setattr(torch.utils.data.dataloader._MultiProcessingDataLoaderIter, "__del__", lambda it: None)

    def make_loader(dataset, batch_size, cores, ranks=1, rank=0, train=True):
        loader = DataLoader(dataset, batch_size, num_workers=8, persistent_workers=True)
        asked.extend([len(list(loader)), loader.num_workers, len(list(loader))])
        return iter(loader)

    with pytest.raises(gpulab.CheckFailed) as caught:
        gpulab.check.make_loader(make_loader)
    assert caught.value.summary == "an iterator was returned"
    assert started == []
    assert set(asked[1::3]) == {8}
    assert asked[::3] == asked[2::3]
