#!/usr/bin/env bash
# The package without its extras on a CPU-only torch, installed as a user would (`pip install .`): no torchvision,
# no JupyterLab. CPU_TORCH says which torch; it must be a build without CUDA. PYTHON says which Python.
set -euo pipefail
cd "$(dirname "$0")/.."

"${PYTHON:-python3}" -m venv --clear .venv-cpu
.venv-cpu/bin/python -m pip install --quiet --disable-pip-version-check "${CPU_TORCH:-torch==2.13.0}" .

smoke=$PWD/tests/wheel/smoke.py
python=$PWD/.venv-cpu/bin/python
cd "$(mktemp -d)" # away from the source tree: the installed package is what is tried
trap 'rm -rf "$PWD"' EXIT
export GPULAB_PROGRESS=$PWD/progress.json
"$python" -m gpulab doctor
"$python" "$smoke"
cat >step.py <<'END'
import torch


def build(batch):
    layer = torch.nn.Linear(1000, 1000, device="cuda")
    return lambda: layer(torch.ones(batch, 1000, device="cuda")).sum().backward()


if __name__ == "__main__":
    build(100)()
END
"$python" -m gpulab run --gpu T4 step.py
"$python" -m virtualgpu plan step.py:build --batch 100 --gpu T4
