"""Traces: where the time went, and that naming parts changes no program."""
import contextlib
import json
import shutil

import jax
import jax.numpy as jnp
import pytest

from spec_cascades import cache, decode, targets
from spec_cascades.drafters import chain
from spec_cascades.evaluation import profiling
from spec_cascades.warp import Warp
from tests.common import LM, P, Q, RAGGED, keys

SPEC = decode.GenSpecSample(LM, chain.Chain(LM, 2), 12, eos=-1)
ARGS = P, Q, RAGGED, keys(3), targets.Chow(.3), Warp(jnp.float32(1))


@pytest.fixture(scope='module')
def traced(tmp_path_factory):
  """The lines of a trace, its directory, and what was decoded in it."""
  folder, lines = tmp_path_factory.mktemp('trace'), []
  want = jax.block_until_ready(decode.run(SPEC, *ARGS))
  with profiling.traced(str(folder / 'new'), lines.append):
    got = jax.block_until_ready(decode.run(SPEC, *ARGS))
  assert (got.tokens == want.tokens).all()
  return lines, folder / 'new'


def test_every_part_of_a_round_has_its_time(traced):
  lines, folder = traced
  path = profiling.newest(folder)
  spent = profiling.seconds(path)
  assert all(spent[name] > 0 for name in profiling.PARTS)
  head, *rows, where = lines
  assert head.split() == ['part', 'ms', 'share'] and str(path) in where
  shares = {x[:14].strip(): float(x.split()[-1].rstrip('%')) for x in rows}
  assert sum(shares.values()) == pytest.approx(100, abs=.4)
  total = sum(spent.values())
  for name, share in shares.items():
    part = spent.get(name.replace(' ', '_'), 0)
    assert share == pytest.approx(100 * part / total, abs=.06)


def test_what_a_drafter_draws_is_drafting(traced):
  """Both draw: the drafter its tokens, acceptance what is emitted."""
  found = [scope for x in profiling.instructions(
      profiling.newest(traced[1])).values() for _, scope in x.values()]
  drawn = {profiling.part_of(scope) for scope in found if 'cumsum' in scope}
  assert drawn == {'drafting', 'sampling'}


def test_instructions_are_those_of_the_compiled_program(traced):
  """Against the text of the same program, which XLA itself prints."""
  text = decode.run.lower(SPEC, *ARGS).compile().as_text()
  found = next(x for x in profiling.instructions(
      profiling.newest(traced[1])).values() if any(
          'sampling' in scope for _, scope in x.values()))
  checked = 0
  for line in text.splitlines():
    name, equals, rest = line.strip().removeprefix('ROOT ').partition(' = ')
    name = name.removeprefix('%')
    if equals and 'op_name="' in rest and name in found:
      opcode, scope = found[name]
      assert f' {opcode}(' in rest
      assert scope == rest.split('op_name="')[1].split('"')[0]
      checked += 'sampling' in scope
  assert checked > 5


def test_names_of_parts_change_no_program(monkeypatch):
  shown = lambda: (str(jax.make_jaxpr(decode.run)(
      SPEC, *ARGS)), jax.jit(decode.run.__wrapped__).lower(
          SPEC, *ARGS).as_text())
  named = shown()
  monkeypatch.setattr(jax, 'named_scope',
                      lambda name: contextlib.nullcontext())
  monkeypatch.setattr(cache, 'write', cache.write.__wrapped__)
  jax.clear_caches()
  assert shown() == named


def proto(**fields):
  """A message with fields called f1, f2...: numbers, bytes or lists of them."""
  def varint(x):
    out = b''
    while x > 127:
      out, x = out + bytes([x & 127 | 128]), x >> 7
    return out + bytes([x])

  out = b''
  for name, values in fields.items():
    number = int(name[1:])
    for x in values if isinstance(values, list) else [values]:
      x = x.encode() if isinstance(x, str) else x
      out += (varint(number << 3) + varint(x) if isinstance(x, int)
              else varint(number << 3 | 2) + varint(len(x)) + x)
  return out


# Two computations: number, opcode, scope, operands, called computations.
NAMELESS = {
    1: [(10, 'parameter', '', [], []), (11, 'dot', '', [10], [])],
    2: [(20, 'add', 'a/drafting/add', [], []),
        (21, 'dot', '', [20], []),
        (22, 'dynamic-update-slice', 'a/cache_writes/set', [21], []),
        (23, 'dot', '', [22, 26], []),
        (26, 'multiply', 'a/verification/mul', [], []),
        (24, 'fusion', '', [], [1]),
        (25, 'tanh', 'a/sampling/tanh', [24], []),
        (27, 'iota', 'a/body/iota', [], []),
        (28, 'copy', '', [27], [])],
}


@pytest.mark.parametrize('packed', [False, True])
def test_what_has_no_name_gets_that_of_what_is_near(packed):
  few = lambda x: bytes(x) if packed and x else x
  module = proto(f3=[
      proto(f5=number, f2=[
          proto(f1=f'x{i}', f2=opcode, f7=[proto(f2=scope)] if scope else [],
                f35=i, f36=few(operands), f38=few(called))
          for i, opcode, scope, operands, called in inside])
      for number, inside in NAMELESS.items()])
  found = profiling._of_module(module)
  parts = {name: profiling.part_of(scope)
           for name, (_, scope) in found.items()}
  assert parts == dict(
      x10='sampling', x11='sampling', x20='drafting', x21='drafting',
      x22='cache_writes', x23='verification', x24='sampling', x25='sampling',
      x26='verification', x27='other', x28='other')


