"""Defines the capstone's faults, edits of the correct script, and applies a choice of them.

Each fault is in a place, which a probe of lesson 15's checks measures. A script has at most one fault in a place, so
that any choice can be combined, and repaired in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from .places import PLACES


@dataclass(frozen=True)
class Fault:
    """A fault of one place: pieces of the correct script, each with its replacement."""

    name: str
    place: str
    edits: tuple[tuple[str, str], ...]

    def apply(self, script: str) -> str:
        """Return the script with this fault. ValueError if a piece is not in it exactly once."""
        for old, new in self.edits:
            if script.count(old) != 1:
                raise ValueError(f"{self.name}: the script has {old!r} {script.count(old)} times, not once")
            script = script.replace(old, new)
        return script


def _fault(name: str, place: str, *edits: tuple[str, str]) -> Fault:
    return Fault(name, place, edits)


_ATTENTION = "        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
_BLOCKS = "        for block in self.blocks:\n            x = block(x)\n"
_IMPORT = "from torch.utils.data import DataLoader, Dataset\n"
_LOSS = "            loss, _ = loss_of(model, tokens, targets)\n"
_IN_WINDOW = "sum(targets.numel() for _, targets in window)"
_SUMS = "        total, right, words = total + loss, right + hits, words + targets.numel()\n"
_HELD = '    held = {"model": model, "optimizer": optimizer, "scaler": scaler, "schedule": schedule}\n'
_PARTS = _HELD + "    for name, part in held.items():\n"
_STATE = '    parts = {"model": model, "optimizer": optimizer, "scaler": scaler, "schedule": schedule}\n'
_CLIP = "        scaler.unscale_(optimizer)\n        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"

FAULTS = (
    _fault(
        "scores_kept",
        "attention",
        (
            _ATTENTION,
            "        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5\n"
            "        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)\n"
            "        mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ v\n",
        ),
    ),
    # The two mean the same, but autocast runs `pow` in float32 and keeps a float32 copy of what is squared.
    _fault("squared_as_power", "activation", ("hidden * hidden", "hidden**2")),
    _fault(
        "blocks_recomputed",
        "recomputation",
        (_IMPORT, "from torch.utils.checkpoint import checkpoint\n" + _IMPORT),
        (_BLOCKS, _BLOCKS.replace("block(x)", "checkpoint(block, x, use_reentrant=False)")),
    ),
    _fault(
        "norms_with_graph",
        "log",
        ("        self.norm, self.head = nn", "        self.norms = []\n        self.norm, self.head = nn"),
        (
            "        return self.head(self.norm(x))",
            "        self.norms.append(x.norm())\n        return self.head(self.norm(x))",
        ),
    ),
    _fault(
        "features_kept",
        "log",
        ("        self.norm, self.head = nn", "        self.features = []\n        self.norm, self.head = nn"),
        (
            "        return self.head(self.norm(x))",
            "        self.features.append(x.detach())\n        return self.head(self.norm(x))",
        ),
    ),
    _fault(
        "retained",
        "history",
        (".backward()", ".backward(retain_graph=True)"),
        ("total += loss.detach()", "total = total + loss"),
    ),
    _fault("graph_in_evaluation", "graph", ("@torch.inference_mode()\n", "")),
    _fault(
        "retry_in_except",
        "search",
        (
            "                raise\n        batch //= 2  # here the exception is gone, and what its traceback held\n",
            "                raise\n            return largest_batch(attempt, batch // 2)\n",
        ),
    ),
    _fault("any_error", "search", ("        except torch.OutOfMemoryError:\n", "        except RuntimeError:\n")),
    _fault(
        "odd_rows",
        "vocabulary",
        (
            "WORDS = 50304  # GPT-2 has 50,257 words; the rest makes the number a multiple of 64",
            "WORDS = 50257  # GPT-2's",
        ),
    ),
    _fault("bfloat16", "precision", ('"cuda", dtype=torch.float16', '"cuda", dtype=torch.bfloat16')),
    _fault("float32", "precision", ('"cuda", dtype=torch.float16', '"cuda", enabled=False')),
    _fault("one_by_one", "optimizer", ("lr=rate, fused=True", "lr=rate, foreach=False")),
    _fault(
        "printed_loss", "waits", (_LOSS, _LOSS + '            print(f"loss {loss.item() / targets.numel():.3f}")\n')
    ),
    _fault(
        "asked_for_nan",
        "waits",
        (
            _LOSS,
            _LOSS + "            if not torch.isfinite(loss):\n"
            '                raise FloatingPointError("the loss is not finite")\n',
        ),
    ),
    _fault(
        "places_on_host",
        "forward",
        ("torch.arange(tokens.shape[1], device=tokens.device)", "torch.arange(tokens.shape[1]).to(tokens.device)"),
    ),
    _fault("pageable", "copies", (", pin_memory=True\n", "\n")),
    _fault(
        "blocking",
        "copies",
        (
            'yield tokens.to("cuda", non_blocking=True), targets.to("cuda", non_blocking=True)',
            'yield tokens.to("cuda"), targets.to("cuda")',
        ),
    ),
    _fault(
        "emptied",
        "cache",
        (
            "        optimizer.zero_grad()\n    return",
            "        optimizer.zero_grad()\n        torch.cuda.empty_cache()\n    return",
        ),
    ),
    _fault(
        "launches_timed",
        "clock",
        ("        step()\n    torch.cuda.synchronize()\n    return 10", "        step()\n    return 10"),
    ),
    _fault(
        "first_step_timed",
        "clock",
        (
            "    for _ in range(3):\n        step()\n    torch.cuda.synchronize()\n    start",
            "    torch.cuda.synchronize()\n    start",
        ),
    ),
    _fault(
        "clipped_while_scaled",
        "clipping",
        (_CLIP, "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        scaler.unscale_(optimizer)\n"),
    ),
    _fault("step_past_scaler", "overflow", ("        scaler.step(optimizer)\n", "        optimizer.step()\n")),
    _fault("schedule_always", "overflow", (">= before:", ">= before / 2:")),
    _fault(
        "last_dropped",
        "window",
        (
            "    while window := list(islice(batches, size)):\n",
            "    while len(window := list(islice(batches, size))) == size:\n",
        ),
    ),
    _fault("last_as_if_full", "window", (_IN_WINDOW, "window[0][1].numel() * accumulate")),
    _fault("not_divided", "window", (_IN_WINDOW, _IN_WINDOW.replace("sum", "max"))),
    _fault(
        "mean_of_means",
        "mean",
        (
            _SUMS,
            "        n = targets.numel()\n"
            "        total, right, words = total + loss / n, right + hits / n, words + 1\n",
        ),
    ),
    _fault("dropout_in_evaluation", "modes", ("    model.eval()\n", "")),
    _fault("no_dropout_in_training", "modes", ("    model.train()\n", "")),
    _fault(
        "vectors_left_out",
        "parameters",
        (
            "vectors = [p for p in model.parameters() if p.ndim < 2]",
            "vectors = [p for p in model.parameters() if p.ndim < 1]",
        ),
    ),
    _fault("last_samples_dropped", "dealing", ("drop_last=train", "drop_last=True")),
    _fault("same_order", "dealing", ("shuffle=train", "shuffle=False")),
    _fault(
        "weights_alone",
        "resuming",
        (_STATE, '    parts = {"model": model}\n'),
        (_PARTS + "        part.load_state_dict(state[name])\n", '    model.load_state_dict(state["model"])\n'),
    ),
    _fault(
        "scaler_forgotten",
        "resuming",
        (_STATE, '    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}\n'),
        (
            _HELD,
            '    held = {"model": model, "optimizer": optimizer, "schedule": schedule}\n',
        ),
    ),
    _fault("second_copy", "resuming", (', map_location="cpu"', "")),
)

# Of the exercise: four of each kind; together they are slow, leak, run out of memory and do not train.
FIRST = (
    *("scores_kept", "squared_as_power", "retained", "graph_in_evaluation"),
    *("bfloat16", "printed_loss", "one_by_one", "pageable"),
    *("clipped_while_scaled", "last_as_if_full", "mean_of_means", "weights_alone"),
)

# Of the lecture, which repairs them: one of each kind, none of them among the first.
LECTURE = ("norms_with_graph", "float32", "step_past_scaler")


@cache
def sound() -> str:
    return resources.files(__package__).joinpath("sound.txt").read_text(encoding="utf-8")


def with_faults(names: Iterable[str]) -> str:
    """Return the script with these faults. ValueError for an unknown name, or two faults in one place."""
    known = {fault.name: fault for fault in FAULTS}
    script, taken = sound(), dict[str, str]()
    for name in names:
        if name not in known:
            raise ValueError(f"there is no fault {name!r}; the faults are: {', '.join(known)}")
        place = known[name].place
        if place in taken:
            raise ValueError(
                f"{name!r} and {taken[place]!r} are in the same place, {place}: a script can have only one of them"
            )
        taken[place] = name
        script = known[name].apply(script)
    return script


def places_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the places of these faults, in the order of `PLACES`."""
    there = {fault.place for fault in FAULTS if fault.name in set(names)}
    return tuple(name for name in PLACES if name in there)
