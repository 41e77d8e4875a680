"""The accuracy table: what it says of given rows, and where it goes."""

import accuracy
import pytest
from evidence.measure import Predicted, predict
from evidence.trainings import RESNET, TIMM, timm_rows

from gpulab import data
from gpulab.data import Training as Row
from virtualgpu.validate.predict import Pair

MiB = 1 << 20


def row(mode, recorded, predicted, cudnn=None):
    pair = Pair(f"mlp 64 {mode}", recorded * MiB, predicted * MiB)
    return accuracy.Row("T4", "mlp", 64, mode, pair, pair, cudnn and Pair("mlp", cudnn * MiB, predicted * MiB))


def test_a_cell_has_what_was_recorded_and_how_much_the_prediction_is_off():
    text = accuracy.table([row("fp32", 1000, 1000), row("amp_fp16", 800, 780)])
    assert text.splitlines()[2] == "| mlp, 64 | 1,000 (0.00 %) | 800 (−2.50 %) | – | – |"


def test_the_summary_has_median_and_worst_also_with_cudnn_where_that_is_known():
    rows = [row("fp32", 1000, 1000), row("amp_fp16", 800, 780), row("amp_bf16", 1000, 1010, cudnn=2020)]
    line = accuracy.summary(rows, "T4")
    assert line.startswith("- T4, 3 steps: peak allocated median 1.00 %, worst −2.50 % (mlp 64 amp_fp16); reserved ")
    assert line.endswith("allocated with cuDNN's workspaces median 50.00 %, worst −50.00 % (mlp).")


