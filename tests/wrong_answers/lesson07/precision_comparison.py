"""Answers to "a comparison that can be believed": the start, the clock, the peak, TF32, the scaler, and the form."""

import contextlib
import copy
import gc
import time

import torch

from gpulab.check.lesson07.sections import SECTIONS

from ..by_hand import Bank

BANK = Bank("precision_comparison", SECTIONS)
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def precisions(x):
    return [name for name in DTYPES if x.device.type == "cuda" or name != "fp16"]


def wait(x):
    if x.device.type == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def true_fp32():
    old = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = old


def train(
    model,
    loss_fn,
    x,
    y,
    steps,
    warm_up,
    dtype,
    *,
    before=wait,
    after=wait,
    scaled=None,
    lr=0.01,
    clear=True,
    reset=True,
):
    """A right run, with some places that the wrong ones change."""
    on_gpu = x.device.type == "cuda"
    if on_gpu and reset:
        torch.cuda.reset_peak_memory_stats()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler(x.device.type, enabled=dtype is torch.float16 if scaled is None else scaled)
    losses, skipped, start = [], 0, time.perf_counter()
    for i in range(warm_up + steps):
        if i == warm_up:
            before(x)
            start = time.perf_counter()
        if clear:
            optimizer.zero_grad()
        with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not torch.float32):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
        losses.append(loss.detach())
    after(x)
    ms = (time.perf_counter() - start) * 1000 / steps
    return {
        "ms": ms,
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "losses": [value.item() for value in losses[warm_up:]],
        "skipped": skipped,
    }


def compare(make_model, loss_fn, x, y, steps, warm_up, **changes):
    first, rows = make_model(), {}
    with true_fp32():
        for name in precisions(x):
            rows[name] = train(
                copy.deepcopy(first).to(x.device), loss_fn, x, y, steps, warm_up, DTYPES[name], **changes
            )
    return rows


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def copies_one_model(make_model, loss_fn, x, y, steps, warm_up):
    return compare(make_model, loss_fn, x, y, steps, warm_up)


@BANK.right
def seeds_before_each(make_model, loss_fn, x, y, steps, warm_up):
    rows = {}
    with true_fp32():
        for name in reversed(precisions(x)):
            torch.manual_seed(0)
            rows[name] = train(make_model().to(x.device), loss_fn, x, y, steps, warm_up, DTYPES[name])
            gc.collect()
    return rows


@BANK.right
def loads_the_first_weights(make_model, loss_fn, x, y, steps, warm_up):
    """Events, the newer setting for TF32, gradients cleared after the step, hooks to count the steps."""
    state, rows = {name: value.clone() for name, value in make_model().state_dict().items()}, {}
    backends = torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    old = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        for name in precisions(x):
            rows[name] = one_run_with_events(make_model, state, loss_fn, x, y, steps, warm_up, DTYPES[name])
    finally:
        for backend, value in zip(backends, old, strict=True):
            backend.fp32_precision = value
    return rows


def one_run_with_events(make_model, state, loss_fn, x, y, steps, warm_up, dtype):
    on_gpu, counted = x.device.type == "cuda", []
    model = make_model()
    model.load_state_dict(state)
    model = model.to(x.device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_post_hook(lambda *_: counted.append(1))
    scaler = torch.amp.GradScaler(x.device.type, enabled=dtype is torch.float16)
    losses = []

    def step():
        with torch.autocast(x.device.type, dtype, enabled=dtype is not torch.float32):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())

    for _ in range(warm_up):
        step()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(x.device)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    total = (time.perf_counter() - begun) * 1000
    if on_gpu:
        end.record()
        end.synchronize()
        total = start.elapsed_time(end)
    peak = torch.cuda.max_memory_allocated(x.device) if on_gpu else None
    skipped = warm_up + steps - len(counted)
    return {"ms": total / steps, "peak_bytes": peak, "losses": losses[warm_up:], "skipped": skipped, "dtype": dtype}


@BANK.right
def clears_after_the_forward_pass(make_model, loss_fn, x, y, steps, warm_up):
    first, rows = copy.deepcopy(make_model().state_dict()), {}
    with true_fp32():
        for name in precisions(x):
            model = make_model().to(x.device)
            model.load_state_dict(first)
            params = list(model.parameters())

            def loss(outputs, targets, params=params):
                for p in params:
                    p.grad = None
                return loss_fn(outputs, targets)

            rows[name] = train(model, loss, x, y, steps, warm_up, DTYPES[name], clear=False)
            del model, params, loss
            gc.collect()
    return rows


# --- wrong: the start ----------------------------------------------------------------------------------


