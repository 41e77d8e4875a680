"""The digits and the speeds are those that were published, in the shapes and types that a lesson wants."""

import statistics

import pytest
import torch

from gpulab import data
from virtualgpu.gpu import VirtualGPU

COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as published with the set


def test_all_digits_have_their_shape_type_and_range():
    images, labels = data.digits()
    assert (images.shape, images.dtype) == ((1797, 1, 8, 8), torch.float32)
    assert (labels.shape, labels.dtype) == ((1797,), torch.int64)
    assert (images.min().item(), images.max().item()) == (0.0, 1.0)
    assert torch.equal(images * 16, (images * 16).round())


def test_each_class_has_as_many_images_as_published():
    assert data.digits().labels.bincount().tolist() == COUNTS


def test_the_first_images_are_the_digits_0_to_9():
    assert data.digits().labels[:10].tolist() == list(range(10))


def test_train_and_test_are_the_two_ends_of_the_whole():
    whole, train, test = data.digits(), data.digits("train"), data.digits("test")
    assert (len(train.images), len(test.images)) == (1500, 297)
    assert torch.equal(torch.cat([train.images, test.images]), whole.images)
    assert torch.equal(torch.cat([train.labels, test.labels]), whole.labels)


def test_a_change_of_what_came_back_does_not_reach_the_next_call():
    first = data.digits()
    before = first.images.clone(), first.labels.clone()
    first.images.zero_()
    first.labels.zero_()
    again = data.digits()
    assert torch.equal(again.images, before[0])
    assert torch.equal(again.labels, before[1])


@pytest.mark.parametrize("split", ["val", "TRAIN", 0, ""])
def test_another_split_is_refused_by_name(split):
    with pytest.raises(ValueError, match=f"split must be 'train', 'test' or None for all images, not {split!r}"):
        data.digits(split)


def test_the_digits_are_on_the_cpu_and_float32_whatever_the_defaults_are():
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        images, labels = data.digits()
    finally:
        torch.set_default_dtype(before)
    assert (images.dtype, images.device.type, labels.device.type) == (torch.float32, "cpu", "cpu")


CPU, GPU = "infer-fp32-nchw-pt240-cpu-i9_10940x-dynamo", "infer-amp-nchw-pt240-cu124-rtx3090"


def test_the_measurements_are_those_published():
    rows = data.published()
    assert len({row[:4] for row in rows}) == len(rows) == 12953
    assert len({row.setting for row in rows}) == 18
    [vit] = [row for row in data.published(GPU) if (row.model, row.image_size) == ("vit_base_patch16_224", 224)]
    assert vit == (GPU, "vit_base_patch16_224", 1024, 224, 1570.66)


def test_an_unknown_setting_is_named_with_those_that_there_are():
    for call in (lambda: data.published("infer"), lambda: data.gains("infer", GPU), lambda: data.gains(GPU, "infer")):
        with pytest.raises(ValueError, match="setting is 'infer'; it must be one of infer-amp-nchw-"):
            call()


def test_settings_are_compared_where_batch_and_image_are_equal():
    compiled = "infer-amp-nchw-pt291-cu128-4090"
    rows = {(row.model, row.image_size): row for row in data.published(compiled)}
    gains = data.gains(compiled, compiled + "-dynamo")
    assert all(gain.batches == (rows[gain.model, gain.image_size].batch,) * 2 for gain in gains)
    assert len(gains) > 500
    assert statistics.median(gain.ratio for gain in gains) == pytest.approx(1.61, abs=0.01)
    earlier = "infer-amp-nchw-pt240-cu124-rtx4090"
    few = data.gains(earlier, earlier + "-dynamo")
    assert len(few) == 34
    assert statistics.median(gain.ratio for gain in few) == pytest.approx(1.28, abs=0.01)
    same = data.gains(GPU, GPU)
    assert {gain.ratio for gain in same} == {1.0}


def test_a_cpu_and_a_gpu_have_no_batch_in_common():
    assert data.gains(CPU, GPU) == []
    gains = data.gains(CPU, GPU, equal_batch=False)
    assert len(gains) == 708
    assert statistics.median(gain.ratio for gain in gains) == pytest.approx(44.4, abs=0.05)


def test_the_trainings_are_those_published():
    rows = {(row.setting, row.unit): row for row in data.trainings("rasbt gpt2 by hand")}
    assert rows["+ FlashAttention", "tokens/s"].value == 91901
    assert rows["baseline fp32", "reserved GiB"].gpu == "A100-40"
    assert len(data.trainings()) == 105
    assert {row.unit for row in data.trainings("NVIDIA DLE")} == {"samples/s"}


def test_an_unknown_source_is_named_with_those_that_there_are():
    with pytest.raises(ValueError, match="source is 'nvidia'; it must be one of Korthikanti formula, rasbt vit_l_16"):
        data.trainings("nvidia")


