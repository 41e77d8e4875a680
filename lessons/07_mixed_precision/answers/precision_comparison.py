"""Answers to "a comparison that can be believed": the start, the clock, the peak, TF32, the scaler, and the form."""

from banks.bank import Bank
from banks.edits import add, change, drop

BANK = Bank("precision_comparison", "compare_precisions")
MS, SKIPPED, LOSSES = "milliseconds(start, now()) / steps", "warm_up + steps - len(stepped)", "losses[warm_up:]"
COPY, FIRST = "copy.deepcopy(first)", "first = make_model()"
EVENT = """        if not on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # the GPU notes the time, in its queue
        event.record()
        return event"""
UNTIMED = change(EVENT, "        return time.perf_counter()"), change(MS, "(now() - start) * 1000 / steps")
SYNCHRONIZED = change(EVENT, "        return on_gpu and torch.cuda.synchronize() or time.perf_counter()"), UNTIMED[1]
PEAK, RESET = "torch.cuda.max_memory_allocated()", "torch.cuda.reset_peak_memory_stats()"
OFF, TF32 = "torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False", "allow_tf32 = tf32"
BACK = "torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32"
AFTERWARDS = change("        return {name", "        rows = {name"), change(TF32, f"{TF32}\n    return rows")
BANK.right(  # seeds, goes through the precisions backwards, looks at the scale, resets after the warm-up, keeps zeros
    (change(FIRST, "seeded = lambda: (torch.manual_seed(0), make_model())[1]"), change(COPY, "seeded()"),
     change("precisions.items()", "reversed(precisions.items())"), drop("register_step_post_hook"),
     add("before = scaler.get_scale()", after=".backward()"),
     add("stepped += [True] * (scaler.get_scale() >= before)", after="scaler.update()"),
     add(f"{RESET} if on_gpu else None", before="start = now()"),
     change("zero_grad()", "zero_grad(set_to_none=False)")),
    # the host's clock; the newer settings; the first weights in models of their own; clears after the forward pass
    (*SYNCHRONIZED, change("tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32",
            "one, two = torch.backends.cuda.matmul, torch.backends.cudnn.conv; "
            "tf32 = one.fp32_precision, two.fp32_precision"),
     change(OFF, "one.fp32_precision = two.fp32_precision = 'ieee'"),
     change(BACK, "one.fp32_precision, two.fp32_precision = tf32"),
     change(COPY, "(lambda model: (model.load_state_dict(first.state_dict()), model)[1])(make_model())"),
     drop("zero_grad()"), add("optimizer.zero_grad()", before="scaler.scale(")),
)  # fmt: skip

