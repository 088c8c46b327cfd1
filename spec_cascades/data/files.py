"""Files that are complete or not there, whatever happens while writing."""
from __future__ import annotations

import contextlib
import os
import pathlib


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
  """Replaces a file in one step; text is UTF-8.

  Raises:
    OSError: It can't be written; what was there before still is.
  """
  if isinstance(content, str):
    content = content.encode()
  partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
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
