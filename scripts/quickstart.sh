#!/usr/bin/env bash
# From a fresh clone to the first cost-quality curve, in one command.
#
#   bash scripts/quickstart.sh                       installs and sweeps
#   bash scripts/quickstart.sh --gin.EXAMPLES=50 --gin.OUTPUT_DIR=runs/short
#                                                    arguments go to the sweep
#
# Installs into .venv (Python 3.11 to 3.13; PYTHON=... chooses one), then runs
# gin/sweeps/quickstart.gin: some minutes on 2 quiet cores. Stopped half-way,
# the same command goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh requirements.txt
exec .venv/bin/python scripts/sweep.py \
  --gin_file=gin/sweeps/quickstart.gin "$@"
