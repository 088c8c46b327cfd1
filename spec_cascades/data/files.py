"""Files that are complete or not there, whatever happens while writing."""
from __future__ import annotations

import os
import pathlib


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
  """Replaces a file in one step; text is UTF-8."""
  if isinstance(content, str):
    content = content.encode()
  partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
  with partial.open('wb') as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
  os.replace(partial, path)
