"""Files that are complete or not there, whatever happens while writing."""
from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import shutil
from typing import Any, Iterator, Mapping


@contextlib.contextmanager
def appearing(path: pathlib.Path, ending: str = '.partial'
              ) -> Iterator[pathlib.Path]:
  """A place for a file, or for a directory, which then becomes that at `path`.

  It is beside `path`, and no other thread, process or host has it. What was at
  `path` stays until then, for those who have mapped it into memory for longer.
  If writing fails, nothing is left of it.

  Args:
    path: Is replaced; a directory only if it is empty.
    ending: Of the name of the place, for those who go by it.

  Raises:
    OSError: It can't be put there.
  """
  # Two containers that share a folder may have one number of a process.
  own = f'{os.getpid()}.{secrets.token_hex(4)}'
  partial = path.with_name(f'{path.name}.{own}{ending}')
  try:
    yield partial
    with _told(path):
      if partial.is_file():
        with partial.open('rb') as file:
          os.fsync(file.fileno())
      os.replace(partial, path)
  finally:
    if partial.is_dir():
      shutil.rmtree(partial, ignore_errors=True)
    else:
      with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def together(directory: pathlib.Path, last: str) -> Iterator[pathlib.Path]:
  """A folder whose files then take the places of those in a directory.

  The one named `last`, without which the others are not read, is taken away
  first and comes last: nobody ever finds files of before beside new ones.
  Where writing fails, or is killed, the directory is as it was before.

  Args:
    directory: Is made if absent.
    last: Name of a file.
  """
  directory.mkdir(parents=True, exist_ok=True)
  folder = directory / f'.{os.getpid()}.{secrets.token_hex(4)}.partial'
  folder.mkdir()
  try:
    yield folder
    (directory / last).unlink(missing_ok=True)
    for path in sorted(folder.iterdir(), key=lambda x: x.name == last):
      path.replace(directory / path.name)
  except OSError as error:            # tells of the place, not of the folder
    if str(folder) not in str(error.strerror):
      raise
    raise OSError(error.errno, error.strerror.replace(
        str(folder), str(directory))) from None
  finally:
    shutil.rmtree(folder, ignore_errors=True)


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
  """Replaces a file in one step; text is UTF-8.

  Raises:
    OSError: It can't be written; what was there before still is.
  """
  with appearing(path) as partial, _told(path):
    partial.write_bytes(
        content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def _told(path):
  """Errors say which file it was to be, and that the one before is whole."""
  try:
    yield
  except OSError as error:
    raise OSError(error.errno, f"{path} can't be written, what was there "
                  f'before is whole: {error.strerror}') from None


def claim(path: pathlib.Path, call: Mapping[str, Any], begun: bool = False
          ) -> None:
  """Notes which call makes what is beside a file, so that only it goes on.

  Args:
    path: Of the note.
    call: What decides it, as JSON has it.
    begun: Whether something is there already, whoever made it.

  Raises:
    ValueError: That was another call, or it is not known which.
  """
  before = {}
  if path.is_file():
    with contextlib.suppress(ValueError, TypeError):     # no JSON, no object
      before = dict(json.loads(path.read_text(encoding='utf-8')))
  elif not begun:
    before = call
  if other := sorted(x for x in {*before, *call}
                     if before.get(x) != call.get(x)):
    raise ValueError(f'{path} is of another call, with another '
                     f'{", ".join(other)}; give another output.')
  write_atomically(path, json.dumps(call) + '\n')