@BANK.wrong("the runs start from different weights", "copy one model for each run")
def makes_a_model_for_each(make_model, loss_fn, x, y, steps, warm_up):
    with true_fp32():
        return {
            name: train(make_model().to(x.device), loss_fn, x, y, steps, warm_up, DTYPES[name])
            for name in precisions(x)
        }


@BANK.wrong("the runs start from different weights", "copy one model for each run", same_as="makes_a_model_for_each")
def trains_one_model_on(make_model, loss_fn, x, y, steps, warm_up):
    model = make_model()
    with true_fp32():
        rows = {}
        for name in precisions(x):
            model = copy.deepcopy(model).to(x.device)
            model.fresh = True  # the probe's own mark, as a new copy would have it
            rows[name] = train(model, loss_fn, x, y, steps, warm_up, DTYPES[name])
    return rows


@BANK.wrong("the precisions see different data", "autocast casts for itself")
def draws_other_data(make_model, loss_fn, x, y, steps, warm_up):
    rows, first = {}, make_model()
    with true_fp32():
        for name in precisions(x):
            data = torch.rand_like(x) if name == "bf16" else x
            model = copy.deepcopy(first).to(x.device)
            rows[name] = train(model, loss_fn, data, y, steps, warm_up, DTYPES[name])
    return rows


# --- wrong: the clock ----------------------------------------------------------------------------------


@BANK.wrong("the time of fp32 is that of the launches, not of the work", "torch.cuda.synchronize() before, or events")
def never_waits(*args):
    return compare(*args, before=lambda x: None, after=lambda x: None)


@BANK.wrong("the warm-up is in the time of fp32", "synchronize before the clock starts")
def waits_at_the_end_only(*args):
    return compare(*args, before=lambda x: None)


@BANK.wrong(
    "the warm-up is in the time of fp32", "synchronize before the clock starts", same_as="waits_at_the_end_only"
)
def counts_the_warm_up(make_model, loss_fn, x, y, steps, warm_up):
    first, rows = make_model(), {}
    with true_fp32():
        for name in precisions(x):
            wait(x)
            start = time.perf_counter()
            model = copy.deepcopy(first).to(x.device)
            rows[name] = train(model, loss_fn, x, y, steps, warm_up, DTYPES[name])
            rows[name]["ms"] = (time.perf_counter() - start) * 1000 / (steps + warm_up)
    return rows


def changed(change):
    def answer(*args):
        return {name: row | change(row, args) for name, row in compare(*args).items()}

    return answer


@BANK.wrong("the time of fp32 is that of all steps", "divide by the number of counted steps")
def gives_the_total(*args):
    return changed(lambda row, args: {"ms": row["ms"] * args[4]})(*args)


@BANK.wrong("the time of fp32 is not that of a step", "seconds: multiply by 1000")
def gives_seconds(*args):
    return changed(lambda row, args: {"ms": row["ms"] / 1000})(*args)


@BANK.wrong("ms of fp32 on the CPU is not the milliseconds of a step", "seconds: multiply by 1000")
def gives_seconds_on_the_cpu(*args):
    return changed(lambda row, args: {"ms": row["ms"] / (1 if args[2].is_cuda else 1000)})(*args)


@BANK.wrong("ms of fp32 on the CPU is not the milliseconds of a step", "time.perf_counter()")
def gives_no_time_on_the_cpu(*args):
    return changed(lambda row, args: {"ms": row["ms"] if args[2].is_cuda else None})(*args)


@BANK.wrong("fp32 runs for another number of steps", "the warm-up is missing")
def never_warms_up(make_model, loss_fn, x, y, steps, warm_up):
    return compare(make_model, loss_fn, x, y, steps, 0)


# --- wrong: the peak -----------------------------------------------------------------------------------


@BANK.wrong("the peak of fp32 is an older one", "since it was last reset")
def never_resets(*args):
    return compare(*args, reset=False)


@BANK.wrong("the peak of fp16 is that of another precision", "before each run, not once")
def resets_once(make_model, loss_fn, x, y, steps, warm_up):
    if x.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    return compare(make_model, loss_fn, x, y, steps, warm_up, reset=False)


@BANK.wrong("something of an earlier run is alive in the run of fp16", "the model before, with its gradients")
def keeps_the_models(make_model, loss_fn, x, y, steps, warm_up):
    first, rows, models = make_model(), {}, []
    with true_fp32():
        for name in precisions(x):
            models.append(copy.deepcopy(first).to(x.device))
            rows[name] = train(models[-1], loss_fn, x, y, steps, warm_up, DTYPES[name])
    return rows


@BANK.wrong("something of an earlier run is alive in the run of fp32", "the model before, with its gradients")
def copies_on_the_gpu(make_model, loss_fn, x, y, steps, warm_up):
    first = make_model().to(x.device)
    rows = {}
    with true_fp32():
        for name in precisions(x):
            rows[name] = train(copy.deepcopy(first), loss_fn, x, y, steps, warm_up, DTYPES[name])
    return rows


