"""Probes the script's model: attention, the MLP, recomputation, the log, the vocabulary, waits in a forward pass."""

from __future__ import annotations

from types import ModuleType

import torch
from torch.autograd.graph import saved_tensors_hooks

from .bench import (
    WORDS,
    Finding,
    busy,
    found,
    gradient_of,
    held,
    mib,
    products,
    shapes_only,
    sound_module,
    timeline,
    waits,
)


def attention(script: ModuleType) -> Finding:
    kept = []
    with shapes_only():
        for length in (512, 1024):
            block, x = script.Block(128, 2).cuda(), torch.empty(4, length, 128, device="cuda", requires_grad=True)
            before = held()
            with torch.autocast("cuda", dtype=torch.float16):
                out = block(x)
            kept.append(held() - before)
            del out
    growth = kept[1] / max(kept[0], 1)
    ours = sound_module().Block(32, 2).cuda().eval()
    theirs = script.Block(32, 2).cuda().eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 6, 32).cuda()
    with torch.no_grad():
        out, wanted = theirs(x), ours(x)
        changed = x.clone()
        changed[:, -1] = torch.randn(32).cuda()
        looks_ahead = not torch.allclose(theirs(changed)[:, :-1], out[:, :-1], atol=1e-4)
        attends = not hasattr(theirs, "attend") or torch.allclose(theirs.attend(x), ours.attend(x), atol=1e-3)
    return found(
        f"a block keeps {growth:.1f} times as much for twice the length",
        (looks_ahead, "a word sees the words after it", "the causal mask is missing: is_causal=True"),
        (not attends, "attention has another result", "scores are divided by √(width / heads)"),
        (not torch.allclose(out, wanted, atol=1e-3), "a block has another result",
         "the input is added to attention's output, and the sum to the MLP's output: ReLU, then its square"),
        (growth > 2.4, "what attention keeps grows with the square of the length",
         "a matrix of scores is kept for backward"),
    )  # fmt: skip


def activation(script: ModuleType) -> Finding:
    rows, width = 1024, 128
    kept, casts = [], set[torch.Size]()

    def note(saved: torch.Tensor) -> torch.Tensor:
        if saved.dtype is torch.float32 and saved.numel() >= rows * 4 * width:
            casts.add(saved.shape)
        return saved

    with shapes_only():
        for each in (sound_module(), script):
            block, x = each.Block(width, 2).cuda(), torch.empty(rows, 1, width, device="cuda", requires_grad=True)
            casts.clear()
            for _ in range(2):  # the first call also makes what stays
                before = held()
                with torch.autocast("cuda", dtype=torch.float16), saved_tensors_hooks(note, lambda saved: saved):
                    out = block(x)  # of one word: attention keeps next to nothing
                nbytes = held() - before
                del out
            kept.append(nbytes / x.numel())
    return found(
        f"a block keeps {kept[1]:.0f} bytes for each input number",
        (casts and kept[1] > kept[0] + 4, "a float32 copy of the MLP's hidden layer is kept for backward",
         "autocast runs pow in float32, which ** and square() call too, and casts its input"),
        (kept[1] > kept[0] + 4, "a block keeps more than the hidden layer of its MLP and its square",
         "each operation keeps what its own backward needs"),
    )  # fmt: skip


def recomputation(script: ModuleType) -> Finding:
    with shapes_only():
        model = script.GPT(WORDS, 128, 4, 2, 1).cuda()
        tokens = torch.zeros(1024, 1, dtype=torch.long, device="cuda")  # of one word: the products are those of layers
        with timeline() as forward, torch.autocast("cuda", dtype=torch.float16):
            loss = model(tokens).float().mean()
        with timeline() as backward:
            loss.backward()
        flops = [sum(span.flops for span in trace.spans) for trace in (forward, backward)]
    again = flops[1] / flops[0] - 2  # each product of a layer has two in its backward
    return found(
        f"backward recomputes {abs(again):.0%} of the forward pass",
        (again > 0.75, "backward recomputes all blocks, but the step fits without",
         "recomputation is for a step that does not fit: measure the peak without it"),
        (again > 0.02, "backward still recomputes some of the blocks",
         "the step fits without recomputation"),
    )  # fmt: skip


