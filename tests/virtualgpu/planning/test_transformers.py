"""Models of `transformers`, which decide by their positions and masks which way they go, are planned as they come."""

import pytest
import torch

from virtualgpu.planning import plan

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models():
    import transformers

    small = {"vocab_size": 1000, "bos_token_id": 1, "eos_token_id": 2}
    gpt2 = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=2, **small)
    llama = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, **small
    )
    bert = transformers.BertConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, **small
    )
    return {
        "gpt2": lambda: transformers.GPT2LMHeadModel(gpt2),
        "llama": lambda: transformers.LlamaForCausalLM(llama),
        "bert": lambda: transformers.BertForMaskedLM(bert),
    }


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_step_is_planned(models, name, masked):
    def build(batch):
        model = models[name]().to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.ones(batch, 64, dtype=torch.long, device="cuda")
        mask = (ids > 0).long() if masked else None

        def step():
            with torch.autocast("cuda", torch.float16):
                loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    found = plan(build, 4, "T4")
    assert found.fits
    assert found.activations > 0
    # The two moments of Adam.
    assert found.optimizer_state == pytest.approx(2 * found.weights, rel=0.2)
    assert plan(build, 8, "T4").activations > 1.5 * found.activations