@BANK.wrong("the peak of fp32 is not in bytes", "not MB or MiB")
def gives_mib(*args):
    return changed(lambda row, args: {"peak_bytes": row["peak_bytes"] and row["peak_bytes"] / 2**20})(*args)


@BANK.wrong("the peak of fp32 is too low", "what is left, not the peak")
def reads_what_is_left(make_model, loss_fn, x, y, steps, warm_up):
    rows = compare(make_model, loss_fn, x, y, steps, warm_up)
    for row in rows.values():
        row["peak_bytes"] = torch.cuda.memory_allocated() if x.device.type == "cuda" else None
    return rows


@BANK.wrong("the peak of fp32 is that of another GPU", "need not be the first")
def asks_the_first_gpu(make_model, loss_fn, x, y, steps, warm_up):
    rows = compare(make_model, loss_fn, x, y, steps, warm_up)
    for row in rows.values():
        row["peak_bytes"] = torch.cuda.max_memory_allocated(0) if x.device.type == "cuda" else None
    return rows


@BANK.wrong("peak_bytes on the CPU is not None", "reads as “no memory”")
def gives_zero_on_the_cpu(*args):
    return changed(lambda row, args: {"peak_bytes": row["peak_bytes"] or 0})(*args)


kept = []


@BANK.wrong("something stays on the GPU when the comparison is over", "in a variable outside")
def leaves_a_model(make_model, loss_fn, x, y, steps, warm_up):
    rows = compare(make_model, loss_fn, x, y, steps, warm_up)
    kept[:] = [torch.ones(2**20, device=x.device)]
    return rows


# --- wrong: TF32 ---------------------------------------------------------------------------------------


@BANK.wrong("the fp32 baseline is secretly TF32", "switch both off")
def takes_the_settings_as_they_are(make_model, loss_fn, x, y, steps, warm_up):
    first, rows = make_model(), {}
    for name in precisions(x):
        rows[name] = train(copy.deepcopy(first).to(x.device), loss_fn, x, y, steps, warm_up, DTYPES[name])
    return rows


@BANK.wrong("the fp32 baseline is secretly TF32", "switch both off", same_as="takes_the_settings_as_they_are")
def forgets_convolutions(make_model, loss_fn, x, y, steps, warm_up):
    old = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        return takes_the_settings_as_they_are(make_model, loss_fn, x, y, steps, warm_up)
    finally:
        torch.set_float32_matmul_precision(old)


@BANK.wrong("your function left a setting changed", "put it back in `finally`")
def leaves_tf32_off(make_model, loss_fn, x, y, steps, warm_up):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return takes_the_settings_as_they_are(make_model, loss_fn, x, y, steps, warm_up)


@BANK.wrong("the TF32 settings stay changed when loss_fn raises", "put them back in `finally`")
def puts_back_at_the_end(*args):
    old = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows = takes_the_settings_as_they_are(*args)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = old
    return rows


@BANK.wrong(
    "the TF32 settings stay changed when loss_fn raises",
    "put them back in `finally`",
    same_as="puts_back_at_the_end",
)
def puts_back_after_runtime_errors(*args):
    old = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        return puts_back_at_the_end(*args)
    except RuntimeError:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = old
        raise


@BANK.wrong("the exception of loss_fn does not come out", "an `except` ends it")
def swallows_exceptions(*args):
    try:
        return compare(*args)
    except RuntimeError:
        return None


# --- wrong: autocast and scaler ------------------------------------------------------------------------


@BANK.wrong("skipped of fp16 is not the number of steps that the scaler skipped", "fp16 without a scaler")
def never_scales(*args):
    return compare(*args, scaled=False)


@BANK.wrong("skipped of fp16 is not the number of steps that the scaler skipped", "those of the warm-up too")
def counts_skips_in_part(*args):
    return changed(lambda row, args: {"skipped": max(0, row["skipped"] - 1)})(*args)


@BANK.wrong(
    "skipped of fp16 is not the number of steps that the scaler skipped",
    "the warm-up's skips were left out",
    same_as="never_scales",
)
def counts_none_of_the_warm_up(*args):
    return changed(lambda row, args: {"skipped": 0})(*args)  # as where all of them were in the warm-up


@BANK.wrong(
    "skipped of fp16 is not the number of steps that the scaler skipped",
    "those of the warm-up too",
    same_as="counts_skips_in_part",
)
def counts_skips_after_the_warm_up(*args):
    return changed(lambda row, args: {"skipped": max(0, row["skipped"] - args[5])})(*args)


