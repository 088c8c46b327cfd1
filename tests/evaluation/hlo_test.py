"""Exchanges, copies and calls of the host, read from compiled programs.

Programs for 8 devices are compiled in a process of its own.
"""
import json
import os
import pathlib
import subprocess
import sys

import jax
from jax import shard_map
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades.evaluation import hlo

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAG = '--xla_force_host_platform_device_count=8'


def main():
  """Each kind of exchange on 2 x 4 devices, with what it works on."""
  mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ('a', 'b'))
  spec = jax.sharding.PartitionSpec
  lax = jax.lax
  cases = dict(
      reduce=(lambda x: lax.psum(x, 'b'), spec(), spec()),
      reduce_all=(lambda x: lax.psum(x, ('a', 'b')), spec(), spec()),
      gather=(lambda x: lax.all_gather(x, 'b', tiled=True), spec('b'), spec()),
      scatter=(lambda x: lax.psum_scatter(x, 'a', tiled=True), spec(),
               spec('a')),
      shift=(lambda x: lax.ppermute(x, 'a', [(0, 1), (1, 0)]), spec(), spec()))
  found = {}
  for name, (body, given, made) in cases.items():
    run = jax.jit(shard_map(body, mesh=mesh, in_specs=given, out_specs=made,
                            check_vma=False))
    text = run.lower(jnp.ones((16, 32), jnp.float32)).compile().as_text()
    found[name] = [(x.kind, x.nbytes, x.group) for x in hlo.collectives(
        hlo.parse(text).reach([hlo.parse(text).entry]))]

  def loop(x):
    step = lambda i, x: lax.psum(x, 'b') / 4
    return lax.fori_loop(0, 5, lambda i, x: lax.fori_loop(0, 3, step, x), x)

  run = jax.jit(shard_map(loop, mesh=mesh, in_specs=spec(), out_specs=spec(),
                          check_vma=False))
  text = run.lower(jnp.ones((16, 32), jnp.float32)).compile().as_text()
  program = hlo.parse(text)
  found['looped'] = [n for x, n in program.weighted() if x.kind]
  found['inside'] = [len(hlo.collectives(program.inside(x)))
                     for x in program.loops]
  print(json.dumps(found))


@pytest.fixture(scope='module')
def found():
  done = subprocess.run(
      [sys.executable, '-c',
       'from tests.evaluation import hlo_test as t; t.main()'],
      cwd=ROOT, capture_output=True, text=True, check=False, env=dict(
          os.environ, PYTHONPATH=str(ROOT), JAX_PLATFORMS='cpu',
          XLA_FLAGS=f'{os.environ.get("XLA_FLAGS", "")} {FLAG}'))
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


WHOLE = 16 * 32 * 4


@pytest.mark.parametrize('name,want', [
    ('reduce', ['all-reduce', WHOLE, 4]),
    ('reduce_all', ['all-reduce', WHOLE, 8]),
    ('gather', ['all-gather', WHOLE, 4]),
    ('scatter', ['reduce-scatter', WHOLE, 2]),
    ('shift', ['collective-permute', WHOLE, 2])])
def test_bytes_of_each_exchange(found, name, want):
  (*got,), = found[name]
  assert got[:len(want)] == want


def test_loops_are_counted_as_often_as_they_run(found):
  assert found['looped'] == [15] and found['inside'] == [1]


def test_types_have_bytes():
  assert hlo.array_bytes('(f32[2,3]{1,0:T(8,128)S(1)}, pred[], bf16[4]{0})'
                         ) == [24, 1, 8]
  assert hlo.array_bytes('s4[3]') == [2] and hlo.array_bytes('token[]') == []


TEXT = """HloModule jit_f, input_output_alias={ {0}: (2, {}, may-alias), {1}: \
(5, {}, must-alias) }, entry_computation_layout={(f32[])->f32[]}

%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], /*index=1*/f32[4,8]{1,0:T(8,128)}) parameter(0)
  %copy.1 = f32[4,8]{1,0:T(8,128)} copy(%p)
  %up = (f32[4,8]{1,0:S(3)}, f32[4,8]{1,0}, u32[]{:S(2)}) copy-start(%p)
  %to = (f32[4,8]{1,0}, f32[4,8]{1,0}, u32[]{:S(2)}) copy-start(%p)
  %ag = (bf16[2,8]{1,0}, bf16[8,8]{1,0}) all-gather-start(%p), \
replica_groups=mesh['x'=2,'y'=4] {'y'}, dimensions={0}
  %agd = bf16[8,8]{1,0} all-gather-done(%ag)
  %out = token[] outfeed(%p)
}

%test (p: s32[]) -> pred[] {
  %r = pred[] all-reduce(%p), replica_groups={{0,1},{2,3}}, to_apply=%x
  ROOT %c = s32[] custom-call(), custom_call_target="xla_python_callback"
}

ENTRY %main (a: f32[4,8]) -> f32[4,8] {
  ROOT %w = (s32[], f32[4,8]) while(%a), condition=%test, body=%body
}
"""


