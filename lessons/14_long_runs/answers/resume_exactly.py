"""Answers to "to the bit"."""

import copy
import io
import random

import numpy as np
import torch
from banks.bank import Bank
from banks.edits import add, change, drop

BANK = Bank("resume_exactly", "Resumable")
PARTS = 'for part in ("model", "optimizer", "scheduler", "scaler")'
INIT, COPY, RETURN = "self.run = run\n", "self.run, copy.deepcopy(state)", "return copy.deepcopy(state)"
LOAD, WHERE = "getattr(run, part).load_state_dict(state[part])", 'run.epoch, run.place, order = state["where"]'
HERE, ORDER = "run.epoch, run.place, run.order\n", "run.order = order if order is None else order.cpu()"
STATE = "    def state_dict(self):\n"


def loaded(*parts):
    """These parts alone are loaded."""
    return change(f"        {PARTS}:", f"        for part in {parts}:")


@BANK.right
class Written:
    """Piece by piece; copies are made by writing and reading, and NumPy's state goes as bytes in a tensor."""

    def __init__(self, run):
        self.run = run

    def state_dict(self):
        run = self.run
        _, keys, *rest = np.random.get_state()
        state = {name: getattr(run, name).state_dict() for name in ("model", "optimizer", "scheduler", "scaler")}
        state |= {
            "epoch": run.epoch,
            "place": run.place,
            "order": None if run.order is None or not run.place else run.order.tolist(),
            "python": list(random.getstate()[1]),
            "gauss": random.getstate()[2],
            "numpy": torch.from_numpy(keys.astype(np.int64)),
            "rest": rest,
            "torch": torch.random.get_rng_state().tolist(),
            "gpus": [torch.cuda.get_rng_state(i).tolist() for i in range(torch.cuda.device_count())],
        }
        torch.save(state, file := io.BytesIO())
        file.seek(0)
        return torch.load(file)

    def load_state_dict(self, state):
        run = self.run
        run.model.load_state_dict(state["model"], strict=True)
        run.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        run.scaler.load_state_dict(state["scaler"])
        run.scheduler.load_state_dict(state["scheduler"])
        run.epoch, run.place = int(state["epoch"]), int(state["place"])
        run.order = None if state["order"] is None else torch.tensor(state["order"])
        for i, numbers in enumerate(state["gpus"]):
            torch.cuda.set_rng_state(torch.tensor(numbers, dtype=torch.uint8), i)
        random.setstate((3, tuple(state["python"]), state["gauss"]))
        np.random.set_state(("MT19937", state["numpy"].cpu().numpy().astype(np.uint32), *state["rest"]))
        torch.random.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))


BANK.right((change("getattr(run, part).state_dict() for", "copy.deepcopy(getattr(run, part).state_dict()) for"),
            change(RETURN, "return state"), change(HERE, "run.epoch, run.place, copy.copy(run.order)\n")))  # fmt: skip
