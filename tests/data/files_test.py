"""Files are whole, whatever happens while they are written."""
import errno
import os
import threading

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


def test_threads_that_write_one_file_do_not_meet(tmp_path):
  """Each has its own place until the end; the file is one's as a whole."""
  path, both, failed = tmp_path / 'x.jsonl', threading.Barrier(2), []

  def write(content):
    try:
      with files.appearing(path) as partial:
        both.wait(60)
        partial.write_text(content)
        both.wait(60)
        assert partial.read_text() == content
    except Exception as error:  # pylint: disable=broad-exception-caught
      failed.append(error)

  threads = [threading.Thread(target=write, args=(x * 99,)) for x in 'ab']
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not failed and os.listdir(tmp_path) == ['x.jsonl']
  assert path.read_text() in ('a' * 99, 'b' * 99)


def test_a_directory_appears_whole_or_not_at_all(tmp_path):
  path = tmp_path / 'x'
  with pytest.raises(KeyError):
    with files.appearing(path) as partial:
      partial.mkdir()
      (partial / 'a').write_text('half')
      assert not path.exists()
      raise KeyError
  assert os.listdir(tmp_path) == []
  path.mkdir()                                 # may be there, and empty
  with files.appearing(path) as partial:
    partial.mkdir()
    (partial / 'a').write_text('whole')
  with pytest.raises(OSError, match="x can't be written.* is whole: .* empty"):
    with files.appearing(path) as partial:
      partial.mkdir()
  assert os.listdir(tmp_path) == ['x'] and os.listdir(path) == ['a']