def test_the_copies_are_those_published_in_milliseconds():
    copies = data.copies()
    assert list(copies) == ["pageable", "pinned", "pinned, V100"]
    assert copies["pageable"][1024] == pytest.approx(1024 / 0.166182e9 * 1e3)
    assert copies["pinned"][1 << 20] == pytest.approx(0.0948, rel=1e-3)
    assert copies["pinned, V100"][40_000_000] == pytest.approx(3.70, rel=2e-3)  # the log's own: 0.00369 s
    copies["pinned"].clear()
    assert data.copies()["pinned"]


def test_the_arithmetic_of_the_networks_is_that_published():
    networks = data.networks()
    assert len(networks) == 651
    vit = networks["vit_base_patch16_224"]
    assert (vit.parameters, vit.image_size) == (86.57e6, 224)
    blocks = 12 * (12 * 768**2 * 197 + 2 * 197**2 * 768)  # projections and MLP; attention's two products
    assert vit.multiply_adds == pytest.approx(blocks + 196 * 768 * 3 * 16**2, rel=0.002)
    assert "convnext_base_in22ft1k" not in networks  # its row has no count


def test_photographs_are_jpeg_files_in_four_classes(tmp_path):
    from PIL import Image
    from torchvision.transforms.v2.functional import pil_to_tensor

    files = data.photographs(6, folder=tmp_path / "photos")
    assert [file.relative_to(tmp_path / "photos").as_posix() for file in files] == [
        "0/00000.jpg", "0/00004.jpg", "1/00001.jpg", "1/00005.jpg", "2/00002.jpg", "3/00003.jpg"
    ]  # fmt: skip
    images = torch.stack([pil_to_tensor(Image.open(file)) for file in files])
    assert (images.shape, images.dtype) == ((6, 3, 768, 1024), torch.uint8)
    assert min(image.float().std().item() for image in images) > 10  # something is on each
    tints = images.float().mean(dim=(2, 3))
    assert (tints[0] - tints[1]).norm() < (tints[0] - tints[2]).norm()  # one class, and another


def test_photographs_are_drawn_once_and_always_the_same(tmp_path, monkeypatch):
    first = data.photographs(3, folder=tmp_path / "first")
    with VirtualGPU("T4", compute=False):  # where large tensors have no values
        other = data.photographs(3, folder=str(tmp_path / "other"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in other]
    monkeypatch.setattr(data, "_draw", lambda *_: pytest.fail("drawn again"))
    assert data.photographs(3, folder=tmp_path / "first") == first


def test_photographs_lie_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (file,) = data.photographs(1)
    assert file == tmp_path / "gpulab" / "photographs-1" / "0" / "00000.jpg"


def test_drawing_that_is_interrupted_leaves_no_photographs(tmp_path, monkeypatch):
    def interrupted(folder, count):
        (folder / "0").mkdir()
        (folder / "0" / "00000.jpg").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(data, "_draw", interrupted)
        with pytest.raises(KeyboardInterrupt):
            data.photographs(2, folder=tmp_path / "photos")
    assert list(tmp_path.iterdir()) == []
    assert len(data.photographs(2, folder=tmp_path / "photos")) == 2


def test_of_two_that_draw_the_first_is_kept(tmp_path, monkeypatch):
    own = data._draw

    def later(folder, count):
        own(folder, count)
        monkeypatch.setattr(data, "_draw", own)
        data.photographs(count, folder=tmp_path / "photos")  # another process, which is done before

    monkeypatch.setattr(data, "_draw", later)
    files = data.photographs(2, folder=tmp_path / "photos")
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    assert all(file.exists() for file in files)


@pytest.mark.parametrize("count", [0, -3, 2.0, True, None])
def test_photographs_need_a_count(count, tmp_path):
    with pytest.raises(ValueError, match="count must be a whole number from 1 on"):
        data.photographs(count, folder=tmp_path / "photos")


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    data.photographs(2, folder=tmp_path / "photos")
    with pytest.raises(ValueError, match="photos' holds 2 photographs, not 3: remove it, or give another"):
        data.photographs(3, folder=tmp_path / "photos")


def test_what_a_gpu_did_is_given_by_its_name():
    h100 = data.recorded("H100")
    assert h100["kind"] == "measured on a real GPU"
    assert h100["device"]["name"] == "NVIDIA H100 80GB HBM3"
    took = {(row["precision"], *row["mnk"]): row["ms"] for row in h100["products"]}
    assert took["bf16", 8192, 50257, 768] > 4 * took["bf16", 8192, 50304, 768]
    assert h100["saved"]["lstm/autocast_bf16"]["output_dtype"] == "torch.float16"
    for name in ("T4", "h100", ""):
        with pytest.raises(ValueError, match=f"gpu is '{name}'; recorded were .*H100"):
            data.recorded(name)
