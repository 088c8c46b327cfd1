"""The README's example runs, and its links lead somewhere."""
import pathlib
import re
import types as builtin

import numpy as np
import pytest

from spec_cascades import decode, targets, verify
from spec_cascades.drafters import null
from spec_cascades.evaluation import estimated, kinds
from spec_cascades.warp import Warp
from tests.common import LEVEL, LM, P, RAGGED, keys, law_test

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / 'README.md').read_text(encoding='utf-8')


def test_the_example_decodes(capsys):
  code = re.findall(r'```python\n(.*?)```', README, re.S)[0]
  assert len(code.strip().splitlines()) <= 13
  exec(compile(code, 'README.md', 'exec'), {})
  translation, per_call = capsys.readouterr().out.strip().rsplit('\n', 1)
  assert translation and 1 <= float(per_call.strip('[] ')) <= 6


def again():
  """The drafter of the guide, as a module."""
  code, = (x for x in re.findall(r'```python\n(.*?)```', README, re.S)
           if 'def propose' in x)
  module = builtin.ModuleType('again')
  exec(compile(code, 'README.md', 'exec'), vars(module))
  return module


def test_the_row_of_the_guide_names_its_drafter_and_its_cost():
  row, = re.findall(r'`again=(Kind\([^`]*\))`', README)
  module = again()
  kind = eval(row, dict(vars(kinds), again=module))
  assert kind.make(None, 3, None) == (module.Again(3), None)
  assert not kind.small and kind.cost is estimated.nothing


def test_the_drafter_of_the_guide_is_exact():
  drafter = again().Again(3)
  tokens = [decode.GenSpecSample(LM, x, 20, eos=-1)(
      P, None, RAGGED, keys(3), targets.Lossless(), Warp(0.)).tokens
            for x in (drafter, null.Null())]
  np.testing.assert_array_equal(*tokens)
  assert law_test(drafter, verify.Rejection(), targets.Lossless(),
                  Warp()) > LEVEL


@pytest.mark.parametrize('link', sorted(set(
    re.findall(r'\]\((?!https?:)([^)#]+)\)', README))))
def test_links_lead_somewhere(link):
  assert (ROOT / link).exists(), f'README.md links to {link}'
