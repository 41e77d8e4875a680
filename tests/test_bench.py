"""The benchmark runs, and what it writes can be read by a program. The figures themselves are not tested."""

import json
import math
import socket
import subprocess

import pytest
from courselib.patience import HANG_SECONDS
from courselib.ready import python_here
from courselib.venv import ROOT


@pytest.mark.slow
def test_a_quick_benchmark_writes_its_rows_as_json_and_prints_them(tmp_path):
    file = tmp_path / "figures.json"
    command = [*python_here(), str(ROOT / "tools" / "bench.py"), "--quick", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["quick"] is True
    assert document["processors"] >= 1
    assert {"python", "torch", "jupyterlab"} <= set(document["versions"])
    names = [row["name"] for row in document["rows"]]
    assert len(names) == len(set(names)) >= 15
    assert all(name in done.stdout for name in names)
    for row in document["rows"]:
        if row["value"] is None:
            assert (row["note"], row["met"], row["source"]) == ("--quick", None, "")
        else:
            assert math.isfinite(row["value"])
            assert row["source"] == "measured"
            assert row["met"] == (None if row["target"] is None else row["value"] <= row["target"])
    for private in (str(ROOT), str(tmp_path), socket.gethostname()):
        assert private not in file.read_text(encoding="utf-8") + done.stdout
