"""Whole decodes equal their recorded traces (scripts/make_golden.py)."""
import json

import pytest

from tests import traces


@pytest.mark.parametrize('name', traces.CASES)
def test_a_decode_equals_its_trace(name):
  want = json.loads((traces.FOLDER / f'{name}.json').read_text())
  assert traces.record(name) == want


def test_there_are_no_other_files():
  assert {path.stem for path in traces.FOLDER.glob('*')} == set(traces.CASES)


def test_traces_show_every_origin():
  text = ''.join(path.read_text() for path in traces.FOLDER.glob('*.json'))
  assert all(kind in text for kind in ('accepted', 'corrected', 'bonus'))
