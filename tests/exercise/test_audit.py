"""What a student's function was handed is looked at before and after: each kind of change is told in its own words.

The models are ones that students have: a small ResNet, a GPT block, with an optimizer, a schedule and a scaler.
"""

import collections
import dataclasses
import enum
import gc
import math
import random
import warnings
from collections import deque, namedtuple
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gpulab
from gpulab import course
from gpulab.exercise import settings
from gpulab.exercise.audit import ANYTHING, TRAINED, Audit
from gpulab.exercise.base import Trial
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.wording import brief, is_finite, is_number, is_whole, text_in


def small():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm, self.other = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.ones(8, 8).triu(1).bool())

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, attn_mask=self.mask, need_weights=False)[0]
        return x + self.mlp(self.other(x))


Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    rate: float


def found(value, change, name="it", may_change=()):
    """The changes that `change(value)` makes, as (kind, words)."""
    audit = Audit({name: value}, {name: may_change})
    change(value)
    return [(change.kind, change.words) for change in audit.changes()]


# --- each kind of change, and its words ----------------------------------------------------------------


def with_nan():
    return torch.tensor([1.0, float("nan"), 0.0])


def grown():
    x = torch.ones(2, requires_grad=True)
    x.grad = torch.ones(2)
    return x


def set_data(x):
    x.data = x.data.double()


def set_grad(x):
    x.grad = torch.zeros_like(x)