@pytest.mark.parametrize('head,size', [
    ('', 1), (', num_partitions=8', 8),
    (', num_partitions=4, replica_count=2', 8)])
def test_no_groups_at_all_are_one_of_all_devices(head, size):
  program = hlo.parse(f"""HloModule jit_f{head}

ENTRY %main (a: f32[4]) -> f32[4] {{
  %a = f32[4] parameter(0)
  ROOT %r = f32[4] all-reduce(%a), replica_groups={{}}, to_apply=%x
}}
""")
  assert [x.group for x, _ in program.weighted() if x.kind] == [size]


def test_a_text_by_hand():
  program = hlo.parse(TEXT)
  loop, = program.loops
  inside = program.inside(loop)
  assert hlo.totals(inside) == {'all-gather': (1, 128), 'all-reduce': (1, 1)}
  assert [x.parts for x in hlo.collectives(inside)] == [[128], [1]]
  groups = {x.kind: x.group for x in hlo.collectives(inside)}
  assert groups == {'all-gather': 4, 'all-reduce': 2}
  assert [x.name for x in hlo.copies(inside, ['f32[4,8]'])] == [
      'copy.1', 'to']
  assert not hlo.copies(inside, ['f32[8,4]'])
  assert {x.name for x in hlo.host_transfers(inside)} == {'out', 'c'}
  assert hlo.donated(TEXT) == {2, 5}
  assert {n for x, n in program.weighted(7) if x.name == 'ag'} == {7}
  with pytest.raises(ValueError, match='as_text'):
    hlo.parse('no program')


MOVED = """HloModule jit_f

ENTRY %main (p: bf16[1,8,135,64]) -> bf16[1,8,64,135] {
  %p = bf16[1,8,135,64]{3,2,1,0:T(8,128)S(5)} parameter(0)
  %away = (bf16[1,8,135,64]{3,2,1,0:S(5)}, bf16[1,8,135,64]{3,2,1,0}, \
u32[]{:S(2)}) copy-start(%q)
  %awaited = bf16[1,8,135,64]{3,2,1,0:S(5)} copy-done(%away)
  %back = (bf16[1,8,135,64]{3,2,1,0}, bf16[1,8,135,64]{3,2,1,0:S(5)}, \
u32[]{:S(2)}) copy-start(%p)
  %turned = bf16[8,64,135]{2,1,0} transpose(%b), dimensions={0,2,1}
  %kept = bf16[1,8,64,135]{2,3,1,0} transpose(%p), dimensions={0,1,3,2}
  %l = bf16[1,8,135,64]{2,3,1,0} fusion(%b), calls=%inner
  %laid = bf16[1,8,64,135]{2,3,1,0} transpose(%l), dimensions={0,1,3,2}
  %other = bf16[1,8,64,16]{3,2,1,0} transpose(%b), dimensions={0,1,3,2}
  %same = bf16[8,1,135,64]{3,2,1,0} transpose(%c), dimensions={1,0,2,3}
  %bare = bf16[8,135,64]{1,2,0} copy(%b)
  %near = bf16[8,135,64]{2,1,0:T(8,128)S(3)} bitcast(%p)
  %out = bf16[8,135,64]{2,1,0:T(8,128)} copy(%near)
  %less = bf16[8,135,32]{1,2,0} copy(%b)
  ROOT %on = bf16[1,8,64,135]{2,3,1,0:S(1)} fusion(%turned), calls=%inner
}
"""


def test_caches_in_the_hosts_memory_and_transposed_ones_are_found():
  program = hlo.parse(MOVED)
  found = list(program.reach([program.entry]))
  assert [x.name for x in hlo.host_transfers(found)] == ['away', 'back']
  assert [x.name for x in hlo.copies(found, ['bf16[1,8,135,64]'])] == [
      'turned', 'laid', 'bare']


