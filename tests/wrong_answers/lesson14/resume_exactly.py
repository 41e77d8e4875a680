"""Answers to "to the bit"."""

import copy
import dataclasses
import io
import random
from typing import Any

import numpy as np
import torch

from ..bank import Bank
from ..edits import add, change, drop

BANK = Bank("resume_exactly", "Resumable")
SOLUTION = BANK.solution
SAVED = 'for part in ("model", "optimizer", "scheduler", "scaler")}'
LOADED = 'for part in ("model", "optimizer", "scheduler", "scaler"):\n            getattr'


@BANK.right
class Written:
    """Piece by piece; copies are made by writing and reading, and NumPy's state goes as bytes in a tensor."""

    def __init__(self, run):
        self.run = run

    def state_dict(self):
        run = self.run
        _, keys, *rest = np.random.get_state()
        state = {
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "scheduler": run.scheduler.state_dict(),
            "scaler": run.scaler.state_dict(),
            "epoch": run.epoch,
            "place": run.place,
            "order": None if run.order is None else run.order.tolist(),
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
           change("return copy.deepcopy(state)", "return state"),
           change("run.epoch, run.place, run.order\n", "run.epoch, run.place, copy.copy(run.order)\n")))  # fmt: skip
BANK.right(change("run.place, run.order\n", "run.place, run.order if run.place else None\n"))


@BANK.right
@dataclasses.dataclass(slots=True)
class WithSlots:
    """A class that has `run` before any object of it is made."""

    run: Any

    def state_dict(self):
        return SOLUTION(self.run).state_dict()

    def load_state_dict(self, state):
        SOLUTION(self.run).load_state_dict(state)


@BANK.wrong("there is no load_state_dict", "two methods: one saves, the other loads")
class SavesOnly:
    def __init__(self, run):
        self.run = run

    def state_dict(self):
        return copy.deepcopy(self.run.model.state_dict())