# --- the start, the data and the loop ------------------------------------------------------------------
BANK.mistakes(
    ("the runs start from different weights", "make_model() draws new weights each time, and a run changes the model "
     "it is given: copy one model for each run, or seed before each make_model()",
     change(COPY, "make_model()"), change(COPY, "first")),
    ("the precisions see different data", "do not convert or redraw the data: autocast casts by itself",
     change("model(x)", "model(torch.rand_like(x) if dtype is torch.bfloat16 else x)"),
     change("model(x)", "model(x * 1.001 if dtype is torch.bfloat16 else x)")),
    ("the model is trained in evaluation mode",
     "eval() is for measuring a trained model: dropout and BatchNorm work differently in it",
     add("model.eval()", before="stepped, losses")),
    ("the warm-up is missing", "warm_up further steps come before those that count",
     (change("range(warm_up + steps)", "range(steps)"), change("i == warm_up", "i == 0"), change(LOSSES, "losses"),
      change(SKIPPED, "steps - len(stepped)"))),
    ("gradients are added up over the steps", "backward() adds to .grad: clear it in each step", drop("zero_grad()")),
    ("SGD has the wrong learning rate", "lr=0.01 is asked for", change("lr=0.01", "lr=0.1")),
    ("the loss is not under autocast",
     "the block ends after the model, so the loss of its 16-bit outputs is computed in 16 bits",
     change("loss = loss_fn(model(x), y)", "outputs = model(x)\n            loss = loss_fn(outputs, y)"),
     (change("loss = loss_fn(model(x), y)",
             "outputs = model(x)\n            with only_fp16:\n                loss = loss_fn(outputs, y)"),
      add("only_fp16 = torch.autocast(x.device.type, torch.float16, dtype is torch.float16)", before="zero_grad()"))),
    ("backward runs under autocast", "each backward op uses its forward op's dtype by itself: call backward after the "
                                     "block",
     change("            scaler.scale(loss).backward()", "                scaler.scale(loss).backward()")),
    ("bf16 runs in autocast's default dtype", "autocast on a GPU is float16 unless dtype= says otherwise",
     change("dtype=dtype, enabled", "enabled")),
    ("the model is converted to 16 bits", "under autocast it stays float32",
     change(f"{COPY}.to(x.device)", f"{COPY}.to(x.device, dtype)")),
    # --- the clock ---
    ("the time is that of the launches, not of the work",
     "the GPU was still running when the clock was read: torch.cuda.synchronize() before, or events",
     UNTIMED),
    ("the warm-up still runs when the clock starts", "synchronize before the clock starts",
     (*SYNCHRONIZED, change("start = now()", "start = time.perf_counter()"))),
    ("the steps of the warm-up are in the time", "start the clock after them",
     change("i == warm_up", "i == 0"), (change("i == warm_up", "i == 0"), change(MS, f"{MS[:-5]}(warm_up + steps)"))),
    ("the time is that of all steps", "divide by the number of counted steps", change(MS, MS.removesuffix(" / steps"))),
    ("the time is in seconds", "milliseconds are asked for: multiply by 1000", change(MS, f"{MS} / 1000")),
    ("the time on the CPU is in seconds, or there is none", "a clock of the host alone is right there: "
     "time.perf_counter(), times 1000", change(MS, f"{MS} if on_gpu else None"),
     change("(end - start) * 1000", "end - start")),
    ("the time is that of the median step", "the mean is asked for: a long step counts too",
     (change("start = now()", "start = [now()]"),
      change(MS, "sorted(milliseconds(a, b) for a, b in zip(start, start[1:]))[steps // 2]"),
      add("if i >= warm_up: start += [now()]", before="losses.append"))),
    # --- the peak ---
    ("the peak is from before the run", "the counter holds the highest value since it was last reset: "
     "torch.cuda.reset_peak_memory_stats()", change(RESET, "pass")),
    ("the peak is the highest of several runs", "reset it before each run, not once",
     (change(RESET, "pass"), add(f"{RESET} if on_gpu else None", before=FIRST))),
    ("something of an earlier run is alive in the next one",
     "the earlier model with its gradients, or the original of a copy: delete it, or keep it on the CPU",
     change(FIRST, "first = make_model().to(x.device)"),
     (change(FIRST, "kept, first = [], make_model()"), add("kept.append(model)", before="stepped, losses"))),
    ("the peak is not in bytes", "give bytes as they are, not MB or MiB", change(PEAK, f"{PEAK} / 2**20")),
    ("peak_bytes is what is left after the run", "memory_allocated returns the current value, not the peak",
     change("max_memory_allocated", "memory_allocated"),
     (AFTERWARDS[0], change("    finally:", "        now = torch.cuda.memory_allocated() if on_gpu else None\n"
                            "        return {name: rows[name] | {'peak_bytes': now} for name in rows}\n    finally:"))),
    ("peak_bytes is what was reserved", "the allocator reserves more than it hands out: use max_memory_allocated",
     change("max_memory_allocated", "max_memory_reserved")),
    ("the peak is that of another GPU", "x is on the current GPU, which need not be the first",
     change(PEAK, "torch.cuda.max_memory_allocated(0)")),
    ("peak_bytes on the CPU is 0", "torch.cuda returns 0 for a GPU that is not used, which reads as “no memory”",
     change("if on_gpu else None", "if on_gpu else 0")),
    ("something stays on the GPU", "a model, an optimizer or losses are kept, in what is returned or outside",
     add("globals()['kept'] = loss.detach()", after="losses.append")),
    # --- TF32 ---
    ("TF32 is left as the caller has it",
     "the baseline may then be TF32: switch it off for matrix products and for convolutions, where it is on by "
     "default", drop(OFF),
     change(OFF, "torch.backends.cuda.matmul.allow_tf32 = False"),
     change(OFF, "torch.backends.cudnn.allow_tf32 = False")),
    ("the TF32 settings are not put back as they were", "keep both old values, and restore them in `finally`",
     change(BACK, "pass"), change(TF32, "allow_tf32 = True, True"), change(TF32, f"{TF32}[::-1]")),
    ("TF32 stays switched off when loss_fn raises",
     "an exception skips the lines that follow: restore them in `finally`",
     (change("    try:", "    if True:"), change("    finally:", "    if True:"), *AFTERWARDS),
     (*AFTERWARDS, change("    finally:", f"    except RuntimeError:\n        {BACK}\n        raise\n    if True:"))),
    ("an exception of loss_fn is swallowed", "an `except` ends it: `try` and `finally` alone let it pass",
     change("    finally:", "    except RuntimeError:\n        return {}\n    finally:")),
    # --- the scaler, and the form ---
    ("fp16 runs without a scaler", "an inf in the gradients is then an inf in the weights",
     change("enabled=dtype is torch.float16", "enabled=False")),
    ("no skipped step is counted", "a skipped step shows as a scale that falls in update(), or as optimizer.step() "
     "that does not run", change(SKIPPED, "0")),
    ("the skips of the warm-up are left out", "count those of all steps",
     (add("stepped.clear()", before="start = now()"), change(SKIPPED, "steps - len(stepped)"))),
    ("the losses are tensors", "call .item() on each after the last step: a tensor keeps memory on the GPU",
     change(f"[loss.item() for loss in {LOSSES}]", LOSSES),
     change(f"[loss.item() for loss in {LOSSES}]", f"torch.stack({LOSSES})")),
    ("the losses are scaled", "keep the loss from before scaler.scale()",
     change("losses.append(loss.detach())", "losses.append(scaler.scale(loss).detach())"),
     (drop("losses.append"), add("losses.append(scaler.scale(loss).detach())", before="scaler.scale("))),
    ("the losses include those of the warm-up", "return those of the counted steps", change(LOSSES, "losses")),
    ("nothing comes back", "the function ends without a return", change("return {name: run", "rows = {name: run")),
    ("there is no run in bf16", "on the CPU too bf16 is one of the precisions", change(', "bf16": torch.bfloat16', "")),
    ("fp16 runs on the CPU too", "fp32 and bf16 are asked for there: ask x.device.type",
     change('del precisions["fp16"]', "pass")),
    ("the data are moved to the GPU", "x says where to train, and may be on the CPU although there is a GPU",
     add("x, y = (t.to('cuda' if torch.cuda.is_available() else 'cpu') for t in (x, y))", before="on_gpu = ")),
    ("the code tests whether there is a GPU, not where x is",
     "x may be on the CPU although there is a GPU: x.device.type",
     change('x.device.type == "cuda"', "torch.cuda.is_available()")),
    ("the rows have no skipped", "each row has ms, peak_bytes, losses and skipped", drop('"skipped":')),
)  # fmt: skip
