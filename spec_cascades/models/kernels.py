"""What decoding on a CPU spends its time on, in C: products and attention.

XLA's CPU backend copies the weights of a product with two or more rows in every
call, which costs more than reading them: a block of tokens then takes up to
twice a single one, where reading weights is all that a step does. `product`
reads them once, on all threads of XLA's pool, for one row or many, and a row's
results have the same bits in any block. `attention` spares a layer some ten
small programs, and the slots that nothing sees (figures: docs/benchmarks.md).

Both are for float32; a matrix whose numbers are bfloat16's may be held as such,
in half the memory, and is multiplied as float32, to the same bits. They are
compiled when they are first needed, in seconds, by the C compiler that the
machine has, and kept in ~/.cache/spec_cascades/kernels. Without a compiler XLA
does what they do, which is said once; SPEC_CASCADES_KERNELS=xla chooses that.
"""
from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import warnings

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
import numpy as np

SOURCE = pathlib.Path(__file__).with_name('kernels.c')
KEPT = '~/.cache/spec_cascades/kernels'
CHOICE = 'SPEC_CASCADES_KERNELS'
CHOICES = ('c', 'xla')
COMPILERS = ('cc', 'gcc', 'clang')
FLAGS = ('-O3', '-march=native', '-ffp-contract=fast', '-shared', '-fPIC')
BITS = 2**20                         # that are looked at at once
SYMBOLS = ('PanelProduct', 'TurnedProduct', 'Attention')


@dataclasses.dataclass(frozen=True)
class Library:
  """Kernels that XLA knows.

  Attributes:
    path: The shared library.
    width: Columns of a panel.
  """
  path: pathlib.Path
  width: int

  @classmethod
  def load(cls, path: pathlib.Path) -> Library:
    """Loads a shared library, and tells XLA of it; raises OSError."""
    handle = ctypes.CDLL(str(path))
    found = cls(path, handle.panel_width())
    for symbol in SYMBOLS:
      jax.ffi.register_ffi_target(
          found.target(symbol), jax.ffi.pycapsule(getattr(handle, symbol)),
          platform='cpu')
    return found

  def target(self, symbol: str) -> str:
    """Its name in programs: of other sources or processors it is another."""
    return f'spec_cascades_{symbol}_{self.path.stem}'


@functools.cache
def library() -> Library | None:
  """The kernels of this machine; None where XLA does without.

  Raises:
    ValueError: The environment asks for neither of the two.
  """
  choice = os.environ.get(CHOICE, 'c')
  if choice not in CHOICES:
    raise ValueError(f'Got {CHOICE}={choice!r}; allowed: {", ".join(CHOICES)}.')
  if choice == 'xla':
    return None
  try:
    path = compiled()
    try:
      return Library.load(path)
    except OSError:                   # a damaged file, or of another system
      path.unlink()
      return Library.load(compiled())
  except (OSError, subprocess.SubprocessError) as e:
    # Explicitly, so that no line of ours is quoted behind it.
    warnings.warn_explicit(
        f'{str(e).rstrip(".")}. Decoding on this CPU goes without kernels in C '
        'now, and takes longer. Install a C compiler (gcc or clang), or set '
        f'{CHOICE}=xla to choose that.', UserWarning, 'spec_cascades', 1)
    return None


def name() -> str:
  """Whose products and attention this CPU has: 'c' or 'xla'."""
  return 'c' if library() else 'xla'


def panels(matrix: Float[Array, 'in out']) -> Float[Array, 'panels in width']:
  """A matrix as the kernel reads it fastest, the last panel filled with 0.

  Of bfloat16, columns i and width / 2 + i lie side by side: a vector of pairs.
  """
  width = library().width
  filled = jnp.pad(matrix, ((0, 0), (0, -matrix.shape[1] % width)))
  whole = jnp.swapaxes(filled.reshape(len(matrix), -1, width), 0, 1)
  return _rearranged(whole, 2)


