"""The journal of a sweep: appended as it runs, read when it resumes."""
from __future__ import annotations

import fcntl
import json
import os
import pathlib
from typing import Any

from spec_cascades.evaluation import results


def check(path: pathlib.Path, configuration: dict[str, Any]) -> None:
  """Raises ValueError if a journal there belongs to another sweep."""
  if path.exists():
    _parse(path, path.read_bytes(), configuration)


def check_rows(path: pathlib.Path, configuration: dict[str, Any]) -> None:
  """Raises ValueError if a results file there belongs to another sweep."""
  if not path.exists():
    return
  sweep = results.content_key(configuration)
  if any(row.sweep != sweep for row in results.read_rows(path)):
    raise ValueError(f'{path} belongs to another configuration; choose another '
                     'OUTPUT_DIR or move the file away.')


class Journal:
  """Records by (point key, example), kept in a file that only grows.

  A line that a kill cut short is dropped when the file is opened again. One
  process at a time: the file is locked while it is open.
  """

  def __init__(self, path: pathlib.Path, configuration: dict[str, Any]):
    """Opens or creates a journal; raises ValueError if it is not ours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    self._file = open(path, 'a+b', buffering=0)
    try:
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      raise ValueError(f'Another process is writing {path}; wait for it or '
                       'choose another OUTPUT_DIR.') from None
    self._file.seek(0)
    content = self._file.read()
    lines, kept = _parse(path, content, configuration)
    if kept < len(content):
      self._file.truncate(kept)
    if not kept:
      self._append(header(configuration))
    self.records = {(r.key, r.example): r for r in lines
                    if isinstance(r, results.Record)}
    self.notes = [r for r in lines if isinstance(r, dict)]

  def add(self, record: results.Record) -> None:
    """Appends a record; it is in the file when this returns."""
    self.records[record.key, record.example] = record
    self._write(results.to_json(record))

  def note(self, kind: str, **content: Any) -> None:
    """Appends something else that is worth keeping, such as a compilation."""
    self.notes.append(dict(kind=kind, **content))
    self._append(self.notes[-1])

  def close(self) -> None:
    """Gives up the lock."""
    os.fsync(self._file.fileno())
    self._file.close()

  def _append(self, content: dict[str, Any]) -> None:
    self._write(json.dumps(content, ensure_ascii=False))

  def _write(self, line: str) -> None:
    self._file.write(line.encode() + b'\n')


def header(configuration: dict[str, Any]) -> dict[str, Any]:
  """The first line of a journal."""
  return dict(kind='sweep', schema=results.SCHEMA,
              sweep=results.content_key(configuration),
              configuration=configuration)


def _parse(path, content: bytes, configuration):
  """Lines after the header, and the length of the part that is complete."""
  kept = content.rfind(b'\n') + 1
  first = json.dumps(header(configuration), ensure_ascii=False).encode()
  if not kept:
    if not first.startswith(content):
      raise ValueError(_foreign(path, 'it is not a journal of a sweep'))
    return [], 0
  top, *rest = content[:kept - 1].decode('utf-8', 'replace').split('\n')
  _check_header(path, top, configuration)
  lines = []
  for i, line in enumerate(rest, 2):
    try:
      entry = json.loads(line)
      lines.append(results.Record(**entry) if entry['kind'] == 'example'
                   else entry)
    except (ValueError, TypeError, KeyError):
      raise ValueError(f'{path}, line {i} is damaged; restore the file or '
                       'choose another OUTPUT_DIR.') from None
  return lines, kept


def _check_header(path, line: str, configuration) -> None:
  try:
    found = json.loads(line)
    schema, theirs = found['schema'], found['configuration']
  except (ValueError, TypeError, KeyError):
    raise ValueError(_foreign(path, 'it is not a journal of a sweep')) from None
  if schema != results.SCHEMA:
    raise ValueError(_foreign(path, f'its schema is {schema}, not '
                                    f'{results.SCHEMA}'))
  if found['sweep'] != results.content_key(configuration):
    names = sorted(set(theirs) | set(configuration))
    changed = [n for n in names if theirs.get(n) != configuration.get(n)]
    raise ValueError(_foreign(path, 'another configuration made it: '
                              + ', '.join(_change(n, theirs.get(n),
                                                  configuration.get(n))
                                          for n in changed)))


def _change(name, theirs, ours) -> str:
  short = lambda x: isinstance(x, (int, float)) or (
      isinstance(x, str) and len(x) < 40)
  if short(theirs) and short(ours):
    return f'{name} is {theirs} there and {ours} here'
  return f'{name} differs'


def _foreign(path, why: str) -> str:
  return (f'{path} does not belong to this sweep: {why}. Choose another '
          'OUTPUT_DIR or move the file away.')
