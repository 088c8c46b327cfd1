# Makes .venv and installs a requirements file into it, once per content.
#
# Sourced by the other scripts, from the repository's root:
#   . scripts/setup.sh requirements.txt
# PYTHON names another interpreter (3.11 to 3.13) than python3.
_requirements=$1
_python=${PYTHON:-python3}
if ! "$_python" -c \
    'import sys; v = sys.version_info
sys.exit(not (3, 11) <= v < (3, 14) or v[3] != "final")'; then
  echo "setup: $_python is $("$_python" -V 2>&1); a final Python 3.11, 3.12 or 3.13 is" \
    "needed: set PYTHON=/path/to/python3.11" >&2
  exit 2
fi
# Python is there before pip is: a .venv that was interrupted is made anew.
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  "$_python" -m venv --clear .venv
fi
_stamp=.venv/installed-$(cat requirements.txt "$_requirements" pyproject.toml |
  sha256sum | cut -c1-16)-$(basename "$_requirements")
if [ ! -e "$_stamp" ]; then
  echo "setup: installing $_requirements into .venv (some minutes, once)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --no-compile -r "$_requirements" 2>.venv/pip.log ||
    { cat .venv/pip.log >&2; exit 1; }
  # pip compiles on one core, this on all; a package's broken samples may stay.
  .venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --no-deps -e . 2>>.venv/pip.log || { cat .venv/pip.log >&2; exit 1; }
  touch "$_stamp"
fi
