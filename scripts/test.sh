#!/usr/bin/env bash
# Lints and runs the tests, the same for people and CI; installs what it needs.
#
#   bash scripts/test.sh             everything but the slow suites
#   bash scripts/test.sh -m slow     the slow suites
#   bash scripts/test.sh -k warp     any other arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh requirements-test.txt
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
# Tests start hundreds of processes; each would compile all sources anew.
unset PYTHONDONTWRITEBYTECODE
.venv/bin/ruff check .
if [ $# -eq 0 ]; then
  set -- -m "not slow"
  # Most of the time goes into compiling small programs once. This spares LLVM's
  # passes over the code of each; XLA's own passes, which fuse and reorder, stay.
  # Its older emitters compile twice as fast, and one core a worker is enough.
  fast="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
  export XLA_FLAGS=${XLA_FLAGS:-$fast --xla_cpu_parallel_codegen_split_count=1}
fi
exec .venv/bin/python -m pytest -n 2 --dist loadfile --durations 80 -rs "$@"
