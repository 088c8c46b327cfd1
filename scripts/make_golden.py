"""Regenerates tests/golden/*.json; the review is the diff.

    python scripts/make_golden.py && git diff tests/golden

A change of sampling order, keys or verification shows there token by token.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tests import traces  # noqa: E402  (the repository root comes first)


if __name__ == '__main__':
  traces.write()
  print(f'{len(traces.CASES)} traces in {traces.FOLDER}')
