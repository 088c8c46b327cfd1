"""Texts that sublayers are chosen on; the search itself is skipping_test.py's.
"""
import pathlib
import sys

import pytest

from spec_cascades.data import corpus
from spec_cascades.evaluation import skipping

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'scripts'))
import search_layers  # noqa: E402

SHORT, LONG = 'Click OK.', 'Click OK. ' * 40


@pytest.fixture
def rows(monkeypatch):
  """What a search is given."""
  found = []

  class Search:
    def __init__(self, pair, rows, **unused):
      del pair, unused
      found.extend(rows)

    def __call__(self, *unused):
      return dict(skipped=(), tokens_per_call=1., speedup=1.)

  monkeypatch.setattr(skipping, 'check_installed', lambda: None)
  monkeypatch.setattr(skipping, 'Search', Search)
  monkeypatch.setattr(corpus, 'read', lambda name, split, cache_dir: [
      {'en': text} for text in (SHORT, LONG, SHORT, SHORT)])
  return found


def test_those_of_a_corpus_that_are_too_long_are_left_out(rows, tmp_path):
  search_layers.main(['--corpora', 'debian_ende', '--output', str(tmp_path),
                      '--texts', '2'])
  assert len(rows) == 2 and rows[0] == rows[1]


def test_those_of_a_file_are_refused(rows, tmp_path):
  file = tmp_path / 'texts.txt'
  file.write_text(f'{SHORT}\n{LONG}\n', encoding='utf-8')
  with pytest.raises(ValueError, match='Text 2 has .* takes at most 64'):
    search_layers.main(['--file', str(file), '--output', str(tmp_path)])
  assert not rows