def log(script: ModuleType) -> Finding:
    model, after = script.GPT(WORDS, 64, 2, 2, 32).cuda(), []
    tokens = torch.randint(WORDS, (8, 32)).cuda()
    for _ in range(3):
        model(tokens).mean().backward()
        model.zero_grad()
        after.append(held())
    growth = after[2] - after[1]
    return found(
        f"{mib(growth)} more after each step",
        (growth >= 2**12, "each forward pass leaves activations on the GPU",
         "a tensor with its graph, or a large one, is in a list"),
        (growth > 0, "each forward pass leaves a small tensor on the GPU",
         "even detached it is a block of 512 bytes, in a list that is never emptied"),
    )  # fmt: skip


def vocabulary(script: ModuleType) -> Finding:
    with shapes_only():
        model = script.GPT(width=256, depth=1, heads=4, length=128).cuda()
        tokens, words = torch.zeros(8, 128, dtype=torch.long, device="cuda"), 0

        def forward() -> None:
            nonlocal words
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
                words = model(tokens).shape[-1]

        _, reached = products(forward)
        x, w = torch.empty(1024, 256, device="cuda"), torch.empty(50304, 256, device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            _, wanted = products(lambda: torch.nn.functional.linear(x, w))
    share = reached / wanted
    return found(
        f"the product with {words:,} words reaches {share:.0%} of the speed with a multiple of 64",
        (words < 50257, "words are missing", "GPT-2 has 50,257: round the number up"),
        (words > 52000, "most of the padding is useless", "the next multiple of 64 is enough"),
        (share < 0.95 and words % 8, "the rows of the largest product are not aligned",
         "tensor cores need rows of a multiple of 16 bytes, 8 numbers"),
        (share < 0.95, "the largest product is slower than in 16 bits",
         "its rows are aligned: look at the types of its inputs"),
    )  # fmt: skip


def forward(script: ModuleType) -> Finding:
    model, tokens = script.GPT(WORDS, 32, 1, 1, 16).cuda(), torch.randint(WORDS, (2, 16)).cuda()
    model(tokens)
    busy()
    with waits() as seen:
        model(tokens)
    other = _other_than_the_sound_one(script, tokens)
    return found(
        f"{len(seen)} waits in a forward pass",
        (seen, "the forward pass waits for the GPU",
         "it copies a tensor made on the host, or reads a value"),
        (other == "scores", "the model gives other scores",
         "add words and places, then every block, the last norm and the head"),
        (other == "gradients", "the scores lead to other gradients",
         "every parameter contributes to the scores: no detach, no no_grad"),
        (other == "dropout", "training no longer has dropout", "dropout leaves out a tenth of what a block adds"),
    )  # fmt: skip


def _other_than_the_sound_one(script: ModuleType, tokens: torch.Tensor) -> str:
    """What differs in the model from the sound script, with the same weights; "" if nothing does."""
    theirs, ours = (module.GPT(WORDS, 32, 2, 2, 16).cuda().eval() for module in (script, sound_module()))
    wanted = dict(ours.named_parameters())
    if wanted.keys() != dict(theirs.named_parameters()).keys():  # there is nothing to compare with
        return ""
    theirs.load_state_dict(ours.state_dict(), strict=False)  # buffers may be others
    got, right = theirs(tokens), ours(tokens)
    if got.shape != right.shape or not torch.allclose(got, right, atol=1e-3):
        return "scores"
    for scores in (got, right):
        scores.square().mean().backward()
    if not torch.allclose(gradient_of(theirs), gradient_of(ours), atol=1e-3):
        return "gradients"
    theirs.train()
    with torch.no_grad():
        return "dropout" if torch.equal(theirs(tokens), theirs(tokens)) else ""
