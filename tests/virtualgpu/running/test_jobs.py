"""docs/jobs: what is shown of the jobs that need PyTorch and torchvision alone is what `run` says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[3] / "docs" / "jobs"
PAGE = (JOBS / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^\$ python -m virtualgpu ((?:.*\\\n)*.*)\n(gpulab run: .*\n(?:.*\n)*?)```$", PAGE, re.MULTILINE)
ALONE = ("01_resnet.py", "02_vit.py", "03_gpt.py", "12_fragmented.py")


def figures(screen):
    """The peak's MiB, and the verdict without its amounts."""
    peak = re.search(r"^  peak +([\d,.]+) MiB allocated", screen, re.MULTILINE)
    verdict = re.search(r"^Verdict: (.*)", screen, re.MULTILINE)
    return float(peak[1].replace(",", "")), re.sub(r"[\d,.]+", "#", verdict[1])


@pytest.mark.parametrize("name", ALONE)
def test_the_screen_is_what_the_page_shows(name):
    ((command, shown),) = [each for each in SHOWN if name in each[0]]
    done = subprocess.run(
        [sys.executable, "-m", "virtualgpu", *shlex.split(command)], cwd=JOBS, capture_output=True, text=True
    )
    now, page = figures(done.stderr), figures(shown)
    assert done.returncode in (0, 12), done.stderr
    assert now[0] == pytest.approx(page[0], rel=0.02)
    assert now[1] == page[1]


def test_every_script_is_shown():
    scripts = {path.name for path in JOBS.glob("*.py")}
    assert scripts == {re.search(r"\S+\.py", command)[0] for command, _ in SHOWN} - {"08_timm_train.py"}
    assert len(SHOWN) == 13
