"""Published sizes, laid out on 2 x 4 chips; nothing is compiled or stored."""
import math

import jax
import pytest

from spec_cascades import sharding
from spec_cascades.checkpoints import loading
from spec_cascades.evaluation import tpu
from spec_cascades.models import presets
from spec_cascades.training import optimizers
from spec_cascades.training import sharding as training
from spec_cascades.training import train_step

MESH = jax.sharding.AbstractMesh((2, 4), sharding.AXES)
# Billions of parameters: of T5 v1.1's checkpoints, and of
# https://arxiv.org/abs/2408.00118, table 2, both columns.
SIZES = dict(t5_1_1_large=.783, t5_1_1_xl=2.850, t5_1_1_xxl=11.135,
             gemma2_2b=2.614, gemma2_9b=9.242, gemma2_27b=27.227)


def held(tree):
  """Bytes on one chip."""
  return sum(x.dtype.itemsize * math.prod(x.sharding.shard_shape(x.shape))
             for x in jax.tree.leaves(tree))


@pytest.mark.parametrize('rules', ['data', 'tensor', 'fsdp'])
@pytest.mark.parametrize('name', SIZES)
def test_a_chip_holds_its_part_of_a_published_size(name, rules):
  lm = presets.model(name, dtype='bfloat16')
  table = vectors = matrices = 0
  for path, shape in loading.expected(lm).items():
    n = math.prod(shape)
    if path.startswith('token_embedder'):
      table += n
    elif len(shape) < 2 or 'rel_embedding' in path:
      vectors += n
    else:
      matrices += n
  total = table + vectors + matrices
  assert total / 1e9 == pytest.approx(SIZES[name], rel=.002)
  found = held(tpu._params(
      sharding.Sharded(lm, sharding.Layout(MESH, rules))))
  # A table is read by row, and so is not cut over the data axis.
  parts = dict(data=(1, 1), tensor=(4, 4), fsdp=(4, 8))[rules]
  cut = 2 * (table / parts[0] + matrices / parts[1])
  print(f'{name}, {rules}: {found / 2**30:.2f} GiB')
  assert cut < found <= cut + 4 * vectors


@pytest.mark.parametrize('size,optimizer,want', [
    ('xl', 'adafactor', (10.6, 2.7, 1.4)), ('xl', 'adamw', (31.8, 8.0, 4.1)),
    ('xxl', 'adafactor', (41.5, 10.4, 5.3)),
    ('xxl', 'adamw', (124.4, 31.1, 15.7))])
def test_a_chip_holds_its_part_of_a_training_run(size, optimizer, want):
  """GiB in docs/training.md: parameters, and what an optimiser keeps."""
  lm = presets.model(f't5_1_1_{size}')
  update = train_step.Update(lm, getattr(optimizers, optimizer)(1.))
  state = jax.eval_shape(
      lambda: update.init(lm.init_params(jax.random.key(0))))
  found = [held(training.like(lm, state, sharding.Layout(MESH, rules))) / 2**30
           for rules in ('data', 'tensor', 'fsdp')]
  assert found == pytest.approx(want, abs=.051)