@BANK.wrong("the run of bf16 is not in that precision", "unless dtype= says otherwise")
def forgets_the_dtype(make_model, loss_fn, x, y, steps, warm_up):
    rows, first = {}, make_model()
    with true_fp32():
        for name in precisions(x):
            dtype = torch.float16 if name == "bf16" and x.device.type == "cuda" else DTYPES[name]
            rows[name] = train(copy.deepcopy(first).to(x.device), loss_fn, x, y, steps, warm_up, dtype)
    return rows


@BANK.wrong("the loss is not under autocast", "computed in 16 bits")
def loss_outside(make_model, loss_fn, x, y, steps, warm_up):
    def outside(outputs, targets):
        with torch.autocast(x.device.type, enabled=False):
            return loss_fn(outputs, targets)

    return compare(make_model, outside, x, y, steps, warm_up)


@BANK.wrong("your function raised RuntimeError", "convert neither")
def converts_the_model(make_model, loss_fn, x, y, steps, warm_up):
    rows, first = {}, make_model()
    with true_fp32():
        for name in precisions(x):
            model = copy.deepcopy(first).to(x.device, DTYPES[name])
            rows[name] = train(model, loss_fn, x, y, steps, warm_up, torch.float32)
    return rows


# --- wrong: the form -----------------------------------------------------------------------------------


@BANK.wrong("the result is not a dict", "without a return")
def returns_nothing(*args):
    compare(*args)


@BANK.wrong("a precision is missing")
def leaves_out_bf16(*args):
    return {name: row for name, row in compare(*args).items() if name != "bf16"}


@BANK.wrong("fp16 runs on the CPU", "ask x.device.type")
def fp16_everywhere(make_model, loss_fn, x, y, steps, warm_up):
    rows = compare(make_model, loss_fn, x, y, steps, warm_up)
    if "fp16" not in rows:
        rows["fp16"] = train(make_model(), loss_fn, x, y, steps, warm_up, torch.float16)
    return rows


@BANK.wrong("fp16 runs on the CPU", "ask x.device.type", same_as="fp16_everywhere")
def moves_the_data_to_the_gpu(make_model, loss_fn, x, y, steps, warm_up):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return compare(make_model, loss_fn, x.to(device), y.to(device), steps, warm_up)


@BANK.wrong("your function raised ValueError", "not torch.cuda.is_available()")
def asks_whether_there_is_a_gpu(make_model, loss_fn, x, y, steps, warm_up):
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats(x.device)
    return compare(make_model, loss_fn, x, y, steps, warm_up)


@BANK.wrong("losses of fp32 are tensors", "call .item() on each")
def gives_losses_on_the_gpu(*args):
    return changed(lambda row, args: {"losses": [torch.tensor(loss) for loss in row["losses"]]})(*args)


@BANK.wrong("losses of fp32 are tensors", "call .item() on each", same_as="gives_losses_on_the_gpu")
def gives_losses_in_one_tensor(*args):
    return changed(lambda row, args: {"losses": torch.tensor(row["losses"])})(*args)


@BANK.wrong("the losses of fp32 are other ones", "another optimizer or learning rate")
def another_learning_rate(*args):
    return compare(*args, lr=0.1)


@BANK.wrong("the losses of fp16 are other ones", "keep the loss from before scaler.scale()")
def gives_scaled_losses(*args):
    rows = compare(*args)
    if "fp16" in rows:
        rows["fp16"]["losses"] = [loss * 4096 for loss in rows["fp16"]["losses"]]
    return rows


@BANK.wrong(
    "the losses of fp16 are other ones", "keep the loss from before scaler.scale()", same_as="gives_scaled_losses"
)
def gives_losses_scaled_by_a_falling_scale(*args):
    rows = compare(*args)
    if "fp16" in rows:
        scales = [65536.0] + [8192.0] * len(rows["fp16"]["losses"])
        rows["fp16"]["losses"] = [loss * scale for loss, scale in zip(rows["fp16"]["losses"], scales, strict=False)]
    return rows


@BANK.wrong("losses of fp32 are not one float for each counted step", "those of the warm-up are in it")
def gives_all_losses(make_model, loss_fn, x, y, steps, warm_up):
    return {
        name: row | {"losses": [0.0] * warm_up + row["losses"]}
        for name, row in compare(make_model, loss_fn, x, y, steps, warm_up).items()
    }


@BANK.wrong("the row of fp32 is incomplete")
def forgets_the_skips(*args):
    return {
        name: {key: value for key, value in row.items() if key != "skipped"} for name, row in compare(*args).items()
    }


@BANK.wrong("your function left a setting changed", "put that back, whatever it was")
def allows_tf32_afterwards(*args):
    try:
        return compare(*args)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


@BANK.wrong("the model is trained in evaluation mode", "eval() is for measuring a trained model")
def trains_in_evaluation_mode(make_model, *args):
    return compare(lambda: make_model().eval(), *args)
