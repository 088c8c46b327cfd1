"""Arrays that are stored as one compressed chunk, a few rows at a time.

Orbax stores an array so unless told otherwise. tensorstore decodes a chunk as a
whole, which takes the array twice more beside the parameter that it becomes;
here its bytes come as a stream, of which a few MB are held.
"""
from __future__ import annotations

import collections
import dataclasses
import math
import pathlib
import threading
from typing import Any, Collection, Iterator, Mapping
from urllib import parse

import numpy as np
import tensorstore as ts
import zstandard

BLOCK = 2**20                          # bytes that are decoded in one go
FRAME_HEADER, UNKNOWN = 18, -1         # of zstd: bytes, and a size not in them
KEPT = 8                               # blocks, for threads that come late
SMALLEST = 2**22                       # bytes of an array worth a stream
SHARD = 'sharding_indexed'
CODECS = {None: False, 'zstd': True}   # and whether they compress


@dataclasses.dataclass(frozen=True)
class Span:
  """Where a store keeps a value: bytes of a file."""
  path: pathlib.Path
  start: int
  size: int


def compressed(header: Mapping[str, Any]) -> bool | None:
  """Whether the only chunk of an array is compressed; None if not known how."""
  if header.get('zarr_format') == 2:
    codec = header['compressor'] and header['compressor']['id']
    plain = header['order'] == 'C' and not header.get('filters')
    return CODECS.get(codec) if plain else None
  codecs = header['codecs']
  if codecs[0]['name'] == SHARD:
    # An index follows the chunk, which ends where its own frame says.
    shard = codecs[0]['configuration']
    whole = (len(codecs) == 1 and shard['chunk_shape'] == header['shape']
             and shard.get('index_location', 'end') == 'end')
    found = compressed({**shard, 'zarr_format': 3}) if whole else None
    return found or None
  first, *rest = codecs
  codec = rest[0]['name'] if rest else None
  plain = (first['name'] == 'bytes' and len(rest) < 2
           and first['configuration'].get('endian') == 'little')
  return CODECS.get(codec) if plain else None


def in_ocdbt(directory: pathlib.Path) -> bool:
  """Whether a directory's keys are in a database, not files of their own."""
  return (directory / 'manifest.ocdbt').is_file()


def spans(directory: pathlib.Path, keys: Collection[str]) -> dict[str, Span]:
  """Where a store in a directory keeps the values of these keys.

  Values of less than about a KB, as many zeros take, are inside a database's
  nodes and are left out.

  Raises:
    ValueError: A value is not in the directory.
  """
  if not keys:
    return {}
  if not in_ocdbt(directory):
    return {key: Span(path := directory / key, 0, path.stat().st_size)
            for key in keys}
  files = ts.KvStore.open(
      dict(driver='file', path=f'{directory.absolute()}/')).result()
  root = ts.ocdbt.dump(files).result()['versions'][-1]['root']['location']
  out = {}
  for key, value in _values(files, root):
    if key not in keys:
      continue
    _, base, name, start, size = map(parse.unquote, value.split(':'))
    path = (directory / (base + name)).resolve()
    if not path.is_relative_to(directory.resolve()):
      raise ValueError(f'{path} is somewhere else')
    out[key] = Span(path, int(start), int(size))
  return out


def _values(files: ts.KvStore, node: str, prefix: bytes = b''
            ) -> Iterator[tuple[str, str]]:
  """Keys of a database below a node and where their large values are.

  Keys in a node lack what all keys below it begin with.
  """
  for entry in ts.ocdbt.dump(files, node).result()['entries']:
    if 'location' in entry:
      yield from _values(files, entry['location'],
                         prefix + entry['subtree_common_prefix'])
    elif 'indirect_value' in entry:
      yield (prefix + entry['key']).decode(), entry['indirect_value']


class Stream:
  """Reads rows of a chunk, best from its first to its last.

  What lies before the last `KEPT` blocks is decoded again from the start.
  """

  def __init__(self, span: Span, packed: bool, shape: tuple[int, ...],
               dtype: np.dtype):
    self._span, self._packed = span, packed
    self._shape, self._dtype = shape, dtype
    self._row = math.prod(shape[1:]) * dtype.itemsize
    self._lock = threading.Lock()
    self._restart()

  def __call__(self, part: slice) -> np.ndarray:
    """Rows `part` of the array; safe to call from several threads."""
    out = np.empty((part.stop - part.start, *self._shape[1:]), self._dtype)
    # ml_dtypes' arrays have no buffers.
    taken = out.reshape(-1).view(np.uint8)
    at, end = part.start * self._row, part.stop * self._row
    start = at
    while at < end:
      number, skipped = divmod(at, BLOCK)
      block = self._block(number)[skipped:skipped + end - at]
      taken[at - start:at - start + len(block)] = np.frombuffer(block, np.uint8)
      at += len(block)
    return out

  def _restart(self) -> None:
    self._next, self._kept = 0, collections.OrderedDict()
    self._left = self._row * self._shape[0]
    raw, size = _Bytes(self._span), self._span.size
    if self._packed:
      size = zstandard.frame_content_size(_Bytes(self._span).read(FRAME_HEADER))
      raw = zstandard.ZstdDecompressor().stream_reader(raw, read_size=BLOCK)
    if size not in (self._left, UNKNOWN):
      raise ValueError(f'a chunk of {size} bytes, not {self._left}')
    self._bytes = raw

  def _block(self, number: int) -> memoryview:
    with self._lock:
      if number < self._next and number not in self._kept:
        self._restart()
      while number >= self._next:
        wanted = min(BLOCK, self._left)
        block = self._bytes.read(wanted)
        while block and len(block) < wanted:
          block += (more := self._bytes.read(wanted - len(block)))
          if not more:
            break
        self._left -= wanted
        if len(block) < wanted:
          raise ValueError('a chunk that is cut off')
        self._kept[self._next] = memoryview(block)
        self._next += 1
        if len(self._kept) > KEPT:
          self._kept.popitem(last=False)
      return self._kept[number]


class _Bytes:
  """What a span holds; no file stays open between two reads."""

  def __init__(self, span: Span):
    self._path, self._at, self._end = (
        span.path, span.start, span.start + span.size)

  def read(self, size: int) -> bytes:
    """The next bytes, `size` or fewer; none at the end."""
    with self._path.open('rb', buffering=0) as file:
      file.seek(self._at)
      found = file.read(min(size, self._end - self._at))
    self._at += len(found)
    return found
