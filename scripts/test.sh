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
.venv/bin/ruff check .
if [ $# -eq 0 ]; then
  set -- -m "not slow"
fi
exec .venv/bin/python -m pytest -n 2 --dist loadfile --durations 15 "$@"