BANK.mistakes(
    ("what was returned is not a dictionary", "return the dictionary itself; the caller calls torch.save",
     change(RETURN, "torch.save(state, file := io.BytesIO())\n        return file.getvalue()")),
    ("the optimizer starts afresh, without its momentum and its counts",
     "model.state_dict() has no momentum: optimizer.state_dict() has it, with the groups' numbers",
     loaded("model", "scheduler", "scaler")),
    ("the weights and buffers are not loaded", 'model.load_state_dict(state["model"])',
     loaded("optimizer", "scheduler", "scaler")),
    ("the buffers are not loaded", "BatchNorm's running means are buffers: state_dict() has parameters and buffers",
     (loaded("optimizer", "scheduler", "scaler"), add(
         'for name, p in run.model.named_parameters(): p.data.copy_(state["model"][name])', before=WHERE))),
    ("the optimizer's groups keep their old learning rates",
     "optimizer.load_state_dict restores state and groups; the schedule has changed the learning rate",
     change(f"            {LOAD}", '            old = [{k: v for k, v in g.items() if k != "params"} for g in '
            f"run.optimizer.param_groups]\n            {LOAD}\n"
            "            [g.update(o) for g, o in zip(run.optimizer.param_groups, old)]")),
    ("the schedule starts afresh",
     "scheduler.state_dict() has its position; the optimizer has only the current learning rate",
     loaded("model", "optimizer", "scaler")),
    ("the scaler starts afresh", "scaler.state_dict() has its scale, and how many good steps in a row it has counted",
     loaded("model", "optimizer", "scheduler")),
    ("the scaler forgets how many good steps it has counted",
     "scaler.state_dict() has the count beside the scale: the scale grows after growth_interval steps in a row",
     change("(state[part])", '(state[part] | ({"_growth_tracker": 0} if part == "scaler" else {}))')),
    ("the run's position in its epoch is not loaded",
     "epoch and place: with a wrong place an epoch uses some data twice, or never",
     change("run.epoch, run.place, order = ", "_, _, order = "),
     (change("run.epoch, run.place, order = ", "run.epoch, _, order = "), add("run.place = 0", before=ORDER))),
    ("the order of this epoch's data is not loaded",
     "it was drawn when the epoch began, and the generator has moved on since: save it", drop(ORDER)),
    ("the rest of the epoch is shuffled anew",
     "a new permutation has other samples in its rest: some come twice, and some never",
     change("order.cpu()", "order.cpu().flip(0)")),
    ("before the first epoch there is no order to copy", "run.order is None then: copy.deepcopy copies that too",
     change(HERE, "run.epoch, run.place, run.order.clone()\n")),
    ("an order of None is not loaded", "a run that has not begun has no order: the loaded run must not keep its own",
     change("order if order is None", "run.order if order is None")),
    ("Python's generator is not loaded", "augmentation draws from random: random.getstate() and random.setstate()",
     drop("random.setstate")),
    ("NumPy's generator is not loaded", "torch.manual_seed does not affect it: np.random.get_state() and set_state()",
     drop("np.random.set_state")),
    ("the number that a generator holds back is left out",
     "random.gauss and np.random.normal draw two numbers at a time, and keep the second: restore all that getstate() "
     "and get_state() return", change('random.setstate(state["python"])',
     'random.setstate((*state["python"][:2], None))'),
     change('np.random.set_state(state["numpy"])', 'np.random.set_state(state["numpy"][:3])')),
    ("PyTorch's generator on the CPU is not loaded",
     "torch.get_rng_state() and torch.set_rng_state(): the next epoch's order comes from it",
     drop("torch.set_rng_state")),
    ("no GPU's generator is loaded",
     "dropout on the GPU draws from a generator of its own: torch.cuda.get_rng_state_all()",
     drop("torch.cuda.set_rng_state_all")),
    ("the current GPU's generator is loaded, and not those of the others",
     "get_rng_state() is for one GPU, get_rng_state_all() for all",
     change("torch.cuda.set_rng_state_all([numbers.cpu() for numbers in state[\"gpus\"]])",
            'torch.cuda.set_rng_state(state["gpus"][0].cpu())'),
     change("torch.cuda.get_rng_state_all()", "[torch.cuda.get_rng_state()] * torch.cuda.device_count()")),
    ("all of PyTorch's generators start again from their seed",
     "a seed is where the generator began; its state is where it is now",
     (change('torch.set_rng_state(state["cpu"].cpu())', 'torch.manual_seed(int(state["seed"]))'),
      drop("torch.cuda.set_rng_state_all"), add('state["seed"] = torch.initial_seed()', after='state["cpu"] ='))),
    ("the saved state is from an earlier moment",
     "the object is made once, but called at each checkpoint: collect the state in state_dict, each time",
     (change(INIT, "self.run, self.where = run, (run.epoch, run.place, run.order)\n"),
      change(f'state["where"] = {HERE}', 'state["where"] = self.where\n')),
     change(STATE, f"    @__import__('functools').cache\n{STATE}")),
    ("the state's tensors are the live ones",
     "state_dict() returns the live tensors: copy.deepcopy, or write them at once",
     change(RETURN, "return state")),
    ("the state returned before is overwritten", "return a new dictionary at each call: the first is a checkpoint",
     (change(INIT, f"{INIT}        self.out = {{}}\n"),
      change(RETURN, "self.out |= copy.deepcopy(state)\n        return self.out"))),
    ("the optimizer continues in the tensors of the loaded state",
     "its load_state_dict keeps them: load a copy, or the state has changed the second time",
     change(COPY, "self.run, state")),
    ("loading removes an entry from the state", "the second time it is missing: read it, without pop",
     (change('order = state["where"]', 'order = state.pop("where")'), change(COPY, "self.run, state"),
      change("(state[part])", "(copy.deepcopy(state[part]))"))),
    ("the state contains something that weights_only does not read",
     "it reads tensors, numbers, strings, lists and dictionaries: use keys.tolist() for NumPy's array, state_dict() "
     "for a model", change("keys.tolist()", "keys"),
     (change("getattr(run, part).state_dict() for", "getattr(run, part) for"),
      change("(state[part])", "(state[part].state_dict())"))),
    ("the generators' states are passed on the device where torch.load has put them",
     "set_rng_state takes a CPU tensor, even for a GPU: .cpu()",
     (change('state["cpu"].cpu()', 'state["cpu"]'),
      change('[numbers.cpu() for numbers in state["gpus"]]', 'state["gpus"]'))),
    ("the order is left where torch.load has put it", "it belongs on the CPU, where the data are: .cpu()",
     change("order if order is None else order.cpu()", "order")),
    ("the model has new parameters, and the optimizer steps the old ones",
     "assign=True puts other tensors into the model: load in place, or make the optimizer afterwards",
     change("(state[part])", '(state[part], **({"assign": True} if part == "model" else {}))')),
    ("a part of the run has been replaced by a new object",
     "code that refers to the old one, like the optimizer to the model, does not see it: use load_state_dict, in place",
     *(change(f"        {PARTS}:", f"        run.{part} = copy.deepcopy(run.{part})\n        {PARTS}:")
       for part in ("model", "scheduler"))),
    ("the loaded run continues in evaluation mode",
     "eval() turns dropout off and makes BatchNorm use its running means: call train()",
     add("run.model.eval()", before=WHERE)),
    ("saving changes the run itself",
     "saving must only read: no eval(), cpu() or requires_grad_(False) on the model, no zero_grad()",
     *(add(f"run.{call}", before="state = {part") for call in (
         "model.eval()", "model.cpu()", "model.requires_grad_(False)", "optimizer.zero_grad()"))),
    ("the loaded run cannot train: its parameters no longer require gradients",
     "load_state_dict copies in place without a gradient: no requires_grad_(False)",
     add("run.model.requires_grad_(False)", before=WHERE)),
    ("saving draws a random number, so all later ones differ",
     "draw a file name, or a sample to look at, from a generator of your own",
     add('state["name"] = random.random()', before='state["python"] =')),
    ("a number is drawn from PyTorch's generator after it was set", "set the generators last",
     add("torch.rand(1)", before="torch.cuda.set_rng_state_all")),
)  # fmt: skip
