"""`python -m gpulab run --ranks 8`: a script of many ranks, of which one runs."""

import json

import pytest

from virtualgpu.running.target import CannotRun

from .starting import SCRIPTS, start
from .test_command import prepared

DDP = SCRIPTS / "ddp.py"
WEIGHTS = 4 * 4 * 513 * 512


@pytest.mark.parametrize("more", [[], ["--shapes-only"]], ids=["values", "shapes"])
def test_the_report_says_what_goes_between_the_ranks(tmp_path, more):
    file = tmp_path / "report.json"
    done = start("--gpu", "H100", "--ranks", "16", *more, "--json", file, DDP)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "rank 0 of 16 on NVIDIA H100 80GB HBM3 cuda:0\n"
    assert ", rank 0 of 16, the others imagined" in " ".join(done.stderr.split())
    assert "between ranks" in " ".join(done.stderr.split())
    assert "2 nodes of 8 x H100" in " ".join(done.stderr.split())
    report = json.loads(file.read_text())
    assert (report["rank"], report["world_size"], report["imagined"]) == (0, 16, True)
    (steps,) = report["steps"]
    between = steps["between"]
    assert between["nbytes"] >= WEIGHTS
    assert 0 < between["exposed"] <= between["seconds"] < steps["median"]
    (gpu,) = [gpu for gpu in report["gpus"] if gpu["memory"]["peak_allocated"]]
    categories = dict(gpu["memory"]["breakdown"]["categories"])
    for name in ("weights", "gradients", "optimizer_state", "communication"):
        assert categories[name] == pytest.approx(WEIGHTS, rel=0.001)


def test_one_rank_has_no_others(tmp_path):
    done = start("--gpu", "H100", "--ranks", "1", DDP)
    assert done.returncode == 0, done.stderr
    assert "imagined" not in " ".join(done.stderr.split())


def test_scaling_is_against_the_script_without_ddp(tmp_path):
    file = tmp_path / "report.json"
    common = "--gpu", "T4", "--shapes-only", "--repeatable", "--json", file
    done = start(*common, "--ranks", "4", "--scaling", DDP)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "rank 0 of 4 on Tesla T4 cuda:0\n"  # what it prints alone is dropped
    assert "of 4: one GPU without DistributedDataParallel takes a step every" in " ".join(done.stderr.split())
    report = json.loads(file.read_text())
    plain = start(*common, DDP, "plain")
    assert plain.returncode == 0, plain.stderr
    assert report["alone"]["median"] == json.loads(file.read_text())["steps"][0]["median"]
    assert report["scaling"] == pytest.approx(4 * report["alone"]["median"] / report["steps"][0]["median"])
    assert 1 < report["scaling"] < 4


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import os\nif os.environ['WORLD_SIZE'] == '1': raise ValueError('too few')", "ended with exit code 1: Value"),
        ("print(1)", "alone it took no two steps of an optimizer"),
    ],
)
def test_scaling_that_is_not_known_says_why(tmp_path, script, words):
    file = tmp_path / "script.py"
    file.write_text(script)
    done = start("--gpu", "T4", "--ranks", "4", "--scaling", file)
    assert done.returncode == 0, done.stderr
    assert "not known" in " ".join(done.stderr.split())
    assert words in " ".join(done.stderr.split())


@pytest.mark.parametrize("arguments", [[], ["--ranks", "2"]])
def test_without_ddp_there_is_one_rank(arguments):
    with pytest.raises(CannotRun, match="--skip-ddp leaves out the exchange of gradients: it needs --ranks 1"):
        prepared("--gpu", "H100", "--skip-ddp", *arguments, DDP)


@pytest.mark.parametrize("arguments", [["--scaling"], ["--scaling", "--ranks", "1"]])
def test_scaling_needs_ranks(arguments):
    with pytest.raises(CannotRun, match="it needs --ranks N, of two or more"):
        prepared("--gpu", "H100", *arguments, DDP)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "0"], "ranks must be a whole number"),
        (["--nodes", "2"], "without ranks="),
        (["--ranks", "4", "--link", "wire"], "link is 'wire'"),
        (["--ranks", "16", "--adapters", "many"], "adapters is 'many'"),
    ],
)
def test_what_cannot_be_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        prepared("--gpu", "H100", *arguments, DDP)


def test_imagined_and_real_ranks_at_once(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(CannotRun, match="--ranks imagines ranks, and torchrun has started real ones"):
        prepared("--ranks", "4", DDP)
