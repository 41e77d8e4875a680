"""Features of the C++ reducer that ours does not support, each refused by name."""

from __future__ import annotations

from typing import Any

from ..scope.refusals import NotMirrored


def not_mirrored(what: str) -> NotMirrored:
    return NotMirrored(
        f"DistributedDataParallel with {what} is not mirrored in shapes-only mode. With compute=True it runs."
    )


def sparse() -> NotMirrored:
    return NotMirrored("DistributedDataParallel with sparse gradients is not mirrored: NCCL reduces dense tensors")


class Named:
    """The methods of `torch.distributed.Reducer` that are refused."""

    def _set_manual_finalization_required(self, required: bool) -> None:
        if required:
            raise not_mirrored("require_manual_backward_finalization=True")

    def _should_finalize_after_backward(self) -> bool:
        return False

    def _set_forward_pass_work_handle(self, work: Any, use_static_world_size: bool) -> None:
        raise not_mirrored("join(), which reads from the GPU how many ranks go on,")

    def _set_mixed_precision_param_dtype(self, dtype: Any) -> None:
        raise not_mirrored(f"mixed_precision= with parameters in {dtype}")

    def _set_sparse_metadata(self, metadata: Any) -> None:
        raise sparse()
