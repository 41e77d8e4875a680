"""Numbers that nobody knows in checkpoints: files hold plain ones, which anyone can load."""

import io
import pickle
import zipfile

import pytest
import torch

from virtualgpu.gpu import VirtualGPU

pytestmark = pytest.mark.filterwarnings("ignore:with compute=False the virtual GPU knows shapes")


@pytest.fixture
def written():
    """A file with a state of each kind that reads its numbers from the GPU, written on shapes alone."""
    file = io.BytesIO()
    own = torch.serialization._save
    with VirtualGPU("T4", compute=False):
        layer = torch.nn.Linear(4, 4).cuda()
        optimizer, scaler = torch.optim.Adam(layer.parameters()), torch.amp.GradScaler("cuda")
        loss = layer(torch.ones(2, 4, device="cuda")).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        best = min(1e9, loss.item())
        assert str(best) == str(scaler.get_scale()) == "unknown"
        state = {"model": layer.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        torch.save({**state, "best": best, "words": torch.ones(3, dtype=torch.long).cuda().sum().item()}, file)
    assert torch.serialization._save is own
    return file


def test_a_checkpoint_is_loaded_anywhere(written):
    written.seek(0)
    found = torch.load(written, map_location="cpu")  # which takes weights and plain numbers alone
    assert (type(found["best"]), type(found["words"]), type(found["scaler"]["scale"])) == (float, int, float)
    assert found["model"]["weight"].shape == (4, 4)
    with zipfile.ZipFile(written) as parts:
        (name,) = (name for name in parts.namelist() if name.endswith("data.pkl"))
        assert b"gpulab" not in parts.read(name)


def test_and_where_it_was_written(written):
    written.seek(0)
    with VirtualGPU("T4", compute=False):
        scaler = torch.amp.GradScaler("cuda")
        scaler.load_state_dict(torch.load(written, map_location="cuda")["scaler"])


def test_another_pickle_stays_the_caller_s(written):
    class Mine:
        __name__ = "mine"
        Pickler = pickle.Pickler

    file = io.BytesIO()
    with VirtualGPU("T4", compute=False):
        torch.save({"number": 1.5}, file, pickle_module=Mine())
    file.seek(0)
    assert torch.load(file) == {"number": 1.5}