BANK.mistakes(
    ("what came back is no dictionary", "return the dictionary itself; whoever saves it calls torch.save",
     change("return copy.deepcopy(state)", "torch.save(state, file := io.BytesIO())\n        return file.getvalue()")),
    ("the optimizer begins anew, with neither its momentum nor its counts",
     "model.state_dict() has no momentum: optimizer.state_dict() has it, with the groups' numbers",
     (change(SAVED, 'for part in ("model", "scheduler", "scaler")}'),
     change(LOADED, "for part in (\"model\", \"scheduler\", \"scaler\"):\n            getattr"))),
    ("the weights and buffers are not loaded", 'model.load_state_dict(state["model"])',
     change(LOADED, "for part in (\"optimizer\", \"scheduler\", \"scaler\"):\n            getattr")),
    ("the buffers are not loaded", "BatchNorm's running means are buffers: state_dict() has parameters and buffers",
     change(LOADED, 'for p, q in zip(run.model.parameters(), [v for k, v in state["model"].items() if k in '
     "dict(run.model.named_parameters())]):\n            p.data.copy_(q)\n        for part in "
     "(\"optimizer\", \"scheduler\", \"scaler\"):\n            getattr")),
    ("the optimizer's groups keep the learning rates that they had",
     "optimizer.load_state_dict brings state and groups; the schedule has changed the learning rate",
     change("            getattr(run, part).load_state_dict(state[part])",
     '            old = [{k: v for k, v in g.items() if k != "params"} for g in '
     "run.optimizer.param_groups]\n            getattr(run, "
     "part).load_state_dict(state[part])\n            [g.update(o) for g, o in "
     "zip(run.optimizer.param_groups, old)]")),
    ("the schedule begins anew",
     "scheduler.state_dict() has where it is; the optimizer has only the learning rate of this moment",
     (change(SAVED, 'for part in ("model", "optimizer", "scaler")}'),
     change(LOADED, "for part in (\"model\", \"optimizer\", \"scaler\"):\n            getattr"))),
    ("the scaler begins anew", "scaler.state_dict() has its scale, and how many good steps in a row it has counted",
     (change(SAVED, 'for part in ("model", "optimizer", "scheduler")}'),
     change(LOADED, "for part in (\"model\", \"optimizer\", \"scheduler\"):\n            getattr"))),
    ("the scaler forgets how many good steps it has counted",
     "scaler.state_dict() has the count beside the scale: growth comes after so many steps in a row",
     change("            getattr(run, part).load_state_dict(state[part])",
     '            getattr(run, part).load_state_dict(state[part] | ({"_growth_tracker": 0} if part == '
     '"scaler" else {}))')),
    ("the run does not know which batches of the epoch it has seen",
     "epoch and place: with another place an epoch sees some data twice, or never",
     change("        run.epoch, run.place, order = ", "        _, _, order = ")),
    ("the run goes on at the start of its epoch", "place, too: the batches before it have been trained on",
     change('        run.epoch, run.place, order = state["where"]',
     "        run.epoch, _, order = state[\"where\"]\n        run.place = 0")),
    ("the order of this epoch's data is not loaded",
     "it was drawn when the epoch began, and the generator has gone on since: save it", drop("run.order = order if")),
    ("the rest of the epoch is shuffled anew",
     "another permutation has other batches in its rest: some samples come twice, and some never",
     change("run.order = order if order is None else order.cpu()",
     "run.order = order if order is None else order.cpu().flip(0)")),
    ("before the first epoch there is no order to copy", "run.order is None then: copy.deepcopy copies that too",
     change("run.epoch, run.place, run.order\n", "run.epoch, run.place, run.order.clone()\n")),
    ("an order of None is not loaded", "a run that has not begun has none: the loaded run must not keep its own",
     change("order if order is None else order.cpu()", "run.order if order is None else order.cpu()")),
    ("Python's generator is not loaded", "augmentation draws from random: random.getstate() and random.setstate()",
     drop("random.setstate")),
    ("NumPy's generator is not loaded", "torch.manual_seed knows nothing of it: np.random.get_state() and set_state()",
     drop("np.random.set_state")),
    ("the number that random.gauss keeps is left out",
     "it draws two numbers at a time, and keeps the second: setstate with all that getstate() gives",
     change('random.setstate(state["python"])', 'random.setstate((*state["python"][:2], None))')),
    ("the number that np.random.normal keeps is left out",
     "it draws two numbers at a time, and keeps the second: set_state with all five that get_state() gives",
     change('np.random.set_state(state["numpy"])', 'np.random.set_state(state["numpy"][:3])')),
    ("PyTorch's generator on the CPU is not loaded",
     "torch.get_rng_state() and torch.set_rng_state(): the next epoch's order comes from it",
     drop("torch.set_rng_state")),
    ("no GPU's generator is loaded",
     "dropout on the GPU draws from a generator of its own: torch.cuda.get_rng_state_all()",
     drop("torch.cuda.set_rng_state_all")),
    ("the current GPU's generator is loaded, and not those of the others",
     "get_rng_state() is that of one GPU, get_rng_state_all() those of all",
     (change("torch.cuda.get_rng_state_all()", "[torch.cuda.get_rng_state()]"),
     change('torch.cuda.set_rng_state_all([numbers.cpu() for numbers in state["gpus"]])',
     'torch.cuda.set_rng_state(state["gpus"][0].cpu())'))),
    ("all of PyTorch's generators begin anew from their seed",
     "a seed is where the generator began; its state is where it is now",
     (change('torch.set_rng_state(state["cpu"].cpu())', 'torch.manual_seed(int(state["seed"]))'),
     drop("torch.cuda.set_rng_state_all"), add('state["seed"] = torch.initial_seed()', after='state["cpu"] ='))),
    ("the place is that of the moment when the object was made",
     "it is made once, and asked at each checkpoint: read epoch, place and order in state_dict",
     (change("        self.run = run\n", "        self.run, self.where = run, (run.epoch, run.place, run.order)\n"),
     change('state["where"] = run.epoch, run.place, run.order', 'state["where"] = self.where'))),
    ("the whole state is that of the moment when the object was made",
     "it is made once, and asked at each checkpoint: put the state together in state_dict",
     change("        self.run = run\n    def state_dict(self):\n",
     "        self.run = run\n        self.state = self.at_once()\n    def state_dict(self):\n        "
     "return self.state\n    def at_once(self):\n")),
    ("the state's tensors are those that go on training",
     "state_dict() gives the tensors themselves: copy.deepcopy, or write them at once",
     change("return copy.deepcopy(state)", "return state"),
     change("return copy.deepcopy(state)", "return dict(state)")),
    ("the optimizer goes on in the tensors of the state that was loaded",
     "its load_state_dict takes them over: load a copy, or the second time the state is another one",
     change("self.run, copy.deepcopy(state)", "self.run, state")),
    ("loading takes an entry out of the state", "the second time it is missing: read it, without pop",
     (change('order = state["where"]', 'order = state.pop("where")'),
     change("self.run, copy.deepcopy(state)", "self.run, state"),
     change("(state[part])", "(copy.deepcopy(state[part]))"))),
    ("the state holds what weights_only does not read",
     "tensors, numbers, texts, lists and dictionaries are read: keys.tolist() of NumPy's array, "
     "state_dict() of a model", change("keys.tolist()", "keys"),
     (change("getattr(run, part).state_dict() for", "getattr(run, part) for"),
     change("load_state_dict(state[part])", "load_state_dict(state[part].state_dict())"))),
    ("the generators' states are handed over where torch.load has put them",
     "set_rng_state takes a tensor on the CPU, also for a GPU: .cpu()",
     (change('state["cpu"].cpu()', 'state["cpu"]'),
     change('[numbers.cpu() for numbers in state["gpus"]]', 'state["gpus"]'))),
    ("the order lies where torch.load has put it", "it belongs on the CPU, where the data are: .cpu()",
     change("order if order is None else order.cpu()", "order")),
    ("the model has new parameters, and the optimizer steps the old ones",
     "assign=True puts other tensors into the model: load in place, or make the optimizer afterwards",
     change("getattr(run, part).load_state_dict(state[part])",
     'getattr(run, part).load_state_dict(state[part], **({"assign": True} if part == "model" else {}))')),
    ("run.model is another object now",
     "who holds the old one, as the optimizer does, does not see it: load_state_dict, in place",
     change("        for part", "        run.model = copy.deepcopy(run.model)\n        for part")),
    ("run's scheduler is another object now", "load_state_dict, in place: who holds the old one would go on with it",
     change("        for part", "        run.scheduler = type(run.scheduler)(run.optimizer, run.scheduler.step_size, "
     "run.scheduler.gamma)\n        for part")),
    ("the loaded run goes on in evaluation mode",
     "eval() turns dropout off and BatchNorm to its running means: train() goes on",
     add("run.model.eval()", before="run.epoch, run.place, order =")),
    ("saving leaves the model in evaluation mode", "a state dict is the same in both modes: leave the mode alone",
     add("run.model.eval()", before="state = {part")),
    ("saving leaves the model on the CPU",
     "module.cpu() moves the model itself: the tensors of a state_dict() can be copied one by one",
     add("run.model.cpu()", before="state = {part")),
    ("saving leaves parameters that are not trained any more",
     "requires_grad_(False) changes the model itself; the tensors of a state_dict() need no gradient anyway",
     add("run.model.requires_grad_(False)", before="state = {part")),
    ("the loaded run cannot step: its parameters are not trained any more",
     "load_state_dict copies in place without a gradient: no requires_grad_(False)",
     add("run.model.requires_grad_(False)", before="run.epoch, run.place, order =")),
    ("saving takes the gradients away", "whoever accumulates saves in between too: no zero_grad()",
     add("run.optimizer.zero_grad()", before="state = {part")),
    ("saving draws a random number, and all that come after it are others",
     "a name for the file, or a sample to look at, from a generator of your own",
     add('state["name"] = random.random()', before='state["python"] =')),
    ("after its generator was set, a number is drawn from PyTorch", "set the generators last",
     add("torch.rand(1)", before="torch.cuda.set_rng_state_all")),
)  # fmt: skip
