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


def models(rules='tensor', shape=(DATA, MODEL)):
  """T5 XL and small, and a weight that 'fsdp' cuts; nothing is allocated."""
  mesh = jax.sharding.AbstractMesh(shape, sharding.AXES)
  found = [sharding.Sharded(presets.model(name, dtype='bfloat16'),
                            sharding.Layout(mesh, own)) for name, own in (
                                ('t5_1_1_xl', rules), ('t5_1_1_small', 'data'))]
  name = 'decoder/layers_0/mlp/wo/kernel'
  weight = jax.ShapeDtypeStruct(
      (5120, 2048), jnp.bfloat16, sharding=found[0].layout.parameter(
          name, (5120, 2048), found[0].config))
  return found, [weight]


def allowed(result, kind, group=MODEL, rules='tensor', shape=(DATA, MODEL),
            groups=None):
  """What `expected` says of one row a group, and `lines` with it."""
  groups = groups or f'[{DATA * MODEL // group},{group}]<=[8]'
  text = f'{HEAD}ROOT %x = {result} {kind}(%a), replica_groups={groups}\n}}'
  program = hlo.parse(text)
  pair, params = models(rules, shape)
  expected = functools.partial(faults.expected, models=pair, params=params,
                               rows=shape[0], nodes=NODES)
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


def test_a_head_as_large_as_some_logits_is_no_logits():
  """XL's in bfloat16 has the bytes of 1,024 tokens' logits."""
  (verifier, _), _ = pair = models(shape=(1, MODEL))
  cut = verifier.layout.parameter('decoder/logits_dense/kernel',
                                  (2048, VOCAB), verifier.config)
  head = jax.ShapeDtypeStruct((2048, VOCAB), jnp.bfloat16, sharding=cut)
  for result, want in (
      (f'bf16[2048,{VOCAB}]', False), (f'bf16[{VOCAB},2048]', False),
      (f'bf16[1,{VOCAB},2048]', False), (f'f32[1024,{VOCAB}]', True),
      (f'f32[256,4,{VOCAB}]', True)):
    text = (f'{HEAD}ROOT %x = {result} all-gather(%a), '
            f'replica_groups=[1,{MODEL}]<=[{MODEL}]\n}}')
    program = hlo.parse(text)
    found, = program.reach([program.entry])
    assert faults.expected(found, pair[0], [head], 256, NODES) == want, result


def test_between_groups_only_an_end_and_weights():
  assert allowed('pred[]', 'all-reduce', DATA)
  assert not allowed('f32[2]', 'all-reduce', DATA)
  weight = f'bf16[{5120 // MODEL},2048]'
  assert allowed(weight, 'all-gather', DATA, 'fsdp')
  assert not allowed(weight, 'all-gather', DATA)
  assert not allowed(CACHE, 'all-gather', DATA, 'fsdp')


@pytest.mark.parametrize('within,between', [
    ('[4,4]<=[16]', '[4,4]<=[4,4]T(1,0)'),
    ('{{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}}',
     '{{0,4,8,12},{1,5,9,13},{2,6,10,14},{3,7,11,15}}'),
    ("mesh['axis_0'=4,'axis_1'=4] {'axis_1'}",
     "mesh['axis_0'=4,'axis_1'=4] {'axis_0'}"),
    ("mesh['a'=4,'b'=1,'c'=4,'d'=1] {'c'}", "mesh['a'=1,'b'=4,'c'=4] {'b'}"),
    ("mesh['a'=2,'b'=2,'c'=2,'d'=2] {'c','d'}", "mesh['a'=16] {'a':(1)4}"),
    ("mesh['a'=16] {'a':(4)4}", "mesh['a'=2,'b'=2,'c'=2,'d'=2] {'b','c'}"),
    ("mesh['a'=4,'b'=1,'c'=4], device_ids=([4,4]T(1,0)) {'a'}",
     "mesh['a'=4,'b'=4], device_ids=([4,4]T(1,0)) {'b'}"),
    ("mesh['a'=4,'b'=4], device_ids=(0,4,8,12,1,5,9,13,2,6,10,14,3,7,11,15) "
     "{'a'}", "mesh['a'=4,'b'=4], device_ids=([16]) {'a'}")])
def test_which_axis_is_told_where_both_are_as_long(within, between):
  one = functools.partial(allowed, shape=(4, 4))
  logits, states = f'f32[1,{NODES},{VOCAB}]', f'bf16[1,{NODES},2048]'
  for result, kind in ((logits, 'all-gather'), (states, 'all-reduce')):
    assert one(result, kind, groups=within)
    assert not one(result, kind, groups=between)
  weight = f'bf16[{5120 // 4},2048]'
  assert one(weight, 'all-gather', rules='fsdp', groups=between)
  assert not one(weight, 'all-gather', rules='fsdp', groups=within)
  assert one('pred[]', 'all-reduce', groups=between)
