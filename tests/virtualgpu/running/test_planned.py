"""`python -m virtualgpu plan` prints the screen of a run, with the figures of `virtualgpu.plan`."""

import json
import runpy
import sys

import pytest
import torch

import virtualgpu
from virtualgpu.__main__ import main

STEPS = """
import torch


def build(batch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(batch, 512, device="cuda")

    def step():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def forward(batch):
    model = torch.nn.Linear(512, 512).to("cuda")
    x = torch.randn(batch, 512, device="cuda")
    return lambda: model(x)


def leaks(batch):
    kept = []
    return lambda: kept.append(torch.zeros(batch << 18, device="cuda"))


def ranks(batch):
    torch.distributed.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2048, 2048).to("cuda"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(batch, 2048, device="cuda")

    def step():
        model(x).sum().backward()
        optimizer.step()

    return step


def nothing(batch):
    return None
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "steps.py"
    path.write_text(STEPS, encoding="utf-8")
    return str(path)


def planned(file, capsys, function, batch, *options):
    """The exit code, the report that --json writes, and the screen."""
    code = main(["plan", f"{file}:{function}", "--batch", str(batch), "--gpu", "T4", *options, "--json", "-"])
    shown = capsys.readouterr()
    return code, json.loads(shown.out), shown.err


@pytest.mark.parametrize("batch", [16, 4096])
def test_its_memory_and_time_are_those_of_the_function_plan(file, capsys, batch):
    code, report, screen = planned(file, capsys, "build", batch)
    plan = virtualgpu.plan(runpy.run_path(file)["build"], batch, "T4")
    (gpu,), (steps,) = report["gpus"], report["steps"]
    assert code == 0
    assert gpu["memory"]["peak_allocated"] == plan.peak_allocated
    assert gpu["memory"]["peak_used"] == plan.total
    at_peak = dict(gpu["memory"]["breakdown"]["categories"])
    assert sum(at_peak.values()) == pytest.approx(plan.peak_allocated, rel=0.01)  # of an earlier step, perhaps
    assert [at_peak[name] for name in ("weights", "optimizer_state")] == [plan.weights, plan.optimizer_state]
    assert steps["median"] * 1e3 == pytest.approx(plan.step_ms, rel=0.02)
    assert dict(report["plan"]["fits_on"]) == plan.fits_on
    assert f"steps.py:build, batch {batch:,}" in screen
    assert "fits on a T4 with" in screen
    assert max(map(len, screen.splitlines())) <= 80


def test_a_batch_that_does_not_fit_ends_with_what_it_needs_and_where_it_fits(file, capsys):
    batch = 1_000_000
    code, report, screen = planned(file, capsys, "build", batch)
    plan = virtualgpu.plan(runpy.run_path(file)["build"], batch, "T4")
    assert (code, plan.fits) == (12, False)
    assert report["gpus"][0]["shortage"]["tried"]["allocated"] == pytest.approx(plan.peak_allocated, rel=0.02)
    answers = dict(report["plan"]["fits_on"])
    assert (answers["T4"], answers["A100-80"]) == (False, plan.fits_on["A100-80"])
    assert "does not fit on a T4: a whole step takes" in screen
    assert "Traceback" not in screen


def test_the_largest_batch_and_the_line_of_the_forward_pass_are_found_on_request(file, capsys):
    _, report, screen = planned(file, capsys, "build", 64, "--largest", "--where")
    plan = virtualgpu.plan(runpy.run_path(file)["build"], 64, "T4", largest=True, where=True)
    assert (report["plan"]["largest"], report["plan"]["where"]) == (plan.largest_batch, str(plan.where))
    assert f"batch {plan.largest_batch:,} (" in screen


def test_a_step_without_an_optimizer_has_a_time(file, capsys):
    code, report, screen = planned(file, capsys, "forward", 1024)
    plan = virtualgpu.plan(runpy.run_path(file)["forward"], 1024, "T4")
    (steps,) = report["steps"]
    assert (code, steps["optimizer"]) == (0, "")
    assert steps["median"] * 1e3 == pytest.approx(plan.step_ms, rel=0.02)
    assert steps["samples"] == pytest.approx(1024 / steps["median"])
    assert "4 without an optimizer (cuda:0), every" in screen


def test_memory_that_every_step_leaves_is_said(file, capsys):
    _, report, screen = planned(file, capsys, "leaks", 4)
    assert report["steps"][0]["growth"] == 4 << 20
    assert "What to change" in screen


def test_with_ranks_the_scaling_is_planned_too(file, capsys):
    _, report, screen = planned(file, capsys, "ranks", 64, "--ranks", "8", "--link", "pcie4")
    plan = virtualgpu.plan(runpy.run_path(file)["ranks"], 64, "T4", ranks=8, link="pcie4")
    assert report["scaling"] == pytest.approx(plan.scaling, rel=0.02)
    assert "between ranks" in screen
    assert "of 8: one GPU without DistributedDataParallel" in " ".join(screen.split())
    assert not torch.distributed.is_initialized()


def test_adapters_between_machines_are_a_number_or_words(file, capsys):
    options = ("--ranks", "16", "--nodes", "2", "--where", "--adapters")
    slow, fast = (
        planned(file, capsys, "ranks", 64, *options, given, "--gpu", "A100-40")[1] for given in ("1", "8 x HDR")
    )
    assert slow["steps"][0]["median"] > fast["steps"][0]["median"]


def test_remedies_are_tried_on_a_planned_step(file, capfd):
    options = ["--batch", "4096", "--gpu", "T4", "--what-if", "--json", "-"]
    assert main(["plan", f"{file}:build", *options]) == 0
    rows = {row["label"]: row for row in json.loads(capfd.readouterr().out)["what_if"]["rows"]}
    as_it_is, autocast = (next(row for label, row in rows.items() if word in label) for word in ("as it is", "fp16"))
    assert autocast["seconds"] < as_it_is["seconds"]


def test_a_function_that_returns_no_step_is_refused(file, capsys):
    assert main(["plan", f"{file}:nothing", "--batch", "4", "--gpu", "T4"]) == 2
    shown = capsys.readouterr()
    assert "nothing(4) must return the step, a function" in shown.err
    assert not shown.out


def test_the_interpreter_is_left_as_it_was(file, capsys):
    before = sys.modules["__main__"], list(sys.argv), list(sys.path), torch.cuda.is_available()
    planned(file, capsys, "build", 16)
    assert before == (sys.modules["__main__"], list(sys.argv), list(sys.path), torch.cuda.is_available())
