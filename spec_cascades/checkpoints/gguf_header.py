"""The header of a GGUF file: metadata, and where each tensor lies.

Every count and length is compared with the bytes that are left before anything
is read or made, so a damaged header ends in one line at once.

Reference: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""
from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any, Mapping

import jax.numpy as jnp
import numpy as np

from spec_cascades.checkpoints import buffers
from spec_cascades.checkpoints import loading

MAGIC = b'GGUF'
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
NUMBERS = {0: '<u1', 1: '<i1', 2: '<u2', 3: '<i2', 4: '<u4', 5: '<i4',
           6: '<f4', 7: '?', 10: '<u8', 11: '<i8', 12: '<f8'}
MAX_AXES = 4
PLAIN = ('F32', 'F16', 'BF16')


@dataclasses.dataclass(frozen=True)
class Kind:
  """How a tensor is stored: blocks of `size` numbers in `nbytes` bytes."""
  name: str
  size: int
  nbytes: int


KINDS = {0: Kind('F32', 1, 4), 1: Kind('F16', 1, 2), 2: Kind('Q4_0', 32, 18),
         3: Kind('Q4_1', 32, 20), 6: Kind('Q5_0', 32, 22),
         7: Kind('Q5_1', 32, 24), 8: Kind('Q8_0', 32, 34),
         12: Kind('Q4_K', 256, 144), 13: Kind('Q5_K', 256, 176),
         14: Kind('Q6_K', 256, 210), 30: Kind('BF16', 1, 2)}


@dataclasses.dataclass(frozen=True)
class Tensor:
  """One tensor in the file, its last axis contiguous."""
  name: str
  shape: tuple[int, ...]
  number: int               # of its kind, see `KINDS`
  data: np.ndarray          # bytes [rows, bytes of a row], memory-mapped

  @property
  def kind(self) -> Kind:
    return KINDS[self.number]


@dataclasses.dataclass(frozen=True)
class Header:
  """What a file says of itself; arrays of numbers are numpy arrays."""
  path: pathlib.Path
  metadata: Mapping[str, Any]
  tensors: Mapping[str, Tensor]


def read(path: pathlib.Path) -> Header:
  """Reads the header and maps the tensors.

  Raises:
    ValueError: The file is damaged or cut off, of another version, one part of
      several, or stores a tensor in a way that is not supported.
  """
  with loading.readable(path, UnicodeDecodeError, OverflowError):
    with loading.readable(path, ValueError, OSError):
      reader = _Reader(path, np.asarray(np.memmap(path, np.uint8, 'r')))
    reader.take(len(MAGIC))
    _check_version(path, reader.number(4))
    num_tensors, num_keys = reader.number(10), reader.number(10)
    metadata = {}
    for _ in range(reader.fits(num_keys, 12)):
      name = reader.string()
      reader.expect(name not in metadata, f'says {name[:80]} twice')
      metadata[name] = reader.value(reader.number(4))
    found = {}
    for _ in range(reader.fits(num_tensors, 24)):
      name, *place = reader.place()
      reader.expect(name not in found, f'has {name[:80]} twice')
      found[name] = place
    align = metadata.get('general.alignment', 32)
    reader.expect(isinstance(align, int) and align > 0, 'has no alignment')
    start = -(-reader.at // align) * align
    tensors = {name: reader.tensor(start, name, *place)
               for name, place in found.items()}
  if str(metadata.get('split.count', 1)) not in ('0', '1'):
    raise ValueError(f'{path} is one part of several; join them with '
                     'llama-gguf-split --merge.')
  return Header(path, metadata, tensors)


def rows(tensor: Tensor, order: np.ndarray | None = None) -> buffers.Rows:
  """A tensor as float32, dequantised when it is indexed.

  Args:
    tensor: Of at least one axis.
    order: Row i of the result is row order[i] of the file.
  """
  dequantise, shape = _plain, tensor.shape or (1,)
  if tensor.kind.name not in PLAIN:
    import gguf  # pylint: disable=g-import-not-at-top
    kind = gguf.GGMLQuantizationType(tensor.number)
    dequantise = lambda raw, _: gguf.quants.dequantize(raw, kind)

  def make(part: slice) -> np.ndarray:
    if len(shape) == 1:                      # one row of the file
      return _floats(dequantise, tensor.data, tensor.kind.name)[0][part]
    raw = tensor.data[part if order is None else order[part]]
    out = _floats(dequantise, raw, tensor.kind.name)
    buffers.forget(tensor.data)
    return out
  return buffers.Rows(shape, np.dtype(np.float32), make)


def _floats(dequantise, raw, kind) -> np.ndarray:
  with np.errstate(all='ignore'):      # a damaged scale may be anything
    return dequantise(raw, kind).astype(np.float32, copy=False)


def _plain(rows: np.ndarray, kind: str) -> np.ndarray:
  """Numbers that are stored as such."""
  dtype = dict(F32=np.float32, F16=np.float16, BF16=jnp.bfloat16)[kind]
  return rows.view(dtype)


def _check_version(path, version) -> None:
  if version not in VERSIONS:
    hint = ' (big-endian?)' if version >= 2**16 else ''
    raise ValueError(f'{path} is GGUF version {version}{hint}; allowed: '
                     f'{", ".join(map(str, VERSIONS))}. Convert it again.')


class _Reader:
  """Walks through a header and never beyond its file."""

  def __init__(self, path, data):
    self.path, self.data, self.at = path, data, 0
    self.bytes = memoryview(data)

  def expect(self, fine, what) -> None:
    """Raises Broken unless `fine`; `what` completes "the file ..."."""
    if not fine:
      raise loading.Broken(f'{self.path} is damaged or cut off (its header '
                           f'{what}); get the file again.')

  def fits(self, count, nbytes) -> int:
    """A count of things, if so many may follow that take `nbytes` each."""
    self.expect(count * nbytes <= len(self.data) - self.at,
                f'announces {count} items in byte {self.at}')
    return count

  def take(self, count) -> memoryview:
    """The next bytes."""
    self.fits(count, 1)
    self.at += count
    return self.bytes[self.at - count:self.at]

  def number(self, kind):
    """One number, as a Python one."""
    self.expect(kind in NUMBERS, f'has a value of type {kind}')
    dtype = np.dtype(NUMBERS[kind])
    return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()

  def string(self) -> str:
    count = int.from_bytes(self.take(8), 'little')
    return str(self.take(count), 'utf-8')

  def value(self, kind):
    """A value of the metadata: a number, a string, or an array of either."""
    if kind == STRING:
      return self.string()
    if kind != ARRAY:
      return self.number(kind)
    kind, count = self.number(4), self.number(10)
    if kind == STRING:
      return [self.string() for _ in range(self.fits(count, 8))]
    self.expect(kind in NUMBERS, f'has an array of type {kind}')
    dtype = np.dtype(NUMBERS[kind])
    return np.frombuffer(
        self.take(self.fits(count, dtype.itemsize) * dtype.itemsize), dtype)

  def place(self):
    """Name, shape, kind and offset of a tensor."""
    name, axes = self.string(), self.number(4)
    self.expect(axes <= MAX_AXES, f'gives {name[:80]} {axes} axes')
    shape = tuple(self.number(10) for _ in range(axes))[::-1]
    return name, shape, self.number(4), self.number(10)

  def tensor(self, start, name, shape, number, offset) -> Tensor:
    """Maps one tensor, whose bytes must all be there."""
    if number not in KINDS:
      raise ValueError(
          f'{self.path}: {name[:80]} is quantised in way {number}, which is '
          f'not supported; allowed: {", ".join(k.name for k in KINDS.values())}'
          '. Get another quantisation of the model.')
    kind, last = KINDS[number], (shape or (1,))[-1]
    rows, row = math.prod(shape[:-1]), last // kind.size * kind.nbytes
    begin, size = start + offset, rows * row
    self.expect(size > 0 and last % kind.size == 0,
                f'gives {name[:80]} the shape {shape}')
    self.expect(begin + size <= len(self.data),
                f'puts {name[:80]} beyond the end')
    return Tensor(name, shape, number,
                  self.data[begin:begin + size].reshape(rows, row))
