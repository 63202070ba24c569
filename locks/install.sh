#!/bin/sh
# Make .venv and install the locked environment and assay itself, from the package index alone.
# With a GPU (nvidia-smi answers) the newest vLLM that pyproject allows is taken instead of the locked CPU build.
set -eu
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' || {
  echo "assay needs Python 3.11 or 3.12; $python is $("$python" -V 2>&1). Try: make PYTHON=python3.11" >&2; exit 1; }
echo "installing the environment into .venv ..."
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check "uv==0.13.9"
uv="env VIRTUAL_ENV=$PWD/.venv .venv/bin/uv pip install --quiet"
# uv does not read pip's settings: hand it the places that pip was given, and take PyTorch's own index only where none is.
links=${PIP_FIND_LINKS:-$(.venv/bin/python -m pip config get global.find-links 2>/dev/null || true)}
if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then
  $uv --torch-backend=auto --editable ".[gpu]" -r locks/dev.txt
elif [ -n "$links" ]; then
  for place in $links; do set -- "$@" --find-links "$place"; done
  $uv --no-deps -r locks/cpu.txt "$@"
else
  $uv --no-deps --torch-backend=cpu -r locks/cpu.txt
fi
$uv --no-deps -r locks/models.txt
$uv --no-deps --editable .
