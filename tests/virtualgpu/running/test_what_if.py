"""`python -m gpulab run --what-if`: which remedies are tried, and what the table says of each."""

import json
import os
import re
import signal
import textwrap
import time

import pytest

from virtualgpu.gpus.specs import SPECS
from virtualgpu.running import what_if
from virtualgpu.running.remedies import NAMES, remedies
from virtualgpu.running.trial import Ended, Trial

from .starting import SCRIPTS, begun, options_of, start

DEEP = SCRIPTS / "deep.py"
GIB = 1 << 30
ADAM = ["AdamW", {"fused": None, "foreach": None}]
FACTS = {
    "optimizers": [ADAM], "autocast": False, "checkpoints": False, "gradients": True, "blocks": ["8 x Block"],
    "batch": 64, "sampler": "", "samples": 64,
}  # fmt: skip
GIVEN = {"ranks": None, "gpus": None}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in ("GPULAB_GPU", "RANK", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


# -- which remedies --------------------------------------------------------------------------------------------------


def found(gpu="A100-40", given=GIVEN, **facts):
    return remedies(given, gpu, {**FACTS, **facts})


def test_all_can_be_tried_on_an_ordinary_script_and_the_cheapest_come_first():
    tried = found()
    assert [remedy.name for remedy in tried if not remedy.why_not] == [*NAMES[:-1], "gpu", "ranks"]
    assert [remedy.options["gpu"] for remedy in tried if remedy.name == "gpu"] == ["V100-32", "L40S"]
    assert tried[4].label == "autocast in bf16"


@pytest.mark.parametrize(
    ("name", "how", "why"),
    [
        ("foreach", {"optimizers": []}, "the script makes no optimizer"),
        ("fused", {"optimizers": []}, "the script makes no optimizer"),
        ("micro-batch", {"optimizers": []}, "the script makes no optimizer"),
        ("fused", {"optimizers": [["LBFGS", {}]]}, "LBFGS has no fused="),
        ("foreach", {"optimizers": [["Adam8bit", {}], ["Lion", {}]]}, "Adam8bit, Lion has no foreach="),
        ("fused", {"optimizers": [["SGD", {"fused": True, "foreach": None}]]}, "it is on"),
        ("foreach", {"optimizers": [["SGD", {"fused": True, "foreach": None}]]}, "is fused, and does without foreach"),
        ("foreach", {"optimizers": [["SGD", {"fused": None, "foreach": False}]]}, "it is off"),
        ("tf32", {"gpu": "T4"}, "a T4 has none"),
        ("autocast", {"autocast": True}, "the script uses autocast"),
        ("micro-batch", {"batch": 0}, "no DataLoader gives batches"),
        ("micro-batch", {"batch": 1}, "a batch is one sample"),
        ("micro-batch", {"sampler": "Buckets"}, "the batches are made by Buckets"),
        ("checkpointing", {"blocks": []}, "no two layers of a kind"),
        ("checkpointing", {"blocks": [], "gradients": False}, "no module is called with gradients"),
        ("checkpointing", {"checkpoints": True}, "the script checkpoints itself"),
        ("gpu", {"gpu": "T4"}, "the table has none of the T4's kind"),
        ("gpu", {"gpu": "B200"}, "the table has none of the B200's kind"),
        ("ranks", {"given": {"ranks": None, "gpus": 2}}, "--gpus is given"),
    ],
)
def test_a_remedy_that_cannot_be_tried_has_its_reason(name, how, why):
    reasons = [remedy.why_not for remedy in found(**how) if remedy.name == name]
    assert any(why in reason for reason in reasons), reasons


def test_what_may_come_after_the_end_of_memory_is_not_denied():
    reasons = {each.name: each.why_not for each in remedies(GIVEN, "T4", {**FACTS, "optimizers": []}, early=True)}
    assert reasons["fused"] == "the script makes no optimizer, until it runs out of memory"
    assert reasons["tf32"] == "a T4 has none"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "expandable_segments:True"),
        ("max_split_size_mb:64,expandable_segments:False", "max_split_size_mb:64,expandable_segments:True"),
        ("expandable_segments:True", ""),
    ],
)
def test_settings_of_the_allocator_are_kept(before, after, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", before)
    remedy = found()[0]
    assert (remedy.settings, remedy.why_not) == (after, "" if after else "they are on")


@pytest.mark.parametrize("gpu", SPECS)
def test_another_gpu_has_less_or_more_memory_and_is_of_a_kind(gpu):
    names = [remedy.options["gpu"] for remedy in found(gpu) if remedy.name == "gpu" and not remedy.why_not]
    assert names
    assert all(SPECS[name].memory_gb != SPECS[gpu].memory_gb for name in names)
    assert {"GeForce" in SPECS[name].product for name in names} == {"GeForce" in SPECS[gpu].product}


def test_out_of_memory_the_larger_gpu_is_one_that_is_large_enough():
    tried = remedies(GIVEN, "T4", FACTS, "H200")
    assert [remedy.options["gpu"] for remedy in tried if remedy.options.get("gpu")] == ["H200"]


@pytest.mark.parametrize(("given", "number"), [(None, 8), (1, 2), (16, 32)])
def test_there_are_more_ranks_than_before(given, number):
    assert found(given={"ranks": given, "gpus": None})[-1].options["ranks"] == number


# -- the table -------------------------------------------------------------------------------------------------------


def trial(**changed):
    known = {
        "name": "train.py", "gpu": "T4", "gpus": 1, "ranks": 1, "shapes_only": True, "measured": False,
        "ending": {"kind": "finished", "code": 0, "why": ""}, "allocated": 4 * GIB, "needed": 5 * GIB,
        "total": 16 * GIB, "steps": 10, "seconds": 0.36, "whole": 4.0, "exchanges": False,
    }  # fmt: skip
    return Trial(**{**known, **changed})


FAILED = {"kind": "error", "code": 1, "why": "ValueError: no"}
OUT = {"ending": {"kind": "error", "code": 1, "why": "OutOfMemoryError: CUDA"}, "asked": 3 * GIB, "needed": 20 * GIB}


@pytest.fixture
def table(monkeypatch, capsys, tmp_path):
    """`table(base, *options, remedy=trial, …)`: the exit code, the lines and the JSON of what these trials give."""

    def of(base, *options, facts=FACTS, **trials):
        def run(_, remedy, folder):
            found = base if remedy.label == "as it is" else trials[remedy.name]
            if isinstance(found, signal.Signals):
                signal.raise_signal(found)
            if isinstance(found, str):
                return Ended(139, None, {}, found)
            batch = 32 if remedy.name == "micro-batch" else facts["batch"]
            return Ended(found.ending["code"], {"trial": found}, {**facts, "batch": batch})

        monkeypatch.setattr(what_if, "run", run)
        monkeypatch.setattr(what_if, "read", lambda report: report.pop("trial"))
        monkeypatch.setattr(what_if, "_say", of.said.append)
        file = tmp_path / "table.json"
        names = ["--remedies", ",".join(trials)] if trials else ["--remedies", "tf32"]
        options = options_of("--what-if", *names, "--json", file, *options, DEEP)
        code = what_if.main(options)
        out = capsys.readouterr().out
        assert all(len(line) <= 80 for line in out.splitlines())
        return code, out, json.loads(file.read_text()) if file.exists() else None

    of.said = []
    return of


def line(out, label):
    (found,) = [text for text in out.splitlines() if text.startswith(label)]
    return re.split(r"\s{2,}", found)


def test_a_row_has_bytes_time_cost_and_whether_it_fits(table):
    code, out, written = table(trial(), fused=trial(allocated=3 * GIB, needed=4 * GIB, seconds=0.18))
    assert code == 0
    assert out.startswith("gpulab run --what-if: train.py on a virtual T4, shapes only\n")
    # 0.36 s for 64 samples are 5,625 s for a million
    assert line(out, "as it is") == ["as it is", "4,096 MiB", "5,120 MiB", "360 ms", "1.56", "yes, 31%"]
    assert line(out, "fused=True") == ["fused=True", "3,072 MiB", "4,096 MiB", "180 ms", "0.781", "yes, 25%"]
    assert "GPU h for" in out
    assert "1M samples" in out
    first, second = written["what_if"]["rows"]
    assert first["cost"] == pytest.approx(1e6 / 64 * 0.36 / 3600)
    assert (second["label"], second["trial"]["allocated"]) == ("fused=True", 3 * GIB)


def test_prices_make_the_cost_money_and_a_gpu_without_one_has_none(table):
    prices = "--price", "T4=0.5", "--price", "L40S=2,L4=1"
    _, out, _ = table(trial(), *prices, fused=trial(seconds=0.18), ranks=trial(gpu="H100", exchanges=True, ranks=8))
    assert "cost of" in out
    assert line(out, "as it is")[4] == "0.781"
    assert line(out, "fused=True")[4] == "0.391"
    assert line(out, "8 ranks")[4] == "–"


def test_several_gpus_or_ranks_cost_their_number(table):
    facts = {**FACTS, "batch": 0}
    _, out, _ = table(trial(gpus=2), facts=facts, ranks=trial(ranks=8, exchanges=True))
    assert line(out, "as it is")[4] == "0.200"
    assert line(out, "8 ranks")[4] == "0.800"


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"seconds": 0.362}, True),
        ({"seconds": 0.38}, False),
        ({"allocated": 3 * GIB}, False),
        ({"needed": 4 * GIB}, False),
        (OUT, False),
    ],
)
def test_what_changes_nothing_says_so(table, change, same):
    _, out, _ = table(trial(), "--repeatable", fused=trial(**change))
    assert ("no change" in out.partition("fused=True")[2].partition("\n")[0]) == same