FUSED = """HloModule jit_f

%turning (p: bf16[8,4]) -> bf16[8,4] {
  %p = bf16[8,4]{0,1} parameter(0)
  ROOT %onward = bf16[8,4]{1,0} copy(%p)
}

%attention (q: bf16[8,4]) -> f32[4] {
  %q = bf16[8,4]{0,1} parameter(0)
  %on = bf16[8,4]{1,0} fusion(%q), kind=kLoop, calls=%turning
  %between = bf16[8,4]{0,1} copy(%on)
  ROOT %sum = f32[4]{0} reduce(%between, %zero), dimensions={0}, to_apply=%add
}

%one (r: bf16[8,4]) -> bf16[8,4] {
  %r = bf16[8,4]{0,1} parameter(0)
  ROOT %given = bf16[8,4]{1,0} copy(%r)
}

%two (s: bf16[8,4]) -> (f32[4], bf16[8,1,4]) {
  %s = bf16[8,4]{0,1} parameter(0)
  %listed = bf16[8,4]{1,0} copy(%s)
  %seen = bf16[8,1,4]{2,1,0} bitcast(%listed)
  ROOT %pair = (f32[4]{0}, bf16[8,1,4]{2,1,0}) tuple(%n, %seen)
}

%deep (t: bf16[8,4]) -> bf16[8,4] {
  %t = bf16[8,4]{0,1} parameter(0)
  ROOT %passed = bf16[8,4]{1,0} fusion(%t), kind=kLoop, calls=%deeper
}

%deeper (u: bf16[8,4]) -> bf16[8,4] {
  %u = bf16[8,4]{0,1} parameter(0)
  ROOT %handed = bf16[8,4]{1,0} copy(%u)
}

%written (v: bf16[8,4]) -> bf16[8,4] {
  %v = bf16[8,4]{0,1} parameter(0)
  %beneath = bf16[8,4]{1,0} copy(%v)
  %new = bf16[8,4]{1,0} copy(%v)
  %late = bf16[1,4]{1,0} slice(%new), slice={[0:1], [0:4]}
  ROOT %update = bf16[8,4]{1,0} dynamic-update-slice(%beneath, %late, %i, %j)
}

%chosen (w: bf16[8,4]) -> bf16[8,4] {
  %w = bf16[8,4]{0,1} parameter(0)
  %either = bf16[8,4]{1,0} copy(%w)
  %which = pred[8,4]{1,0} compare(%either, %either), direction=EQ
  ROOT %select = bf16[8,4]{1,0} select(%which, %either, %zeros)
}

ENTRY %main (c: bf16[8,4]) -> f32[4] {
  %c = bf16[8,4]{0,1} parameter(0)
  %wr = bf16[8,4]{1,0} fusion(%c), kind=kLoop, calls=%written
  %ch = bf16[8,4]{1,0} fusion(%c), kind=kLoop, calls=%chosen
  %a = f32[4]{0} fusion(%c), kind=kOutput, calls=%attention
  %b = bf16[8,4]{1,0} fusion(%c), kind=kLoop, calls=%one
  %d = (f32[4]{0}, bf16[8,1,4]{2,1,0}) fusion(%c), kind=kLoop, calls=%two
  %e = bf16[8,4]{1,0} fusion(%c), kind=kLoop, calls=%deep
  ROOT %plain = bf16[8,4]{1,0} copy(%c)
}
"""


def test_what_a_fusion_turns_over_on_its_way_is_no_copy():
  """And what it gives is, by itself, among others, or from a fusion in it."""
  program = hlo.parse(FUSED)
  found = list(program.reach([program.entry]))
  assert {x.name for x in hlo.copies(found, ['bf16[8,4]'])} == {
      'given', 'listed', 'handed', 'plain', 'beneath', 'either'}
  names = {x.name: x.kept for x in found}
  assert not names['on'] and not names['onward'] and not names['between']
  assert not names['new'] and not names['late'] and not names['which']
  assert names['sum'] and names['passed'] and names['a']


SPREAD = """HloModule jit_f

%begin (p: f32[2]) -> (f32[8], u32[]) {
  %ag.1 = f32[8]{0} all-gather(%p), channel_id=3, replica_groups=[1,4]<=[4]
  ROOT %s = f32[8] custom-call(%ag.1), \
custom_call_target="AsyncCollectiveStart"
}

%more (p: f32[2]) -> f32[8] {
  %ag.2 = f32[8]{0} all-gather(%p), channel_id=3, replica_groups=[1,4]<=[4]
  ROOT %ag.3 = f32[8]{0} all-gather(%p), channel_id=4, replica_groups=[1,4]<=[4]
}

ENTRY %main (a: f32[2]) -> f32[8] {
  %b = (f32[8], u32[]) fusion(%a), kind=kCustom, calls=%begin
  ROOT %m = f32[8] fusion(%b), kind=kCustom, calls=%more
}
"""


def test_an_exchange_that_is_spread_over_fusions_counts_once():
  found = [x.name for x, _ in hlo.parse(SPREAD).weighted() if x.kind]
  assert sorted(found) == ['ag.1', 'ag.3']


def test_a_callback_in_a_loop_is_found():
  def step(_, x):
    return x + jax.pure_callback(
        np.sin, jax.ShapeDtypeStruct((), np.float32), x)

  run = jax.jit(lambda x: jax.lax.fori_loop(0, 3, step, x))
  program = hlo.parse(run.lower(jnp.float32(1)).compile().as_text())
  assert hlo.host_transfers(program.inside(program.loops[0]))


def test_a_donated_argument_is_found():
  run = jax.jit(lambda x, y: (y + 1, x.sum()), donate_argnums=1)
  x = jnp.ones((4, 4))
  assert hlo.donated(run.lower(x, x).compile().as_text()) == {1}