def test_the_readme_keeps_what_stands_outside_the_marks(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{accuracy.BEGIN}old\n{accuracy.END}after\n")
    accuracy.write_readme("new", path)
    assert path.read_text() == f"before\n{accuracy.BEGIN}new\n{accuracy.END}after\n"
    path.write_text("no marks\n")
    with pytest.raises(ValueError, match=r"README\.md lacks the marks"):
        accuracy.write_readme("new", path)


def test_the_readme_of_the_course_has_a_column_for_each_real_gpu_between_its_marks():
    text = (accuracy.ROOT / "README.md").read_text()
    begin, end = text.index(accuracy.BEGIN), text.index(accuracy.END)
    assert 0 < begin < end
    head, *lines = text[begin + len(accuracy.BEGIN) : end].splitlines()
    recordings = map(accuracy.predict.load, accuracy.predict.recordings())
    names = [one["device"]["name"] for one in recordings if accuracy.predict.is_of_a_gpu(one)]
    assert head.split(" | ")[1:] == [*(name.removeprefix("NVIDIA ") for name in names[:-1]), f"{names[-1][7:]} |"]
    assert {line.split(" | ")[0] for line in lines if "step time" in line or "| peak" in line} == {
        "| peak allocated",
        "| peak reserved, which decides whether a step runs out",
        "| step time, the kernels are the limit",
        "| step time, the host is the limit",
    }


def test_steps_are_told_apart_by_what_was_their_limit(monkeypatch):
    def step(kernels, busy, ours, batch):
        row = {
            "model": "mlp",
            "batch": batch,
            "mode": "fp32",
            "optimizer": "adamw",
            "step_ms": 10.0,
            "peak": [100, 200],
        }
        row |= {"kernels_ms": kernels} if kernels else {}
        return accuracy.predict.Trained(row, {"busy_ms": busy, "step_ms": ours, "peak": [99, 200]}, None)

    for name in ("allocator", "saved"):
        monkeypatch.setattr(accuracy.predict, name, lambda recording: [Pair("", 1, 1), Pair("", 1, 2)])
    recording = {"device": {"name": "NVIDIA X1"}}
    table = accuracy.compared([(recording, [step(8.0, 4.0, 9.0, 1), step(3.0, 9.0, 4.0, 2), step(None, 7.0, 11.0, 3)])])
    head, _, *lines = table.splitlines()
    assert head.endswith("| X1 |")
    cells = dict(line.strip("| ").split(" | ") for line in lines)
    assert cells["to the byte: events of the allocator"] == "1 of 2"
    assert cells["peak allocated"] == "3 steps, 3 too small: median 1.00 %, worst −1.00 % (mlp 1 fp32)"
    assert cells["step time, the kernels are the limit"].startswith("2 steps, 1 too small: median 10.00 %, worst")
    assert (
        cells["step time, the host is the limit"] == "1 steps, 1 too small: median 60.00 %, worst −60.00 % (mlp 2 fp32)"
    )
    assert cells["the kernels alone"].startswith("2 steps, 1 too small: median 125.00 %")


def test_the_lines_of_the_readme_are_on_the_page_that_they_stand_for():
    page = (accuracy.ROOT / "docs" / "accuracy.md").read_text()
    assert page.startswith(accuracy.HEAD)
    for part in ("## Real GPUs", "## PyTorch's own CUDA code", "## Published memory", "## Published speed"):
        assert part in page


def test_a_range_has_the_middle_and_both_ends():
    row = Row("HF BERT-large", "batch 4, fp16", "V100-16", "process MiB", 1000.0, "")
    rows = [Predicted(row, virtual) for virtual in (899.0, 1020.0, 940.0)]
    assert accuracy._range(rows) == "median error 6.0 %, from −10.1 to +2.0 %"


def test_a_part_of_the_report_is_not_written_for_the_whole(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["accuracy.py", "--write", "--quick"])
    with pytest.raises(SystemExit):
        accuracy.main()
    assert "leave out --quick and --gpu" in capsys.readouterr().err


def test_published_figures_stand_beside_ours_those_below_twenty_with_decimals():
    rows = [
        Predicted(Row("a", setting, "T4", "samples/s", value, ""), virtual)
        for setting, value, virtual in (("x", 1200.0, 1258.5), ("y", 8.86, 9.861))
    ]
    assert accuracy.published("what | published | virtual |", rows, {"a": "A, "}).splitlines() == [
        "| what | published | virtual | |",
        "|---|---|---|---|",
        "| A, x | 1,200 | 1,258 | +4.9 % |",
        "| A, y | 8.86 | 9.86 | +11.3 % |",
    ]


def test_every_block_of_the_page_is_words_or_a_part_of_the_report():
    fields = [block.strip("{}") for block in accuracy.PAGE if block.startswith("{")]
    assert len(fields) == len(set(fields)) == 9
    assert all(callable(getattr(accuracy.Report, name)) for name in fields)
    assert accuracy.PAGE.count(accuracy.PUBLISHED) == 1
    page = (accuracy.ROOT / "docs" / "accuracy.md").read_text()
    assert all(block in page for block in accuracy.PAGE if not block.startswith(("{", "<!--")))


@pytest.mark.parametrize("setting", TIMM)
def test_half_of_the_rows_of_a_setting_judge(setting):
    halves = [timm_rows(setting, 10**6, half) for half in ("look", "judge")]
    names = [{row.setting for row in half} for half in halves]
    assert not names[0] & names[1]
    assert sum(map(len, halves)) == len(data.published(setting))
    assert [*map(len, halves)] == pytest.approx([len(data.published(setting)) / 2] * 2, rel=0.1)


def test_a_training_gives_all_its_figures_and_one_that_fails_says_why():
    (one,) = [row for row in data.trainings(RESNET) if row.setting == "inference, T4, AMP, one image"]
    (found,) = predict([one])
    assert found.virtual == pytest.approx(170, abs=1)  # as in docs/accuracy.md
    assert 0 < found.busy < 1
    assert found.kernels == pytest.approx(found.busy / found.ratio)
    (none,) = predict([one._replace(source="nobody")])
    assert none.failed == "KeyError: 'nobody'"
