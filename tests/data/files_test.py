"""Files are whole, whatever happens while they are written."""
import errno
import os

import pytest

from spec_cascades.data import files


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
  path = tmp_path / 'x.jsonl'
  files.write_atomically(path, 'old')

  def full(number):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', full)
  with pytest.raises(OSError, match="x.jsonl can't be written.* No space left"
                     ) as error:
    files.write_atomically(path, 'new')
  assert error.value.errno == errno.ENOSPC and '\n' not in str(error.value)
  assert path.read_text() == 'old' and os.listdir(tmp_path) == ['x.jsonl']


def test_two_processes_of_one_number_may_write_one_file(tmp_path, monkeypatch):
  """As in two containers that share a folder."""
  path, sync = tmp_path / 'x.jsonl', os.fsync

  def meanwhile(number):
    monkeypatch.setattr(os, 'fsync', sync)
    files.write_atomically(path, 'theirs')
    assert path.read_text() == 'theirs'
    sync(number)

  monkeypatch.setattr(os, 'fsync', meanwhile)
  files.write_atomically(path, 'ours')
  assert path.read_text() == 'ours' and os.listdir(tmp_path) == ['x.jsonl']