TENSORS = {
    "in place": (with_nan, lambda x: x.mul_(2), "values", "x has other values"),
    "behind autograd's back": (with_nan, lambda x: x.data.add_(1), "values", "x has other values"),
    "NaN to 0": (with_nan, lambda x: x.nan_to_num_(0), "values", "x has other values"),
    "one byte": (lambda: torch.zeros(3, dtype=torch.bool), lambda x: x.fill_(True), "values", "x has other values"),
    "no dimension": (lambda: torch.tensor(2.0), lambda x: x.add_(1), "values", "x has other values"),
    "dtype": (with_nan, set_data, "place", "x.dtype is torch.float64, not torch.float32"),
    "shape": (with_nan, lambda x: x.unsqueeze_(0), "place", "x.shape is (1, 3), not (3,)"),
    "stride": (lambda: torch.ones(2, 2), lambda x: x.t_(), "place", "x.stride() is (1, 2), not (2, 1)"),
    "requires_grad": (with_nan, lambda x: x.requires_grad_(), "requires_grad", "x.requires_grad is True, not False"),
    "a gradient": (with_nan, set_grad, "grad", "x.grad is a tensor, not None"),
    "no gradient": (grown, lambda x: setattr(x, "grad", None), "grad", "x.grad is None, and was a tensor"),
    "another gradient": (grown, lambda x: x.grad.add_(1), "grad", "x.grad has other values"),
    "hook": (grown, lambda x: x.register_hook(print), "hooks", "x has a hook that it did not have"),
    "hook after": (
        grown,
        lambda x: x.register_post_accumulate_grad_hook(print),
        "hooks",
        "x has a hook that it did not have",
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_change_of_a_tensor_is_found_and_can_be_allowed(name):
    make, change, kind, words = TENSORS[name]
    assert (kind, words) in found(make(), change, "x")
    assert kind not in [kind for kind, _ in found(make(), change, "x", {kind})]


def drop_last(model):
    del model[3]


def replace(model):
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def buffer(model):
    model[1].running_mean = model[1].running_mean.clone()


MODULES = {
    "mode": (lambda m: m.eval(), "mode", "it is left in eval mode"),
    "one layer's mode": (lambda m: m[2].eval(), "mode", "layer 2 (Dropout) is left in eval mode"),
    "weights": (lambda m: nn.init.zeros_(m[0].weight), "parameters", "model.0.weight has other values"),
    "statistics": (lambda m: m(torch.randn(5, 3)), "buffers", "model.1.running_mean has other values"),
    "gradients": (lambda m: m(torch.randn(5, 3)).sum().backward(), "grad", "model.0.weight.grad is a tensor, not None"),
    "frozen": (
        lambda m: m[3].requires_grad_(False),
        "requires_grad",
        "model.3.weight.requires_grad is False, not True",
    ),
    "cast": (lambda m: m.half(), "place", "model.0.weight.dtype is torch.float16, not torch.float32"),
    "hook": (lambda m: m[0].register_forward_hook(print), "hooks", "layer 0 (Linear) has a hook that it did not have"),
    "pre-hook": (lambda m: m.register_forward_pre_hook(print), "hooks", "it has a hook that it did not have"),
    "backward hook": (
        lambda m: m[0].register_full_backward_hook(print),
        "hooks",
        "layer 0 (Linear) has a hook that it did not have",
    ),
    "state_dict hook": (
        lambda m: m.register_state_dict_post_hook(lambda *args: None),
        "hooks",
        "it has a hook that it did not have",
    ),
    "forward": (lambda m: setattr(m[0], "forward", print), "hooks", "layer 0 (Linear) has another forward"),
    "a layer less": (drop_last, "parts", "model.3 is gone"),
    "a layer more": (lambda m: m.append(nn.ReLU()), "parts", "model.4 is new"),
    "another parameter": (replace, "parts", "model.0.weight is another object"),
    "another buffer": (buffer, "buffers", "model.1.running_mean is another object"),
    "dropout": (lambda m: setattr(m[2], "p", 0.0), "settings", "model.2.p is 0.0, not 0.5"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_change_of_a_model_is_found_and_can_be_allowed(name):
    change, kind, words = MODULES[name]
    assert (kind, words) in found(small(), change, "model")
    assert kind not in [kind for kind, _ in found(small(), change, "model", {kind})]


def optimizer():
    p = nn.Parameter(torch.ones(2))
    made = torch.optim.SGD([p], lr=0.1, momentum=0.9)
    p.grad = torch.ones(2)
    made.step()
    return made


def schedule():
    return torch.optim.lr_scheduler.StepLR(optimizer(), 1)


def set_rate(o):
    o.param_groups[0]["lr"] = 0.05


OPTIMIZERS = {
    "rate": (optimizer, set_rate, "settings", "it.param_groups[0]['lr'] is 0.05, not 0.1"),
    "step": (
        optimizer,
        lambda o: o.step(),
        "state",
        "it.state[parameter 0 of group 0]['momentum_buffer'] has other values",
    ),
    "weights": (optimizer, lambda o: o.step(), "parameters", "it.param_groups[0]['params'][0] has other values"),
    "no state": (
        optimizer,
        lambda o: o.state.clear(),
        "state",
        "it.state[parameter 0 of group 0]['momentum_buffer'] is gone",
    ),
    "group": (
        optimizer,
        lambda o: o.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
        "parts",
        "the number of it.param_groups is 2, not 1",
    ),
    "parameters": (
        optimizer,
        lambda o: o.param_groups[0]["params"].append(nn.Parameter(torch.ones(1))),
        "parts",
        "it.param_groups[0]['params'][1] is new",
    ),
    "hook": (optimizer, lambda o: o.register_step_post_hook(print), "hooks", "it has a hook that it did not have"),
    "schedule": (schedule, lambda s: s.step(), "state", "it['last_epoch'] is 1, not 0"),
    "scale": (
        lambda: torch.amp.GradScaler("cpu", init_scale=8.0),
        lambda s: s.scale(torch.ones(())) + s.update(4.0),
        "state",
        "it['_scale'] has other values",
    ),
}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_change_of_an_optimizer_a_schedule_or_a_scaler_is_found_and_can_be_allowed(name):
    make, change, kind, words = OPTIMIZERS[name]
    if name == "scale":
        change = lambda s: (s.scale(torch.ones(())), s.update(4.0))  # noqa: E731
    assert (kind, words) in found(make(), change)
    assert kind not in [kind for kind, _ in found(make(), change, may_change={kind})]


def test_a_scaler_that_was_used_and_has_its_first_scale_has_not_changed():
    scaler = torch.amp.GradScaler("cpu")
    assert found(scaler, lambda s: s.scale(torch.ones(()))) == []


def test_a_parameter_that_two_names_hand_over_may_change_as_both_allow():
    model = nn.Linear(2, 1)
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    for allowed in ({"model": {"parameters"}}, {"optimizer": {"parameters"}}):
        audit = Audit({"model": model, "optimizer": steps}, allowed)
        nn.init.normal_(model.weight)
        assert audit.changes() == []


def pop(items):
    items.pop()


def popitem(items):
    items["b"] = items.pop("a")


CONTAINERS = {
    "pop": (lambda: [1, 2.0, "x"], pop, "it[2] is gone"),
    "append": (lambda: [1], lambda c: c.append(2), "it[1] is new"),
    "another number": (lambda: [1, 2], lambda c: c.reverse(), "it[0] is 2, not 1"),
    "another tensor": (
        lambda: [torch.ones(1)],
        lambda c: c.__setitem__(0, c[0].clone()),
        "it[0] is another object",
    ),
    "key": (lambda: {"a": 1, 5: 2}, popitem, "it['a'] is gone"),
    "order": (lambda: {"a": 1, "b": 2}, lambda c: c.update(a=c.pop("a")), "the order of it['…'] has changed"),
    "deque": (lambda: deque([1, 2]), lambda c: c.rotate(), "it[0] is 2, not 1"),
    "set": (lambda: {1, 2}, pop, "it has other contents"),
    "dataclass": (lambda: Sample(torch.ones(1), 0.1), lambda s: setattr(s, "rate", 1.0), "it.rate is 1.0, not 0.1"),
    "defaultdict": (lambda: collections.defaultdict(list), lambda c: c["a"], "it['a'] is new"),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_change_of_a_container_is_found_and_can_be_allowed(name):
    make, change, words = CONTAINERS[name]
    assert found(make(), change) == [("items", words)]
    assert found(make(), change, may_change={"items"}) == []


DEEP = {
    "list": (lambda x: [1, [x]], "it[1][0] has other values"),
    "dict": (lambda x: {"a": {"b": x}}, "it['a']['b'] has other values"),
    "namedtuple": (lambda x: Pair(None, (x,)), "it[1][0] has other values"),
    "dataclass": (lambda x: Sample(x, 0.1), "it.x has other values"),
    "deque": (lambda x: deque([x]), "it[0] has other values"),
}


@pytest.mark.parametrize("name", DEEP)
def test_tensors_are_found_at_every_depth(name):
    make, words = DEEP[name]
    x = torch.ones(2)
    assert found(make(x), lambda _: x.add_(1)) == [("values", words)]


def test_an_array_is_looked_into():
    assert found(np.ones(3), lambda a: a.sort()) == []
    assert found(np.ones(3), lambda a: a.fill(2)) == [("values", "it has other values")]


def test_what_holds_itself_is_looked_at_once():
    items = [torch.ones(1)]
    items.append(items)
    assert found(items, lambda i: None) == []


def test_an_iterator_is_not_used_up_and_a_class_of_the_checks_own_is_not_asked():
    class Counting(list):
        asked = 0

        def __iter__(self):
            self.asked += 1
            return super().__iter__()

    source, counting = iter([1, 2, 3]), Counting([1, 2])
    assert Audit({"source": source, "batches": counting}, {}).changes() == []
    assert list(source) == [1, 2, 3]
    assert counting.asked == 0


# --- nothing is found where nothing changed ------------------------------------------------------------


def trained(model, x):
    """What training needs, after a step: the model, its optimizer with state, a schedule and a scaler."""
    steps = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(x.device.type, enabled=True)
    plan = torch.optim.lr_scheduler.StepLR(steps, 1)
    scaler.scale(model(x).square().mean()).backward()
    scaler.step(steps)
    scaler.update()
    plan.step()
    return {"model": model, "optimizer": steps, "scaler": scaler, "schedule": plan, "batches": [(x, x)]}


def resnet18():
    from torchvision.models import resnet18

    return resnet18(num_classes=4)


INPUTS = {resnet18: (2, 3, 32, 32), Block: (2, 8, 16)}
PLACES = {
    "host": None,
    "virtual GPU": partial(virtual_gpu, compute=True),
    "shapes only": partial(virtual_gpu, compute=False),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", INPUTS)
def test_nothing_is_found_where_nothing_changed_and_the_gpu_does_not_notice(make, place):
    if PLACES[place] is None:
        handed = trained(make(), torch.randn(INPUTS[make]))
        audit = Audit(handed, {})
        handed["model"].eval()
        handed["model"].train()
        assert audit.changes() == []
        return
    with PLACES[place]() as gpu:
        handed = trained(make().cuda(), torch.randn(INPUTS[make], device="cuda"))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats(), gpu.clock.host
        audit = Audit(handed, {})
        assert audit.changes() == []
        assert (torch.cuda.memory_stats(), gpu.clock.host) == before


@pytest.mark.parametrize("place", ["virtual GPU", "shapes only"])
@pytest.mark.parametrize("name", ["mode", "one layer's mode", "frozen", "hook", "a layer less", "cast", "dropout"])
def test_a_change_of_a_model_on_a_virtual_gpu_is_found(name, place):
    change, kind, words = MODULES[name]
    with PLACES[place]():
        assert (kind, words) in found(small().cuda(), change, "model")


def test_values_on_a_virtual_gpu_are_compared_where_it_has_them():
    for place, words in (("virtual GPU", [("values", "x has other values")]), ("shapes only", [])):
        with PLACES[place]():
            assert found(torch.ones(3, device="cuda"), lambda x: x.mul_(2), "x") == words


def test_a_model_that_was_moved_is_told_by_its_places():
    with virtual_gpu():
        changes = found(small(), lambda m: m.to("cuda"), "model")
    assert changes[0] == ("place", "model.0.weight.device is cuda:0, not cpu")
    with virtual_gpu():
        assert found(small(), lambda m: m.to("cuda"), "model", {"place"}) == []


@given(st.lists(st.sampled_from(sorted(ANYTHING)), unique=True))
def test_what_is_allowed_is_not_told_and_the_rest_is(allowed):
    def all_at_once(model):
        model(torch.randn(5, 3)).sum().backward()
        model.eval()
        model[0].register_forward_hook(print)
        model[3].requires_grad_(False)
        nn.init.zeros_(model[0].weight)
        model[2].p = 0.1
        model.append(nn.ReLU())

    kinds = {"grad", "buffers", "mode", "hooks", "requires_grad", "parameters", "settings", "parts"}
    assert {kind for kind, _ in found(small(), all_at_once, "model", allowed)} == kinds - set(allowed)


@given(st.recursive(st.integers() | st.floats() | st.text() | st.none(), lambda inner: st.lists(inner, max_size=3)))
def test_any_plain_batch_that_stays_is_as_it_was(batch):
    assert found([batch], lambda b: None) == []
    assert found([batch], lambda b: b.append(0)) != []


def test_a_name_or_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"may_change names 'modle'; what is handed over is model"):
        Audit({"model": small()}, {"modle": TRAINED})
    with pytest.raises(ValueError, match=r"may_change\['model'\] has 'weights'; the kinds are buffers, grad"):
        Audit({"model": small()}, {"model": {"weights"}})


# --- the call --------------------------------------------------------------------------------------------


def call(student, *args, parameters=(), **how):
    """What a call comes to: its value, or how the check failed."""
    trial = Trial("audited", 8)
    if parameters:
        trial.function(student, parameters)
    try:
        return settings.in_clean_state(lambda: trial.call(student, *args, **how), seed=1)
    except gpulab.CheckFailed as failed:
        return failed


def leaves_eval(model, x):
    model[2].eval()
    return x


def test_a_failure_names_the_argument_and_where_in_it():
    failed = call(leaves_eval, small(), torch.ones(1), parameters=("net", "x"))
    assert failed.summary == "your function changed its argument net: layer 2 (Dropout) is left in eval mode"
    assert "put it back in a finally" in failed.rows["likely"]
    assert call(leaves_eval, small(), torch.ones(1), parameters=("net", "x"), may_change={"net": {"mode"}}) == 1


def test_the_arguments_of_another_function_are_called_as_it_calls_them():
    assert "its argument model: layer" in call(leaves_eval, small(), torch.ones(1)).summary
    failed = call(lambda *items: items[0].pop(), [1])
    assert failed.summary == "your function changed its argument number 1"
    assert failed.rows["got"] == "number 1[0] is gone, after the call"


def test_what_is_handed_over_besides_is_looked_at():
    model = small()
    failed = call(lambda: model[2].eval(), besides={"model": model})
    assert failed.summary == "your function changed its argument model: layer 2 (Dropout) is left in eval mode"


# --- what lies beside the arguments ----------------------------------------------------------------------


def draws():
    return torch.rand(3), random.random(), np.random.rand(3), random.sample(range(10**4), 5000)


def draws_on_the_gpu():
    return torch.rand(3, device="cuda")


def seeds_and_puts_back():
    state, python = torch.get_rng_state(), random.getstate()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_rng_state(state)
    random.setstate(python)


def forks():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.rand(1)


def own_generators():
    return torch.rand(3, generator=torch.Generator().manual_seed(0)), random.Random(0), np.random.default_rng(0)


@pytest.mark.parametrize("student", [draws, seeds_and_puts_back, forks, own_generators])
def test_drawing_random_numbers_is_no_seeding(student):
    assert not isinstance(call(student), gpulab.CheckFailed)


SEEDS = {
    "torch.manual_seed": lambda: torch.manual_seed(7),
    "random.seed": lambda: random.seed(7),
    "numpy.random.seed": lambda: np.random.seed(7),
}


@pytest.mark.parametrize("then", [lambda: None, draws], ids=["alone", "and draws"])
@pytest.mark.parametrize("name", SEEDS)
def test_a_seeded_global_generator_is_found_unless_the_check_allows_it(name, then):
    def student():
        SEEDS[name]()
        then()

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    failed = call(student)
    assert failed.summary == "your function seeds a global random generator"
    assert failed.rows["got"] == f"a new seed, as from {name} (now undone)"
    assert call(student, may_seed=True) is None
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]


def test_the_seed_that_is_in_force_is_found_too():
    """The check's own, 1 here: without the state, nothing would tell that the numbers come again."""

    def student():
        torch.manual_seed(1)
        torch.rand(700)

    trial = Trial("audited", 8)
    with pytest.raises(gpulab.CheckFailed, match="seeds a global random generator"):
        settings.in_clean_state(lambda: (torch.rand(5000), trial.call(student)), seed=1)
    settings.in_clean_state(lambda: (torch.rand(5000), trial.call(lambda: torch.randn(2_000_000))), seed=1)


def test_a_seeded_gpu_is_found():
    with virtual_gpu(count=2):
        assert not isinstance(call(draws_on_the_gpu), gpulab.CheckFailed)
        failed = call(lambda: torch.cuda.manual_seed(7) or torch.rand(2, device="cuda"))
    assert failed.rows["got"] == "a new seed, as from torch.cuda.manual_seed (GPU 0) (now undone)"


@given(st.integers(0, 2**64), st.integers(0, 3000))
def test_drawing_leads_from_a_state_to_the_next_and_seeding_does_not(seed, count):
    generator = random.Random(seed)
    before = generator.getstate()[1]
    for _ in range(count):
        generator.random()
    assert settings._may_be_drawn(before, generator.getstate()[1])
    generator.seed(seed + 1)
    generator.random()
    assert not settings._may_be_drawn(before, generator.getstate()[1])


LEFT = {
    "sync debug mode": (lambda: torch.cuda.set_sync_debug_mode("warn"), "the sync debug mode at warn, not default"),
    "current GPU": (lambda: torch.cuda.set_device(1), "the current GPU at cuda:1, not cuda:0"),
    "stream": (lambda: torch.cuda.set_stream(torch.cuda.Stream()), "the current stream of cuda:0 at stream "),
    "gc": (gc.disable, "the garbage collector (enabled, thresholds) at (False, "),
    "thresholds": (
        lambda: gc.set_threshold(1, 2, 3),
        "the garbage collector (enabled, thresholds) at (True, (1, 2, 3))",
    ),
    "warnings": (lambda: warnings.simplefilter("ignore"), "warnings.filters with other entries"),
    "warn always": (lambda: torch.set_warn_always(True), "torch's set_warn_always at True, not False"),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_setting_that_is_left_changed_is_found_and_put_back(name):
    switch, text = LEFT[name]
    with virtual_gpu(count=2):
        before = settings.shared(), settings.local(), list(warnings.filters)
        failed = call(switch)
        assert failed.summary == "your function left a setting changed"
        assert failed.rows["got"].startswith(text)
        assert (settings.shared(), settings.local(), list(warnings.filters)) == before
        begin = failed.rows["got"].partition(" at ")[0].removesuffix(" (now undone)")
        assert call(switch, may_leave=(begin,)) is None or name == "warnings"


def test_filters_of_warnings_within_a_block_are_nobodys_business():
    def student():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")

    assert call(student) is None


def test_what_stays_on_the_gpu_is_found_where_a_check_asks():
    kept = []

    def keeps():
        kept.append(torch.ones(1000, device="cuda"))
        return {"made": [torch.ones(2000, device="cuda")]}

    def returns():
        x = torch.ones(1000, device="cuda")
        return x, x[:10], (torch.ones(5, device="cuda"),)

    with virtual_gpu():
        failed = call(keeps, leaves_nothing=True)
        assert failed.summary == "your function leaves memory on the GPU"
        assert failed.rows["got"] == "4,096 bytes more on cuda:0"
        assert not isinstance(call(returns, leaves_nothing=True), gpulab.CheckFailed)
        assert not isinstance(call(keeps), gpulab.CheckFailed)


# --- numbers and texts -----------------------------------------------------------------------------------


class Word(str, enum.Enum):  # noqa: UP042 - whose str() is not its value
    COMPUTE = "compute"


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), True, np.bool_(True), 3.0, np.float32(3), "3", None])
def test_numbers_of_numpy_are_numbers_and_truth_values_are_not(value):
    truth = isinstance(value, bool | np.bool_)
    assert is_whole(value) == (isinstance(value, int | np.integer) and not truth)
    assert is_number(value) == (isinstance(value, int | float | np.number) and not truth)


@pytest.mark.parametrize("value", [10**400, -(10**400), Fraction(10**400), math.inf, math.nan, None, True])
def test_what_no_float_can_hold_is_not_finite(value):
    assert not is_finite(value)


def enlarged(value):
    """The same with a number that no float can hold in the place of each."""
    if isinstance(value, dict):
        return {key: enlarged(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(enlarged, value))
    return 10**400 if is_number(value) else value


@pytest.mark.parametrize(
    ("lesson", "name"),
    [
        (3, "honest_timer"),
        (3, "hidden_syncs"),
        (8, "token_weighting"),
        (9, "starvation"),
        (10, "job_mfu"),
    ],
)
def test_an_int_too_large_for_a_float_fails_as_an_answer(lesson, name):
    bank = course.lesson(lesson).part(f"answers.{name}").BANK
    with pytest.raises(gpulab.CheckFailed):
        bank.check(lambda *args: enlarged(bank.right_answers[0](*args)))


def test_the_text_of_a_member_of_an_enum_of_texts_is_its_value():
    assert text_in(Word.COMPUTE) == text_in("compute") == "compute"


def test_a_number_of_numpy_is_shown_as_one():
    assert brief(np.float64(1.5)) == "1.5 (a NumPy float64)"
    assert brief(np.int64(7)) == "7 (a NumPy int64)"


def test_a_call_that_takes_the_first_gpu_into_use_leaves_no_setting_changed(monkeypatch):
    """On a machine with a GPU, an answer may be the first that asks for one."""
    in_use = []
    monkeypatch.setattr(settings, "_has_gpu", lambda: bool(in_use))
    with virtual_gpu():
        assert call(lambda: in_use.append(True)) is None
        assert call(lambda: torch.cuda.set_sync_debug_mode("warn")).summary == "your function left a setting changed"
