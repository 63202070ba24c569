#!/bin/sh
# Compile locks/cpu.txt from locks/cpu.in; vision and audio builds are overridden away (they want a CUDA torch).
set -eu
links=${PIP_FIND_LINKS:-}
if [ -n "$links" ]; then for place in $links; do set -- "$@" --find-links "$place"; done; else set -- --torch-backend=cpu; fi
.venv/bin/uv pip compile --quiet --no-header --override locks/override.txt -o locks/cpu.txt locks/cpu.in "$@"