def test_xprof_reads_a_trace(traced, tmp_path):
  convert = pytest.importorskip('xprof.convert.raw_to_tool_data')
  path = profiling.newest(traced[1])
  copy = shutil.copy(path, tmp_path)               # xprof writes beside it
  assert 'graph_viewer' in convert.xspace_to_tool_names([copy])
  shown, _ = convert.xspace_to_tool_data([copy], 'trace_viewer@', {})
  names = {event['name'] for event in json.loads(shown)['traceEvents']}
  step = max(profiling.instructions(path).values(), key=len)
  assert len(names & step.keys()) > 20


# Of a TPU: what is in the trace, tf_op, and microseconds of each event.
ON_TPU = [
    ('%while.5 = (s32[], f32[2]{0:T(128)}) while(%tuple.3), condition=%c, '
     'body=%b', 'jit(run)/while:', [1000]),
    ('%closed_call.2 = f32[2]{0} call(%x), to_apply=%f',
     'jit(run)/while/body/drafting/closed_call:', [300]),
    ('%conditional.7', 'jit(run)/while/body/cond:', [200]),
    ('%fusion.3 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} fusion(%x), kind=kLoop, '
     'calls=%call', 'jit(run)/while/body/drafting/mlp/dot_general:', [40, 2]),
    ('%call.4 = f32[2]{0} custom-call(%x), custom_call_target="x"',
     'jit(run)/while/body/verification/dot_general:', [100]),
    ('fusion.3', 'jit(run)/while/body/sampling/argmax:', [7, 7]),
    ('%dynamic-update-slice.1 = f32[2]{0} dynamic-update-slice(%x, %y)',
     'jit(run)/while/body/drafting/cache_writes/set:', [3]),
    ('%copy.1 = f32[2]{0} copy(%x)', None, [1])]


def on_tpu(plane):
  """A plane with ON_TPU, beside lines that have the same time again."""
  stats, events, metadata = {9: 'tf_op', 10: 'hlo_category'}, [], []
  category = proto(f1=10, f5='loop fusion')
  for i, (name, scope, times) in enumerate(ON_TPU, 1):
    # A text may stand in a statistic, or once for all of them.
    text = proto(f1=9, f7=100 + i) if i % 2 else proto(f1=9, f5=scope or '')
    stats |= {100 + i: scope} if scope else {}
    metadata.append(proto(f1=i, f2=proto(
        f1=i, f2=name, f4='fusion.3',
        f5=[category, text] if scope else [category])))
    events += [proto(f1=i, f2=1, f3=10**6 * x) for x in times]
  lines = [proto(f1=1, f2=name, f4=events) for name in (
      'XLA Modules', 'XLA Ops', 'Async XLA Ops')]
  return proto(f2=plane, f3=lines, f4=metadata, f5=[
      proto(f1=i, f2=proto(f1=i, f2=x)) for i, x in stats.items()])


def test_a_tpu_has_the_names_in_the_metadata_of_its_events(tmp_path):
  path = tmp_path / 'x.xplane.pb'
  path.write_bytes(proto(f1=[on_tpu('/device:TPU:0'), on_tpu('/device:TPU:1'),
                             on_tpu('/device:CUSTOM:Megascale Trace')]))
  # As JAX reads it: names and times are there, and not a word of the scopes.
  plane = jax.profiler.ProfileData.from_file(str(path)).find_plane_with_name(
      '/device:TPU:0')
  read = [(x.name, x.duration_ns, list(x.stats))
          for line in plane.lines if line.name == 'XLA Ops'
          for x in line.events]
  assert read == [(name, 1e3 * x, []) for name, _, times in ON_TPU
                  for x in times]
  spent = profiling.seconds(path)
  assert {name: 1e6 * x for name, x in spent.items()} == pytest.approx(dict(
      drafting=84, verification=200, sampling=28, cache_writes=6, other=2))
  assert profiling.summary(spent)[3].split() == [
      'verification', '0.20', '62.5%']


@pytest.mark.parametrize('scope,part', [
    ('jit(run)/while/body/drafting/mlp/dot_general', 'drafting'),
    ('jit(run)/while/body/drafting/jit(x)/cache_writes/scatter',
     'cache_writes'),
    ('drafting:', 'drafting'), ('jit(run)/while/body/add', 'other'),
    ('', 'other')])
def test_the_innermost_name_counts(scope, part):
  assert profiling.part_of(scope) == part


def test_a_trace_of_nothing_says_so(tmp_path):
  assert profiling.summary({}) == ['The trace has no operation of a device.']
  with pytest.raises(ValueError, match='No trace under'):
    profiling.newest(tmp_path)
  (tmp_path / 'file').write_text(json.dumps(1))
  with pytest.raises(ValueError, match='No trace can be written'):
    with profiling.traced(str(tmp_path / 'file')):
      pass
  with profiling.traced(None):
    pass
