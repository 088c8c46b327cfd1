"""The journal of a sweep: appended as it runs, read when it resumes."""
from __future__ import annotations

import collections
import contextlib
import datetime
import errno
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
  """Records by (point key, example, trial), in a file that only grows.

  `counts` says how many records there are of each point.

  Several processes may append to one journal: the file is locked while one of
  them writes a line, and a line that a kill cut short is dropped.
  """

  def __init__(self, path: pathlib.Path, configuration: dict[str, Any]):
    """Opens or creates a journal; raises ValueError if it is not ours."""
    self.records: dict[tuple[str, int, int], results.Record] = {}
    self.counts: collections.Counter[str] = collections.Counter()
    self.notes: list[dict[str, Any]] = []
    path.parent.mkdir(parents=True, exist_ok=True)
    self._path, self._configuration = path, configuration
    self._file, self._read = open(path, 'a+b', buffering=0), 0
    with self.locked():
      if not self._read:
        self._append(header(configuration))

  def add(self, *records: results.Record) -> None:
    """Appends records; they are in the file when this returns.

    Raises:
      OSError: They are not, or not all: there is no room, say.
    """
    with self.locked():
      lines = b''.join(results.to_json(r).encode() + b'\n' for r in records)
      self._write(lines)
      self._read += len(lines)         # they need not be read back
      for record in records:
        self._keep(record)

  def note(self, kind: str, **content: Any) -> None:
    """Appends something else that is worth keeping, and the time."""
    now = datetime.datetime.now(datetime.timezone.utc)
    with self.locked():
      self._append(dict(kind=kind, **content,
                        at=now.isoformat(timespec='seconds')))
      self._refresh()

  @contextlib.contextmanager
  def locked(self):
    """Nobody else writes meanwhile; begins with what others have written."""
    fcntl.flock(self._file, fcntl.LOCK_EX)
    try:
      self._refresh()
      yield
    finally:
      fcntl.flock(self._file, fcntl.LOCK_UN)

  def close(self) -> None:
    """Flushes to the disk."""
    os.fsync(self._file.fileno())
    self._file.close()

  def _refresh(self) -> None:
    """Reads what is new; no other process is in the middle of a line."""
    self._file.seek(self._read)
    content = self._file.read()
    if not content:
      return
    lines, kept = _parse(self._path, content, self._configuration, self._read)
    if kept < len(content):
      self._file.truncate(self._read + kept)
    self._read += kept
    for line in lines:
      if isinstance(line, results.Record):
        self._keep(line)
      else:
        self.notes.append(line)

  def _keep(self, record: results.Record) -> None:
    decode = record.key, record.example, record.trial
    self.counts[record.key] += decode not in self.records
    self.records[decode] = record

  def _append(self, content: dict[str, Any]) -> None:
    self._write(json.dumps(content, ensure_ascii=False).encode() + b'\n')

  def _write(self, lines: bytes) -> None:
    """Appends lines; OSError if not all of them are in the file."""
    try:
      if self._file.write(lines) < len(lines):  # nearly full: no error
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
      raise OSError(error.errno, f"{self._path} can't be written, what was "
                    f'there before is whole: {error.strerror}') from None


def read(path: pathlib.Path) -> tuple[str, dict[Any, results.Record]]:
  """The key of a journal's sweep and all its records; changes nothing.

  ValueError if it is not a journal of this schema, or damaged.
  """
  content = path.read_bytes()
  try:
    configuration = json.loads(content.split(b'\n', 1)[0])['configuration']
  except (ValueError, TypeError, KeyError):
    raise ValueError(_foreign(path, 'it is not a journal of a sweep')) from None
  lines, _ = _parse(path, content, configuration)
  return results.content_key(configuration), {
      (x.key, x.example, x.trial): x for x in lines
      if isinstance(x, results.Record)}


def header(configuration: dict[str, Any]) -> dict[str, Any]:
  """The first line of a journal."""
  return dict(kind='sweep', schema=results.SCHEMA,
              sweep=results.content_key(configuration),
              configuration=configuration)


def _parse(path, content: bytes, configuration, start: int = 0):
  """Lines from `start` on, and the length of the part that is complete.

  The header is the file's first line, checked and not among them.
  """
  kept = content.rfind(b'\n') + 1
  if not kept:
    first = json.dumps(header(configuration), ensure_ascii=False).encode()
    if not start and not first.startswith(content):
      raise ValueError(_foreign(path, 'it is not a journal of a sweep'))
    return [], 0
  rest = content[:kept - 1].decode('utf-8', 'replace').split('\n')
  if not start:
    _check_header(path, rest.pop(0), configuration)
  lines = []
  for i, line in enumerate(rest, 1 + (not start)):
    try:
      entry = json.loads(line)
      lines.append(results.Record(**entry) if entry['kind'] == 'example'
                   else entry)
    except (ValueError, TypeError, KeyError):
      i += path.read_bytes()[:start].count(b'\n')
      raise ValueError(f'{path}, line {i} is damaged; restore the file or '
                       'choose another OUTPUT_DIR.') from None
  return lines, kept


def _check_header(path, line: str, configuration) -> None:
  try:
    found = json.loads(line)
    schema, theirs, sweep = (found[name] for name in (
        'schema', 'configuration', 'sweep'))
  except (ValueError, TypeError, KeyError):
    raise ValueError(_foreign(path, 'it is not a journal of a sweep')) from None
  if schema != results.SCHEMA:
    raise ValueError(_foreign(path, f'its schema is {schema}, not '
                                    f'{results.SCHEMA}'))
  if sweep != results.content_key(configuration):
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
  of_dicts = lambda x: isinstance(x, list) and all(
      isinstance(y, dict) for y in x)
  if of_dicts(theirs) and of_dicts(ours) and len(theirs) == len(ours):
    other = [(key, a.get(key), b[key]) for a, b in zip(theirs, ours)
             for key in b if a.get(key) != b[key]]
    if other:
      key, a, b = other[0]
      return f'{key} in {name} is {a} there and {b} here'
  return f'{name} differs'


def _foreign(path, why: str) -> str:
  return (f'{path} does not belong to this sweep: {why}. Choose another '
          'OUTPUT_DIR or move the file away.')
