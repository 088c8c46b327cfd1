"""Files that are complete or not there, whatever happens while writing."""
from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
from typing import Any, Mapping


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
  """Replaces a file in one step; text is UTF-8.

  Raises:
    OSError: It can't be written; what was there before still is.
  """
  if isinstance(content, str):
    content = content.encode()
  # Two containers that share a folder may have one number of a process.
  own = f'{os.getpid()}.{secrets.token_hex(4)}'
  partial = path.with_name(f'{path.name}.{own}.partial')
  try:
    with partial.open('wb') as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, path)
  except OSError as error:
    with contextlib.suppress(OSError):
      partial.unlink()
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
