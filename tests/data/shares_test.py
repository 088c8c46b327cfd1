"""Shares of a file's lines: disjoint, complete, no other byte is decoded."""
import pathlib
import tempfile

import hypothesis
from hypothesis import strategies as st
import pytest

from spec_cascades.data import shares

WORDS = st.text(st.characters(blacklist_characters='\r\n',
                              blacklist_categories=('Cs',)), max_size=12)


@hypothesis.given(st.lists(WORDS, max_size=20), st.integers(1, 30),
                  st.sampled_from(['\n', '\r\n']), st.booleans())
@hypothesis.settings(deadline=None, max_examples=200)
def test_parts_are_together_the_lines(words, count, newline, closed):
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'words'
    whole = newline.join(words) + newline * closed
    path.write_bytes(whole.encode())
    parts = [shares.lines(path, (i, count)) for i in range(count)]
    found = [x for part in parts for x in part]
    assert found == shares.lines(path)
    # A file has no line behind its last newline.
    want = whole.split(newline)
    assert [x for _, x in found] == want[:len(want) - (not want[-1])]
    for number, (start, text) in enumerate(found, 1):
      assert path.read_bytes()[start:].decode().startswith(text)
      assert str(shares.Place(path, start)) == f'{path}, line {number}'


def test_a_part_decodes_no_line_of_another(tmp_path):
  path = tmp_path / 'words'
  path.write_bytes(b'one\ntwo\n\xff\xff\nfour\nfive\nsix\n')
  first, *_, last = [(i, 6) for i in range(6)]
  assert [x for _, x in shares.lines(path, first)] == ['one']
  assert [x for _, x in shares.lines(path, last)] == ['six']
  with pytest.raises(UnicodeDecodeError):
    shares.lines(path)


def test_long_lines_are_read_once(tmp_path):
  path = tmp_path / 'words'
  path.write_text('a' * 100 + '\nb\n')
  parts = [[x for _, x in shares.lines(path, (i, 4))] for i in range(4)]
  assert parts == [['a' * 100], [], [], ['b']]