def matrix(of: Float[Array, 'panels in width'],
           features: int) -> Float[Array, 'in features']:
  """What `panels` were made of."""
  whole = jnp.swapaxes(_rearranged(of, library().width // 2), 0, 1)
  return whole.reshape(len(whole), -1)[:, :features]


def _rearranged(panels_, rows):
  """Of bfloat16 rows, seen as [rows, columns], columns before rows."""
  if panels_.dtype != jnp.bfloat16:
    return panels_
  grid = panels_.reshape(*panels_.shape[:2], rows, -1)
  return grid.swapaxes(2, 3).reshape(panels_.shape)


def are_halves(of: Float[Array, '...']) -> bool:
  """Whether numbers are bfloat16's: of float32 the lower halves are 0."""
  if of.dtype == jnp.bfloat16:
    return True
  bits = np.asarray(of).reshape(-1).view(np.uint32)
  return not any((bits[i:i + BITS] & 0xffff).any()
                 for i in range(0, len(bits), BITS))


def halves(of: np.ndarray) -> np.ndarray:
  """Such float32 panels, or a turned matrix, as bfloat16."""
  if of.dtype == jnp.bfloat16:
    return of
  upper = of.view(np.uint16)[..., 1::2].view(jnp.bfloat16)
  return _rearranged(upper, 2) if of.ndim == 3 else upper


def product(x: Float[Array, 'rows in'], weight: Float[Array, '...'],
            features: int) -> Float[Array, 'rows out']:
  """x W, W being [out, in] or what `panels` makes of an [in, out].

  x is float32, W that or bfloat16, and the result float32.
  """
  symbol = 'TurnedProduct' if weight.ndim == 2 else 'PanelProduct'
  return _call(symbol, (len(x), features), x, weight)


def attends(width: int) -> bool:
  """Whether `attention` takes heads of this width."""
  return width % library().width == 0


def attention(query: Float[Array, 'B N H D'], key: Float[Array, 'B K S D'],
              value: Float[Array, 'B K S D'],
              bias: Float[Array, 'B H N S'] | None, mask: Bool[Array, 'B N S'],
              soft_cap: float | None = None) -> Float[Array, 'B N HD']:
  """`layers.attend` without dropout; a bias may have one row for all."""
  b, n, heads, width = query.shape
  if bias is None:
    bias = jnp.zeros((0, heads, n, key.shape[2]))
  return _call('Attention', (b, n, heads * width), query, key, value, bias,
               mask, jnp.float32(soft_cap or 0))


def _call(symbol, shape, *arrays):
  return jax.ffi.ffi_call(
      library().target(symbol), jax.ShapeDtypeStruct(shape, jnp.float32),
      vmap_method='sequential')(*arrays)


def compiled(flags: tuple[str, ...] = FLAGS) -> pathlib.Path:
  """The shared library, made if there is none of this source on this CPU.

  Raises:
    OSError: There is no compiler, or no folder to write to.
    subprocess.SubprocessError: It does not compile.
  """
  include = pathlib.Path(jax.ffi.include_dir())
  digest = hashlib.sha256(b'\0'.join([
      SOURCE.read_bytes(), (include / 'xla/ffi/api/c_api.h').read_bytes(),
      repr((flags, platform.libc_ver())).encode(), _processor().encode()]))
  folder = pathlib.Path(os.path.expanduser(KEPT))
  if not folder.is_absolute():
    raise OSError('There is no home directory to keep kernels in.')
  made = folder / f'{digest.hexdigest()[:16]}.so'
  if not made.exists():
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
      _compile(flags, include, pathlib.Path(fresh, made.name))
      os.replace(pathlib.Path(fresh, made.name), made)
  return made


def _compile(flags, include, output):
  """Raises what `compiled` does."""
  compiler = next(filter(None, map(
      shutil.which, filter(None, (os.environ.get('CC'), *COMPILERS)))), None)
  if compiler is None:
    raise OSError(f'There is no C compiler ({", ".join(COMPILERS)}).')
  done = subprocess.run(
      [compiler, *flags, f'-I{include}', str(SOURCE), '-o', str(output), '-lm'],
      capture_output=True, text=True, check=False)
  if done.returncode:
    said = done.stderr.strip().splitlines() or ['it said nothing']
    error = next((x for x in said if 'error' in x), said[-1])
    raise subprocess.SubprocessError(
        f'{compiler} could not compile {SOURCE.name}: {error}.')


def _processor() -> str:
  """What -march=native depends on."""
  try:
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
  except OSError:
    return f'{platform.machine()} {platform.node()}'
  return '\n'.join(sorted({x for x in lines if x.startswith(
      ('flags', 'Features', 'model name', 'CPU part'))}))
