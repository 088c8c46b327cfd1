"""What a decode loop may exchange, on instructions written by hand."""
import functools

import jax
import jax.numpy as jnp
import pytest

from spec_cascades import sharding
from spec_cascades.evaluation import faults
from spec_cascades.evaluation import hlo
from spec_cascades.models import presets

DATA, MODEL, NODES, VOCAB = 2, 4, 6, 32_128
HEAD = 'HloModule jit_f\n\nENTRY %main (a: f32[]) -> f32[] {\n  '


def models(rules='tensor'):
  """T5 XL and small, and a weight that 'fsdp' cuts; nothing is allocated."""
  mesh = jax.sharding.AbstractMesh((DATA, MODEL), sharding.AXES)
  found = [sharding.Sharded(presets.model(name, dtype='bfloat16'),
                            sharding.Layout(mesh, own)) for name, own in (
                                ('t5_1_1_xl', rules), ('t5_1_1_small', 'data'))]
  name = 'decoder/layers_0/mlp/wo/kernel'
  weight = jax.ShapeDtypeStruct(
      (5120, 2048), jnp.bfloat16, sharding=found[0].layout.parameter(
          name, (5120, 2048), found[0].config))
  return found, [weight]


def allowed(result, kind, group=MODEL, rules='tensor'):
  """What `expected` says of one row a group, and `lines` with it."""
  groups = f'replica_groups=[{DATA * MODEL // group},{group}]<=[8]'
  text = f'{HEAD}ROOT %x = {result} {kind}(%a), {groups}\n}}'
  program = hlo.parse(text)
  pair, params = models(rules)
  expected = functools.partial(faults.expected, models=pair, params=params,
                               rows=DATA, nodes=NODES)
  found = list(program.reach([program.entry]))
  said, = map(expected, found)
  assert faults.lines(found, (), expected) == ([] if said else [
      text.splitlines()[-2].strip()])
  return said


CACHE = 'bf16[1,32,135,64]{3,2,1,0}'


@pytest.mark.parametrize('result,kind', [
    (f'f32[1,{NODES},{VOCAB}]', 'all-gather'),
    (f'f32[1,1,{VOCAB}]', 'all-gather'),
    (f'f32[1,1,{VOCAB}]', 'all-reduce'),      # as the compiler has it of one
    (f'bf16[1,{NODES},2048]', 'all-reduce'),
    (f'(bf16[1,{NODES},2048], f32[{NODES},2048])', 'all-reduce')])
def test_states_and_logits_are_exchanged_in_a_group(result, kind):
  assert allowed(result, kind)
  assert not allowed(result, kind, rules='data')
  assert not allowed(result, kind, group=DATA * MODEL)


def test_a_cache_below_the_size_of_logits_is_no_logits():
  nbytes, = hlo.array_bytes(CACHE)
  assert nbytes < 4 * NODES * VOCAB
  assert not allowed(CACHE, 'all-gather') and not allowed(CACHE, 'all-reduce')
  assert not allowed(f'(f32[1,{NODES},{VOCAB}], {CACHE})', 'all-gather')
  assert not allowed(f'f32[1,{NODES + 1},{VOCAB}]', 'all-gather')
  assert not allowed(f'bf16[1,{NODES},2048]', 'all-gather')


def test_between_groups_only_an_end_and_weights():
  assert allowed('pred[]', 'all-reduce', DATA)
  assert not allowed('f32[2]', 'all-reduce', DATA)
  weight = f'bf16[{5120 // MODEL},2048]'
  assert allowed(weight, 'all-gather', DATA, 'fsdp')
  assert not allowed(weight, 'all-gather', DATA)
  assert not allowed(CACHE, 'all-gather', DATA, 'fsdp')
