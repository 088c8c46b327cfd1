"""Notebooks run from top to bottom and print what they show."""
import contextlib
import io
import json
import pathlib

import pytest

NOTEBOOKS = sorted(
    (pathlib.Path(__file__).resolve().parents[1] / 'notebooks').glob('*.ipynb'))


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path):
  scope, cells = {}, json.loads(path.read_text(encoding='utf-8'))['cells']
  code = [cell for cell in cells if cell['cell_type'] == 'code']
  assert code
  for cell in code:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      exec(compile(''.join(cell['source']), path.name, 'exec'), scope)
    shown = ''.join(line for out in cell['outputs']
                    for line in out.get('text', ()))
    assert printed.getvalue() == shown