def test_without_repeatable_a_few_percent_of_time_are_none(table):
    _, out, _ = table(trial(), fused=trial(seconds=0.37))
    assert line(out, "fused=True")[1] == "no change"
    assert "No change: below 5%" in out


def test_another_gpu_is_shown_even_where_it_is_the_same(table):
    _, out, _ = table(trial(gpu="L4"), "--gpu", "L4", gpu=trial(gpu="T4"))
    assert line(out, "on a T4")[1] == "4,096 MiB"
    assert "on a V100-32: tried, and the script puts a T4 of its own in place" in out


def test_without_a_loader_the_cost_is_for_steps_and_says_so(table):
    facts = {**FACTS, "batch": 0, "samples": 0}
    _, out, written = table(trial(), facts=facts, fused=trial(seconds=0.18))
    assert line(out, "as it is")[4] == "0.100"
    assert "No DataLoader says how many samples a step has, so the cost is for" in " ".join(out.split())
    assert written["what_if"]["unit"] == "1,000 steps"


def test_without_steps_the_time_is_the_run_s(table):
    facts = {**FACTS, "optimizers": []}
    runs = [trial(steps=0, seconds=None, whole=whole, gpu="L4") for whole in (4.0, 4.01, 3.0)]
    _, out, _ = table(runs[0], facts=facts, fused=trial(), tf32=runs[1], autocast=runs[2])
    assert line(out, "as it is")[3:5] == ["4.00 s", "1.11"]
    assert line(out, "TF32")[1] == "no change"
    assert line(out, "autocast in bf16")[3] == "3.00 s"
    assert "No optimizer steps, so the cost is for 1,000 runs." in " ".join(out.split())
    assert "fused=True: the script makes no optimizer" in out


