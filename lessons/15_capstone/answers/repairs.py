"""Repairs of the capstone's script as students make them: right ones written differently, and wrong ones.

A wrong repair stands in a script that is sound everywhere else. `means` is what its place is told; for one that
changes nothing that is measured, it is what the fault was told.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.capstone.faults import FAULTS, sound

FAULT = {fault.name: fault for fault in FAULTS}


@dataclass(frozen=True)
class Repair:
    """An attempt at one place, as edits of the sound script, after a fault of that place where one is named."""

    name: str
    place: str
    means: str
    edits: tuple[tuple[str, str], ...] = ()
    fault: str = ""

    @property
    def text(self) -> str:
        return edited(FAULT[self.fault].apply(sound()) if self.fault else sound(), *self.edits)


def edited(text: str, *edits: tuple[str, str]) -> str:
    """The text with each edit made; its first part stands there once."""
    for old, new in edits:
        assert text.count(old) == 1, (text.count(old), old)
        text = text.replace(old, new)
    return text


GROWS = "what attention keeps grows with the square of the length"
CAST = "a float32 copy of the MLP's hidden layer is kept for backward"
STAYS = "the graph of every batch stays alive"
EVALUATED = "the graph of every batch of the evaluation stays alive"
WAITS = "the host waits for the GPU at each batch"
PAGEABLE = "batches are in pageable memory"
SCALED = "the gradient is clipped while it is still scaled"
BY_TENSOR = "the optimizer launches kernels tensor by tensor"
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
SUMS = "        total, right, words = total + loss, right + hits, words + targets.numel()\n"
STEP = "        scaler.step(optimizer)\n"
UNSCALE = "        scaler.unscale_(optimizer)\n"
EACH = "        for block in self.blocks:\n            x = block(x)\n"
COUNTED = "        for i, block in enumerate(self.blocks):\n            x = block(x)"
RECOMPUTED = "torch.utils.checkpoint.checkpoint"
MOVES = 'yield tokens.to("cuda", non_blocking=True), targets.to("cuda", non_blocking=True)'

WRONG = (
    Repair("masks_in_place", "attention", GROWS, ((".masked_fill(", ".masked_fill_("),), "scores_kept"),
    Repair("forgets_the_mask", "attention", "a word sees the words after it", ((", is_causal=True", ""),)),
    Repair(
        "forgets_the_scale",
        "attention",
        "attention has another result",
        (("is_causal=True", "is_causal=True, scale=1.0"),),
    ),
    Repair(
        "leaves_out_what_the_mlp_is_added_to",
        "attention",
        "a block has another result",
        (("        return x + self.drop(self.mlp", "        return self.drop(self.mlp"),),
    ),
    Repair("calls_square", "activation", CAST, (("hidden * hidden", "hidden.square()"),)),
    Repair("casts_back", "activation", CAST, (("hidden * hidden", "(hidden**2).to(hidden.dtype)"),)),
    Repair("squares_in_float32", "activation", CAST, (("hidden * hidden", "hidden.float() * hidden.float()"),)),
    Repair(
        "makes_the_hidden_layer_twice",
        "activation",
        "a block keeps more than the hidden layer of its MLP and its square",
        (("hidden * hidden", "hidden * F.relu(self.up(x))"),),
    ),
    Repair(
        "all_in_one_piece",
        "recomputation",
        "backward recomputes all blocks, but the step fits without",
        ((EACH, f"        x = {RECOMPUTED}(nn.Sequential(*self.blocks), x, use_reentrant=False)\n"),),
    ),
    Repair(
        "every_second_block",
        "recomputation",
        "backward still recomputes some of the blocks",
        ((EACH, f"{COUNTED} if i % 2 else {RECOMPUTED}(block, x, use_reentrant=False)\n"),),
    ),
    Repair(
        "keeps_every_second_block",
        "log",
        "each forward pass leaves activations on the GPU",
        ((EACH, COUNTED + "\n            self.__dict__.setdefault('kept', []).extend([x.detach()] * (i % 2))\n"),),
    ),
    Repair(
        "detaches_the_norm",
        "log",
        "each forward pass leaves a small tensor on the GPU",
        (("(x.norm())", "(x.detach().norm())"),),
        "norms_with_graph",
    ),
    Repair(
        "keeps_means_of_rows",
        "log",
        "each forward pass leaves activations on the GPU",
        (("(x.detach())", "(x.mean(0))"),),
        "features_kept",
    ),
    Repair(
        "deletes_the_name",
        "history",
        STAYS,
        (("            words += targets.numel()\n", "            words += targets.numel()\n            del loss\n"),),
        "retained",
    ),
    Repair("copies_the_sum", "history", STAYS, (("total = total + loss", "total = total + loss.clone()"),), "retained"),
    Repair("only_evaluates", "graph", EVALUATED, (), "graph_in_evaluation"),
    Repair(
        "detaches_the_sum",
        "graph",
        "a graph is built for each batch of the evaluation",
        ((SUMS, SUMS.replace("total + loss", "total + loss.detach()")),),
        "graph_in_evaluation",
    ),
    Repair(
        "freezes_the_model",
        "graph",
        "after the evaluation parameters no longer require gradients",
        (("    model.eval()\n", "    model.eval().requires_grad_(False)\n"),),
        "graph_in_evaluation",
    ),
    Repair(
        "empties_before_the_retry",
        "search",
        "an attempt begins while the previous one still holds its memory",
        (
            (
                "            return largest_batch(",
                "            torch.cuda.empty_cache()\n            return largest_batch(",
            ),
        ),
        "retry_in_except",
    ),
    Repair(
        "tries_a_batch_of_nothing",
        "search",
        "if no batch fits, the search does not end at 1",
        (
            (
                "        except torch.OutOfMemoryError:\n            if batch == 1:\n                raise\n",
                "        except torch.OutOfMemoryError:\n            pass\n",
            ),
        ),
    ),
    Repair("catches_all", "search", "errors other than out of memory are swallowed", (), "any_error"),
    Repair("rounds_down", "vocabulary", "words are missing", (("WORDS = 50304", "WORDS = 50176"),)),
    Repair(
        "a_multiple_of_four",
        "vocabulary",
        "the rows of the largest product are not aligned",
        (("WORDS = 50304", "WORDS = 50260"),),
    ),
    Repair(
        "head_in_float32",
        "vocabulary",
        "the largest product is slower than in 16 bits",
        (
            (
                "        return self.head(self.norm(x))",
                '        with torch.autocast("cuda", enabled=False):\n            return self.head(self.norm(x.float()))',
            ),
        ),
    ),
    Repair("a_power_of_two", "vocabulary", "most of the padding is useless", (("WORDS = 50304", "WORDS = 65536"),)),
    Repair("full_precision", "precision", "products of a training step run in float32", (), "float32"),
    Repair(
        "makes_the_model_half",
        "precision",
        "the weights themselves have become 16-bit numbers",
        (('    with torch.autocast("cuda", dtype=torch.float16):\n', "    model.half()\n    if True:\n"),),
    ),
    Repair(
        "adds_up_in_half",
        "precision",
        "the loss is summed in 16 bits",
        (("        loss = F.cross_entropy(scores", "    loss = F.cross_entropy(scores"),),
    ),
    Repair(
        "autocasts_training_alone",
        "precision",
        "products of the evaluation run in float32",
        (('"cuda", dtype=torch.float16', '"cuda", dtype=torch.float16, enabled=model.training'),),
    ),
    Repair(
        "names_the_default", "optimizer", BY_TENSOR, (("foreach=False", "foreach=False, fused=False"),), "one_by_one"
    ),
    Repair(
        "steps_a_tensor_at_a_time",
        "optimizer",
        BY_TENSOR,
        (("foreach=False", "foreach=False, amsgrad=False"),),
        "one_by_one",
    ),
    Repair(
        "adds_up_numbers",
        "waits",
        WAITS,
        (("total += loss.detach()", "total += loss.item()"), ("(total / words).item()\n\n\n@", "total / words\n\n\n@")),
    ),
    Repair("asks_on_the_host", "waits", WAITS, (("total += loss.detach()", "total += loss.detach().cpu()"),)),
    Repair(
        "reads_every_second",
        "waits",
        "the host waits for the GPU at every other batch",
        (
            (
                "            words += targets.numel()\n",
                "            words += targets.numel()\n            if words // targets.numel() % 2:\n                loss.item()\n",
            ),
        ),
    ),
    Repair(
        "does_not_block_the_copy",
        "forward",
        "the forward pass waits for the GPU",
        ((".to(tokens.device)", ".to(tokens.device, non_blocking=True)"),),
        "places_on_host",
    ),
    Repair(
        "leaves_out_the_last_block",
        "forward",
        "the model gives other scores",
        (("for block in self.blocks:", "for block in self.blocks[:-1]:"),),
    ),
    Repair(
        "cuts_the_graph",
        "forward",
        "the scores lead to other gradients",
        (("self.embed(tokens) + self.place(places)", "self.embed(tokens) + self.place(places).detach()"),),
    ),
    Repair(
        "leaves_dropout_out",
        "forward",
        "training no longer has dropout",
        (("nn.Dropout(0.1)", "nn.Identity()"),),
    ),
    Repair("asks_for_what_is_not_pinned", "copies", PAGEABLE, (), "pageable"),
    Repair(
        "pins_in_the_loop",
        "copies",
        "each batch is pinned just before its copy",
        ((MOVES, MOVES.replace(".to(", ".pin_memory().to(")),),
        "pageable",
    ),
    Repair(
        "pins_and_waits",
        "copies",
        "the host waits until a batch is copied",
        ((MOVES, MOVES.replace(", non_blocking=True", "")),),
    ),
    Repair(
        "empties_now_and_then",
        "cache",
        "memory is returned to the driver and allocated again",
        (
            (
                "        optimizer.zero_grad()\n    return",
                "        optimizer.zero_grad()\n        if words % 64 == 0:\n            torch.cuda.empty_cache()\n    return",
            ),
        ),
    ),
    Repair(
        "waits_before_the_clock",
        "clock",
        "the clock stops before the GPU is done",
        (("        step()\n    torch.cuda.synchronize()\n    return 10", "        step()\n    return 10"),),
    ),
    Repair("counts_one_step", "clock", "the speed is wrong", (("return 10 * words", "return words"),)),
    Repair("clips_after_the_step", "clipping", "the gradient is not clipped", ((CLIP, ""), (STEP, STEP + CLIP))),
    Repair("forgets_to_unscale", "clipping", SCALED, ((UNSCALE, ""),)),
    Repair(
        "leaves_all_to_the_optimizer",
        "clipping",
        "the optimizer is given scaled gradients",
        ((UNSCALE, ""), (CLIP, ""), (f"{STEP}        scaler.update()\n", "        optimizer.step()\n")),
    ),
    Repair(
        "clips_to_a_half",
        "clipping",
        "the gradient is clipped to another norm",
        (("model.parameters(), 1.0", "model.parameters(), 0.5"),),
    ),
    Repair(
        "makes_all_of_length_one",
        "clipping",
        "small gradients are changed too",
        (
            (
                CLIP,
                "        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])\n        for p in model.parameters():\n            p.grad /= norm\n",
            ),
        ),
    ),
    Repair("steps_with_infinite", "overflow", "the optimizer steps with infinite gradients", (), "step_past_scaler"),
    Repair(
        "counts_skipped_updates",
        "overflow",
        "the schedule advances for an update that was skipped",
        (),
        "schedule_always",
    ),
    Repair(
        "never_counts",
        "overflow",
        "the schedule does not count the updates that were made",
        (("            schedule.step()\n", "            pass\n"),),
    ),
    Repair(
        "never_updates_the_scale", "overflow", "the script raised RuntimeError", (("        scaler.update()\n", ""),)
    ),
    Repair("drops_the_last", "window", "the last window, which is not full, makes no update", (), "last_dropped"),
    Repair("adds_up", "window", "the gradients of a window are added up, not averaged", (), "not_divided"),
    Repair(
        "divides_by_a_full_one", "window", "the last window is divided by the size of a full one", (), "last_as_if_full"
    ),
    Repair(
        "clears_at_each_batch",
        "window",
        "an update does not have the gradient of its window",
        (("            loss, _ = loss_of(", "            optimizer.zero_grad()\n            loss, _ = loss_of("),),
    ),
    Repair(
        "never_clears",
        "window",
        "an update has gradients of the previous one",
        (("        optimizer.zero_grad()\n", ""),),
    ),
    Repair(
        "returns_the_sum",
        "window",
        "train returns another number than the mean loss of a word",
        (("    return (total / words).item()\n\n\n@", "    return total.item()\n\n\n@"),),
    ),
    Repair(
        "returns_nothing",
        "window",
        "train does not return a number",
        (("    return (total / words).item()\n\n\n@", "\n\n@"),),
    ),
    Repair(
        "loss_of_the_mean",
        "window",
        "loss_of returns another number than the sum over the words of a batch",
        (
            ('reduction="sum"', 'reduction="mean"'),
            ("loss / in_window", "loss * targets.numel() / in_window"),
            ("total += loss.detach()", "total += loss.detach() * targets.numel()"),
            (SUMS, SUMS.replace("total + loss", "total + loss * targets.numel()")),
        ),
    ),
    Repair("means_of_batches", "mean", "the evaluation gives the mean of the batches' means", (), "mean_of_means"),
    Repair(
        "divides_by_batches",
        "mean",
        "the evaluation gives another loss than the mean over all words",
        ((SUMS, SUMS.replace("words + targets.numel()", "words + 1")),),
    ),
    Repair(
        "weighs_the_loss_alone",
        "mean",
        "the share of guessed words is not that over all words",
        ((SUMS, SUMS.replace("right + hits", "right + hits / targets.numel()")),),
    ),
    Repair("evaluates_with_dropout", "modes", "the evaluation runs in training mode", (), "dropout_in_evaluation"),
    Repair("trains_without_dropout", "modes", "training continues in evaluation mode", (), "no_dropout_in_training"),
    Repair(
        "only_blocks",
        "parameters",
        "some parameters never change",
        (("for p in model.parameters() if p.ndim > 1", "for p in model.blocks.parameters() if p.ndim > 1"),),
    ),
    Repair(
        "decays_all",
        "parameters",
        "the update is wrong",
        (('vectors, "weight_decay": 0.0', 'vectors, "weight_decay": 0.1'),),
    ),
    Repair(
        "knows_its_own_rate",
        "parameters",
        "the optimizer does not have the learning rate asked for",
        (("lr=rate", "lr=3e-4"),),
    ),
    Repair(
        "asks_for_the_words_themselves",
        "dealing",
        "a sample is not a piece of the text with the next words as targets",
        (("return piece[:-1], piece[1:]", "return piece[:-1], piece[:-1]"),),
    ),
    Repair(
        "drops_nothing", "dealing", "training has a batch that is not full", (("drop_last=train", "drop_last=False"),)
    ),
    Repair("drops_for_both", "dealing", "the evaluation leaves out the last samples", (), "last_samples_dropped"),
    Repair("shuffles_nothing", "dealing", "training has the same order in every epoch", (), "same_order"),
    Repair("forgets_the_scaler", "resuming", "not restored by load(): scaler", (), "scaler_forgotten"),
    Repair(
        "breaks_main",
        "resuming",
        "the script raised AttributeError",
        (("    losses = []\n", "    losses = [].push\n"),),
    ),
    Repair(
        "keeps_nothing",
        "resuming",
        "main() ends without save()",
        (('    save("checkpoint.pt", model, optimizer, scaler, schedule)\n', ""),),
    ),
    Repair("loads_onto_the_gpu", "resuming", "loading puts a second copy on the GPU", (), "second_copy"),
    Repair(
        "saves_all_and_loads_the_weights",
        "resuming",
        "not restored by load(): optimizer, scaler, schedule",
        (
            (
                '    held = {"model": model, "optimizer": optimizer, "scaler": scaler, "schedule": schedule}\n'
                "    for name, part in held.items():\n        part.load",
                '    for name, part in {"model": model}.items():\n        part.load',
            ),
        ),
    ),
)

# Whole scripts that are right, and written otherwise.
RIGHT = {
    "sound": sound(),
    "in_other_words": edited(
        sound(),
        ("@torch.inference_mode()", "@torch.no_grad()"),
        (", fused=True", ""),
        ("total += loss.detach()", "total = total + float(words >= 0) * loss.detach()"),
        ("loss / in_window", "loss / targets.numel() / len(window)"),
        (EACH, COUNTED + "\n"),
        ("hidden * hidden", "torch.mul(hidden, hidden)"),
        ("WORDS = 50304", "WORDS = 50264"),
        (".backward()", ".backward(retain_graph=True)"),
    ),
    "with_more_lines": edited(
        sound(),
        (
            "        scaler.unscale_(optimizer)\n" + CLIP,
            CLIP.replace("1.0", "1.0 * scaler.get_scale()") + "        scaler.unscale_(optimizer)\n",
        ),
        ("    total, words = 0.0, 0\n    for", "    total, words, losses = 0.0, 0, []\n    for"),
        ("            total += loss.detach()\n", "            losses.append(loss.detach())\n"),
        ("    return (total / words).item()\n\n\n@", "    return torch.stack(losses).sum().item() / words\n\n\n@"),
        (
            "            words += targets.numel()\n",
            "            words += targets.numel()\n            if len(losses) % 100 == 0:\n                print(loss.item())\n",
        ),
        (SUMS, SUMS.replace("total + loss", "total + loss.item()").replace("right + hits", "right + hits.item()")),
        ("    return (total / words).item(), (right / words).item()\n", "    return total / words, right / words\n"),
        (
            "    torch.cuda.synchronize()\n    start",
            "    end, begin = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n    begin.record()\n    start",
        ),
        (
            "        step()\n    torch.cuda.synchronize()\n    return 10 * words / (time.perf_counter() - start)",
            "        step()\n    end.record()\n    end.synchronize()\n    return 1e4 * words / begin.elapsed_time(end) + 0 * start",
        ),
        ("hidden = F.relu(self.up(x))", "hidden = self.up(x).relu()"),
        ("(hidden * hidden)", "(hidden.mul(hidden))"),
        ("shuffle=train, drop_last=train", "shuffle=bool(train), drop_last=bool(train)"),
    ),
}
