"""Assign roles to tensors: find modules, optimizers and trainable tensors through the garbage collector.

So the user need not pass them, wherever they are kept. Nothing here keeps one of them alive.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .. import collecting
from ..scope.patches import Patches

if TYPE_CHECKING:
    from .ledger import Ledger


@contextlib.contextmanager
def existing_objects_protected() -> Iterator[None]:
    """Exclude objects that exist already from the search, and refuse to move or convert existing modules.

    A module that moves to a GPU without values would lose its own, which the user may still need.
    """
    import torch._dynamo  # optimizers import it; its objects then exist already

    with collecting.collect_new_only(for_long=True):  # it freezes them, and leaves those that are made to be found
        known = {id(module): module for module in _all(torch.nn.Module)[torch.nn.Module]}
        made: set[int] = set()
        own: Any = torch.nn.Module._apply

        def is_made_within(module: torch.nn.Module) -> bool:
            if id(module) not in made:
                made.update(map(id, _all(torch.nn.Module)[torch.nn.Module]))
            return id(module) in made and id(module) not in known

        def _apply(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not is_made_within(self):
                raise RuntimeError(
                    f"build moves or converts a {type(self).__name__} that was made before build was called: a plan "
                    "knows shapes only, so the module would lose its values. Make the model within build, or let build "
                    "take a copy, copy.deepcopy(model)."
                )
            return own(self, *args, **kwargs)

        patches = Patches()
        patches.set(torch.nn.Module, "_apply", _apply)
        try:
            yield
        finally:
            patches.restore()


def assign_roles(ledger: Ledger) -> list[torch.Tensor]:
    """Mark weights, gradients and optimizer state in the ledger; return the tensors that can have a gradient."""
    found = _all(torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
    # A tensor that requires_grad was set on is a weight, also outside of any module.
    leaves = {id(t): t for t in found[torch.Tensor] if t.requires_grad and t.is_leaf}
    for module in found[torch.nn.Module]:
        ledger.hold("weights", [*module._parameters.values(), *module._buffers.values()])
    for optimizer in found[torch.optim.Optimizer]:
        leaves |= {id(p): p for p in _parameters(optimizer) if p.is_leaf}
    ledger.hold("weights", leaves.values())
    for optimizer in found[torch.optim.Optimizer]:
        ledger.hold("optimizer_state", tensors_in(optimizer.state))
    ledger.hold("gradients", (t.grad for t in leaves.values()))
    return [t for t in leaves.values() if t.requires_grad]


def begin_optimizer_step(ledger: Ledger, optimizer: Any) -> None:
    """Tell the ledger that this optimizer begins its step."""
    ledger.optimizing = True
    ledger.hold("gradients", [p.grad for p in _parameters(optimizer)])


@contextlib.contextmanager
def roles_tracked(ledger: Ledger, *, optimizers: bool = True) -> Iterator[None]:
    """For one step, tell the ledger of gradients as they come to `.grad`, and of running optimizers.

    Without `optimizers` the caller reports them, with `begin_optimizer_step`.
    """

    def before(optimizer: Any, *_: Any) -> None:
        begin_optimizer_step(ledger, optimizer)

    def after(*_: Any) -> None:
        ledger.optimizing = False

    with contextlib.ExitStack() as stack:
        if optimizers:
            stack.callback(register_optimizer_step_pre_hook(before).remove)
            stack.callback(register_optimizer_step_post_hook(after).remove)
        # The list of tensors gets no name here: it would keep them alive as long as this generator.
        hold_gradient = lambda tensor: ledger.hold("gradients", [tensor.grad])  # noqa: E731
        for remove in _on_gradients(assign_roles(ledger), hold_gradient):
            stack.callback(remove)
        yield


def _on_gradients(tensors: list[torch.Tensor], call: Callable[[torch.Tensor], None]) -> list[Callable[[], None]]:
    """Call `call` whenever autograd has changed the `.grad` of one of the tensors; return the calls that undo this."""
    undo: list[Callable[[], None]] = []
    for tensor in tensors:
        handle = tensor.register_post_accumulate_grad_hook(call)
        # First in order: a hook of the user's may consume the gradient.
        hooks: Any = tensor._post_accumulate_grad_hooks
        hooks.move_to_end(handle.id, last=False)
        undo.append(handle.remove)
    return undo


def _parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors anywhere in an optimizer's state."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def _all(*kinds: type) -> dict[type, list[Any]]:
    """Return every object of each kind, except frozen ones."""
    found: dict[type, list[Any]] = {kind: [] for kind in kinds}
    wanted = {cls: kind for kind in reversed(kinds) for cls in _classes(kind)}
    # By type(), since `__class__` may lie or warn; and the whole loop in C.
    objects = gc.get_objects()
    for item in itertools.compress(objects, map(wanted.__contains__, map(type, objects))):
        found[wanted[type(item)]].append(item)
    return found


def _classes(kind: type) -> set[type]:
    """Return `kind` and its subclasses: hundreds of classes, against hundreds of thousands of objects."""
    found, new = {kind}, [kind]
    while new:
        more: set[type] = set(type.__subclasses__(new.pop())) - found
        found |= more
        new += more
    return found
