"""What multiprocessors get through in a cycle, where neither memory nor arithmetic units are the limit. No torch.

Constants are from the kernels of training steps on an H200, alone (`operations_ms` of its recording), in cycles of its
boost clock: they are taken to hold for other generations by their number of multiprocessors and their clock.
"""

from __future__ import annotations

from .rates import Rates

# Bytes per cycle that a multiprocessor moves from and to memory in kernels that load one number at a time: copies
# between layouts 5.4 to 6.1, sums of columns 5.3 to 6.4, sums of groups 5.2 to 5.7. Each thread has four loads under
# way and no more (`elementwise_kernel<128, 4>` in CUDALoops.cuh, `vt0 = 4` in Reduce.cuh).
_ONE_BY_ONE = 6.0
# Numbers per cycle of a multiprocessor in elementwise kernels of two dtypes, 0.9 to 1.2: which cast it is, is asked for
# each number (`fetch_and_cast` in c10/core/DynamicCast.h).
_CASTS = 1.0
# Cycles of a multiprocessor for each row of a layer norm, beside its traffic: a block of 128 threads for each row adds
# up over warps and waits twice (layer_norm_kernel.cu). Rows of 96 and of 768 numbers take the same.
_ROW, _ROW_BACKWARD = 390, 330
# Bytes per cycle that one multiprocessor reads at most: the gradients of a layer norm's weight and bias have a block
# for each 32 columns (GammaBetaBackwardCUDAKernel), so that few leave multiprocessors idle. Longer columns are cut.
_ONE_MULTIPROCESSOR = 50.0
_COLUMNS, _CUT = 32, 1 << 16
_ONE_BLOCK = 3.6  # bytes per cycle that one block of a group norm's sums reads

_EXPONENTIALS = 16  # per cycle of a multiprocessor, from 7.0 on: CUDA programming guide, arithmetic instructions


def exponentials(rates: Rates, numbers: float) -> float:
    """Return the seconds for so many exponentials."""
    return numbers / (_EXPONENTIALS * rates.cycles)


def one_by_one(rates: Rates, nbytes: float) -> float:
    """Return the least seconds for a kernel that moves `nbytes`, and loads one number at a time."""
    return nbytes / (_ONE_BY_ONE * rates.cycles)


def casts(rates: Rates, numbers: int) -> float:
    """Return the least seconds for an elementwise kernel of two dtypes with so many results."""
    return numbers / (_CASTS * rates.cycles)


def layer_norm(rates: Rates, rows: int, *, backward: bool = False) -> float:
    """Return the seconds of a layer norm's rows beside their traffic."""
    return rows * (_ROW_BACKWARD if backward else _ROW) / rates.cycles


def sums_of_columns(rates: Rates, rows: int, columns: int, nbytes: float) -> float:
    """Return the least seconds for a layer norm's gradients of weight and bias, which read `nbytes`."""
    blocks = -(-columns // _COLUMNS)
    if rows > _CUT and 2 * blocks < rates.sms:
        return 0.0
    return nbytes / (_ONE_MULTIPROCESSOR * min(blocks, rates.sms) / rates.sms * rates.cycles)


def sums_of_groups(rates: Rates, groups: int, nbytes: float) -> float:
    """Return the least seconds for reading `nbytes` to add up each of so many groups in a block of its own."""
    of_blocks = _ONE_BLOCK * groups / rates.sms
    return nbytes / (min(_ONE_BY_ONE, of_blocks) * rates.cycles)
