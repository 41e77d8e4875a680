"""What NCCL's ranks say of the failures that are gloo's here: texts that others have recorded, each with its source.

Only where a failure is recognised; nothing here is predicted, and nothing is said of a run that has used NCCL itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .result import Rank, Run


@dataclass(frozen=True)
class Recorded:
    """A text as somebody's ranks have printed it; `source` is an issue on GitHub that shows it."""

    text: str
    source: str


TIMED_OUT = Recorded(
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600013 milliseconds before timing out.",
    "NVIDIA/Megatron-LM#1207",
)
# There another node's process had died.
GONE = Recorded(
    "[Rank 12] Collective WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=778567680, NumelOut=778567680, "
    "Timeout(ms)=1800000) raised the following async exception: NCCL error: remote process exited or there was a "
    "network error, NCCL version 2.21.5",
    "OpenRLHF/OpenRLHF#621",
)
# ncclCommGetAsyncError reports errors of the network between hosts only, and means to.
SILENT_WITHIN_A_NODE = "pytorch/pytorch#24906"
# It is the store's, before there is a backend.
IN_USE = Recorded(
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: "
    "29500, useIpv6: false, code: -98, name: EADDRINUSE",
    "vllm-project/vllm#39015",
)

_GLOO_TIMED_OUT = re.compile(r"Timed out waiting \d+ ?ms for (recv|send) operation to complete|gloo.*wait timeout")
_NCCL_ITSELF = re.compile(r"ProcessGroupNCCL|NCCL (error|WARN)|nccl\w+Error")


def beside(run: Run, culprit: Rank | None) -> list[str]:
    """Lines that follow a failure's own: `culprit` brought the run down, or None where time was up."""
    if any(_NCCL_ITSELF.search(rank.output) for rank in run.ranks):
        return []
    if culprit is None:
        return _timed_out() if any(rank.collective for rank in run.ranks) else []
    if "EADDRINUSE" in culprit.exception:
        return [
            f"With NCCL it is the same: ranks meet at that port before a backend starts (recorded: {IN_USE.source})."
        ]
    if _GLOO_TIMED_OUT.search(culprit.exception):
        return _timed_out()
    killed = (culprit.exit_code or 0) < 0 and not (culprit.exception or culprit.finished)
    lost = culprit.lost and "gloo/transport" in culprit.exception
    if len(run.ranks) > 1 and (lost or (killed and run.grouped)):
        return _gone()
    return []


def _timed_out() -> list[str]:
    return [
        "With NCCL the rank waits until its group's timeout is over, 10 minutes by default. Then its watchdog ends it "
        f"(recorded: {TIMED_OUT.source}):",
        f"    {TIMED_OUT.text}",
    ]


def _gone() -> list[str]:
    return [
        f"With NCCL a rank that waits for one on another node that is gone ends with (recorded: {GONE.source}):",
        f"    {GONE.text}",
        f"Within a node nothing notifies it ({SILENT_WITHIN_A_NODE}): it waits until it is stopped, or its group's "
        f"timeout is over (recorded: {TIMED_OUT.source}):",
        f"    {TIMED_OUT.text}",
    ]
