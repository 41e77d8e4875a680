"""A few rounds of the mixed use of tools/evidence/soak.py: nothing stays behind on the GPU, nor on the host."""

import gc
import warnings
from collections import Counter

import torch
from evidence import soak

from virtualgpu.scope.labels import Label


def alive():
    gc.collect()
    kinds = (torch.Tensor, Label, torch.nn.Module)
    return Counter(type(thing) for thing in gc.get_objects() if issubclass(type(thing), kinds))


def test_rounds_of_mixed_use_leave_no_tensor_label_or_module_behind():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        soak.one_round()
        before = alive()
        for _ in range(2):
            soak.one_round()
    assert alive() - before == Counter()
