"""What loading half a gigabyte takes: memory, and time beside transformers."""
import json
import math
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from spec_cascades.checkpoints import hub_writing, loading
from spec_cascades.models import gemma

pytestmark = pytest.mark.slow

LIMIT = 1.15
SHARE = .5                             # of transformers' time
# 123 million weights; the second has most of them in one array, as Gemmas do.
CONFIGS = dict(
    llama=gemma.GemmaConfig(
        32_000, 1024, 8, 16, 4, 64, 2816, 'silu', norm_offset=0.,
        scale_embedding=False),
    wide=gemma.GemmaConfig(
        150_000, 512, 8, 8, 4, 64, 2816, 'silu', norm_offset=0.,
        scale_embedding=False))
# 538 million weights, in arrays that glibc takes from its heap in bfloat16.
LARGE = gemma.GemmaConfig(
    64_000, 1536, 16, 24, 8, 64, 4608, 'silu', norm_offset=0.,
    scale_embedding=False)
SMALL = gemma.GemmaConfig(32, 16, 1, 2, 1, 8, 16, 'silu', norm_offset=0.,
                          scale_embedding=False)
MEASURE = """
import json, resource, sys, time
import jax, numpy as np
from spec_cascades import checkpoints
from spec_cascades.checkpoints import converting
from spec_cascades.evaluation import pairs
def status(key):
  lines = open('/proc/self/status').read().splitlines()
  return next(int(x.split()[1]) * 1024 for x in lines if x.startswith(key))
small, path, dtype, output = sys.argv[1:]
def pack(path, dtype):
  found = checkpoints.load(path, dtype=dtype)
  size = sum(x.nbytes for x in jax.tree.leaves(found.params))
  lm = pairs.computing(found.lm, dtype)
  model = pairs.Model('x', lm, found.params, '', 1)
  del found
  jax.block_until_ready(model.params)
  return size
warm = pack if output == 'packed' else checkpoints.load
warm(small, dtype=dtype)                       # imports and buffers of JAX
before = status('VmRSS')
open('/proc/self/clear_refs', 'w').write('5')  # forgets the peak
start = time.process_time()
if output == 'packed':
  size = pack(path, dtype)
elif output:
  converting.convert(path, output, dtype=dtype)
  size = 0
else:
  found = checkpoints.load(path, dtype=dtype).params
  size = sum(x.nbytes for x in jax.tree.leaves(found))
print(json.dumps([status('VmHWM') - before, size,
                  time.process_time() - start]))
"""
# From the start of the process to weights that have been read.
OURS = """
import sys
import jax
from spec_cascades import checkpoints
found = checkpoints.load(sys.argv[1], dtype=sys.argv[2])
assert len(jax.tree.leaves(found.params)) > 50
"""
THEIRS = """
import sys
import torch, transformers
found = transformers.AutoModelForCausalLM.from_pretrained(
    sys.argv[1], dtype=getattr(torch, sys.argv[2]))
assert len(list(found.parameters())) > 50
"""
TIMED = """
import resource
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""


def write(place, config, dtype):
  """A random checkpoint, drawn array by array."""
  lm, rng = gemma.Gemma(config), np.random.default_rng(0)
  kind = np.dtype(ml_dtypes.bfloat16 if dtype == 'bfloat16' else dtype)
  draw = lambda shape: rng.standard_normal(shape, np.float32).astype(kind)
  leaves = {name: loading.Leaf(shape, math.prod(shape) * kind.itemsize,
                               lambda shape=shape: draw(shape), name)
            for name, shape in loading.expected(lm).items()}
  place.mkdir()
  hub_writing.write(place, loading.Source(place, lm, leaves), dtype)
  return place


@pytest.fixture(scope='module')
def places(tmp_path_factory):
  """Checkpoints by configuration and dtype, and a small one."""
  base = tmp_path_factory.mktemp('large')
  found = {(name, dtype): write(base / f'{name}_{dtype}', config, dtype)
           for name, config in CONFIGS.items()
           for dtype in ('float32', 'bfloat16')}
  return found | {'small': write(base / 'small', SMALL, 'float32')}


def child(code, *args):
  done = subprocess.run([sys.executable, '-c', code, *map(str, args)],
                        capture_output=True, text=True, check=True)
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize('name', CONFIGS)
@pytest.mark.parametrize('stored', ['float32', 'bfloat16'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('form', ['', 'packed'])
def test_peak_memory_is_little_more_than_the_weights(
    places, name, stored, dtype, form):
  """In checkpoint layout, and until they are packed for decoding."""
  peak, size, seconds = child(MEASURE, places['small'], places[name, stored],
                              dtype, form)
  print(f'\n{name} {stored} -> {dtype} {form}: {size / 1e6:.0f} MB, peak '
        f'{peak / size:.3f}x, {seconds:.2f} s of CPU')
  assert size > 2e8 and peak <= LIMIT * size


@pytest.mark.parametrize('stored', ['float32', 'bfloat16'])
def test_peak_memory_of_packing_a_gigabyte(stored, places, tmp_path):
  path = write(tmp_path / 'large', LARGE, stored)
  peak, size, seconds = child(MEASURE, places['small'], path, 'bfloat16',
                              'packed')
  print(f'\n{stored} -> bfloat16, packed: {size / 1e6:.0f} MB, peak '
        f'{peak / size:.3f}x, {seconds:.2f} s of CPU')
  assert size > 1e9 and peak <= LIMIT * size


def test_conversion_needs_a_fraction_of_the_weights(places, tmp_path):
  path = places['llama', 'float32']
  peak, _, seconds = child(MEASURE, places['small'], path, 'float32',
                           tmp_path / 'out')
  size = (path / 'model.safetensors').stat().st_size
  print(f'\nconversion: peak {peak / size:.3f}x of {size / 1e6:.0f} MB, '
        f'{seconds:.2f} s of CPU')
  assert peak < .3 * size


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_process_loads_in_half_the_time_of_transformers(places, dtype):
  pytest.importorskip('transformers')
  path = places['llama', dtype]
  times = {name: min(child(code + TIMED, path, dtype) for _ in range(3))
           for name, code in (('ours', OURS), ('theirs', THEIRS))}
  print(f'\n{dtype}: CPU seconds of a process that loads {times}')
  assert times['ours'] <= SHARE * times['theirs']