def test_a_single_step_has_no_time_and_the_table_says_so(table):
    _, out, _ = table(trial(steps=1, seconds=None))
    assert line(out, "as it is")[3:5] == ["–", "–"]
    assert "let the script take two or more" in " ".join(out.split())


def test_out_of_memory_has_its_step_its_request_and_what_it_needs(table):
    code, out, _ = table(trial(**OUT, steps=0, seconds=None), fused=trial(**OUT, steps=2), expandable=trial())
    assert code == 1  # the script's own
    assert line(out, "as it is") == ["as it is", "4,096 MiB", "20,480 MiB", "–", "–", "no, 125%"]
    assert "out of memory in step 1, which asks for 3,072 MiB" in out
    assert "out of memory in step 3, which asks for 3,072 MiB" in out
    assert line(out, "expandable_segments")[-1] == "yes, 31%"
    _, out, _ = table(trial(**OUT), fused=trial(**OUT), foreach=trial(**{**OUT, "asked": 2 * GIB}))
    assert line(out, "fused=True")[1] == "no change"
    assert "which asks for 2,048 MiB" in out


def test_a_script_that_goes_on_after_it_does_not_fit_either(table):
    _, out, _ = table(trial(), fused=trial(asked=GIB))
    assert "out of memory in step 11, which asks for 1,024 MiB, and goes on" in out


def test_a_trial_that_fails_has_its_error_and_the_others_go_on(table):
    code, out, _ = table(trial(), fused=trial(ending=FAILED), foreach="Segmentation fault", tf32=trial(seconds=0.1))
    assert code == 0
    assert "the script fails\n    ValueError: no" in out
    assert "the script fails\n    Segmentation fault" in out


def test_a_trial_that_goes_on_after_it_and_then_fails_has_failed(table):
    _, out, _ = table(trial(), fused=trial(ending=FAILED, asked=GIB))
    assert "the script fails\n    ValueError: no" in out


def test_a_trial_of_too_few_steps_has_no_time(table):
    micro = {"micro-batch": trial(steps=1, seconds=None)}
    _, out, _ = table(trial(), **micro)
    assert line(out, "half batch, accumulated")[3:5] == ["–", "–"]
    assert "too few steps for a time: 1" in out


def test_a_trial_of_other_steps_is_no_comparison(table):
    _, out, _ = table(trial(), fused=trial(steps=2))
    assert "2 steps, not 10: the script did not do the same" in out


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ({"ending": FAILED}, "the script fails as it is, so nothing was tried: ValueError: no."),
        ({"allocated": 0}, "the script puts nothing on the GPU, so nothing was tried; it ends with exit code 0."),
        ({"ending": FAILED, "asked": GIB}, "the script fails as it is, so nothing was tried: ValueError: no."),
        ({"measured": True}, "the script ran on a real GPU"),
    ],
)
def test_without_a_run_to_compare_with_there_is_no_table(table, ending, words):
    code, out, written = table(trial(**ending))
    assert code == trial(**ending).ending["code"]
    assert (out, written) == ("", None)
    assert words in table.said[-1]


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_shows_what_is_known(table, number, expected):
    code, out, written = table(trial(), expandable=trial(needed=GIB), fused=number, autocast=trial())
    assert code == expected
    assert line(out, "expandable_segments")[2] == "1,024 MiB"
    assert "fused=True: interrupted" in out
    assert "autocast in fp16: interrupted" in out
    assert len(written["what_if"]["rows"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", "real"], "--gpu real is not one"),
        (["--scaling", "--ranks", "4"], "--scaling are two comparisons"),
        (["--remedies", "fused,magic"], "--remedies has 'magic'; it must be some of expandable, foreach"),
        (["--price", "T5=1"], "--price has 'T5=1'; it must be a GPU and what an hour of it costs"),
        (["--price", "T4"], "--price has 'T4'"),
        (["--price", "T4=-1"], "--price has 'T4=-1'"),
        (["--json", "/nowhere/x.json"], "--json '/nowhere/x.json' cannot be written"),
        (["--gpu", "T5"], "gpu='T5' names no machine"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, words, capsys):
    assert what_if.main(options_of("--what-if", *arguments, DEEP)) == 2
    assert words in capsys.readouterr().err


def test_under_torchrun_it_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    assert what_if.main(options_of("--what-if", DEEP)) == 2
    assert "leave torchrun out" in capsys.readouterr().err


# -- in processes of their own ---------------------------------------------------------------------------------------


def rows_of(file):
    return {row["label"]: row for row in json.loads(file.read_text())["what_if"]["rows"]}


@pytest.mark.slow
def test_each_remedy_is_tried_in_a_process_of_its_own(tmp_path):
    file, names = tmp_path / "table.json", "micro-batch,checkpointing,ranks"
    common = "--shapes-only", "--repeatable", "--gpu", "L4"
    done = start("--what-if", "--remedies", names, *common, "--json", file, DEEP)
    assert done.returncode == 0, done.stderr
    assert "\n0\n" not in done.stdout  # what the script prints is dropped
    rows = rows_of(file)
    base = rows.pop("as it is")
    assert set(rows) == {"half batch, accumulated", "checkpointing", "8 ranks"}
    for label in ("half batch, accumulated", "checkpointing"):
        assert rows[label]["trial"]["allocated"] < 0.8 * base["trial"]["allocated"], label
    assert rows["checkpointing"]["seconds"] > base["seconds"]
    assert rows["8 ranks"]["trial"]["ranks"] == 8
    for row in (base, *rows.values()):
        assert row["cost"] == pytest.approx(1e6 / 4096 * row["seconds"] / 3600), row["label"]
    plain = start(*common, "--json", file, DEEP)
    assert plain.returncode == 0, plain.stderr
    assert json.loads(file.read_text())["steps"][0]["median"] == base["seconds"]


@pytest.mark.slow
def test_a_script_s_own_ending_and_what_it_does_not_have(tmp_path):
    done = start("--what-if", "--remedies", "fused,tf32,micro-batch,checkpointing", SCRIPTS / "endings.py", "code")
    assert done.returncode == 7, done.stderr
    assert re.search(r"^as it is +\d", done.stdout, re.M)
    assert "fused=True: the script makes no optimizer\n" in done.stdout
    done = start("--what-if", SCRIPTS / "endings.py", "raise")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the script fails as it is, so nothing was tried: ValueError: what went wrong." in done.stderr
    done = start("--what-if", tmp_path / "none.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such file" in done.stderr


@pytest.mark.slow
def test_out_of_memory_is_told_of_the_real_thing():
    done = start("--what-if", "--remedies", "fused", "--shapes-only", "--gpu", "T4", SCRIPTS / "too_large.py")
    assert done.returncode == 12, done.stderr
    assert re.search(
        r"^as it is .* no, \d{3}%\n +out of memory in step 1, which asks for [\d,]+ MiB$", done.stdout, re.M
    )
    assert "fused=True: the script makes no optimizer, until it runs out of memory" in done.stdout


@pytest.mark.slow
def test_ctrl_c_ends_the_trial_that_runs_and_the_table_is_there(tmp_path):
    script, mark = tmp_path / "slow.py", tmp_path / "pid"
    script.write_text(
        textwrap.dedent(f"""
            import os, pathlib, time
            import torch
            model = torch.nn.Linear(8, 8).cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(3):
                model(torch.ones(1, 8).cuda()).sum().backward()
                optimizer.step()
            if optimizer.param_groups[0]["fused"]:
                pathlib.Path({str(mark)!r}).write_text(str(os.getpid()))
                print(flush=True)
                time.sleep(600)
        """)
    )
    with begun("--what-if", "--remedies", "fused,checkpointing", script) as process:
        for text in process.stderr:
            if "1 of 1" in text:
                break
        while not (mark.exists() and mark.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    assert process.returncode == 130
    assert re.search(r"^as it is +[\d.,]+ MiB", out, re.M)
    assert "fused=True: interrupted" in out
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
