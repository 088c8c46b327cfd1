"""Decoding, compiled for four TPU v4 chips that are not there."""
import dataclasses
import importlib.util
import math
import pathlib

import jax
import jax.numpy as jnp
import pytest

from spec_cascades.evaluation import chips, faults, hlo, roofline, tpu

CASE = tpu.Case('t5_1_1_base', 't5_1_1_small', gamma=3, prompt=32,
                new_tokens=16, layers=1)
compiles = pytest.mark.skipif(
    importlib.util.find_spec('libtpu') is None,
    reason='needs requirements-compile.txt: libtpu, 200 MB')


def test_the_requirements_have_the_libtpu_that_is_asked_for():
  root = pathlib.Path(__file__).resolve().parents[2]
  lines = (root / 'requirements-compile.txt').read_text().splitlines()
  assert f'libtpu=={tpu.LIBTPU}' in lines and '-r requirements.txt' in lines
  assert compiles.kwargs['reason'].startswith('needs requirements-compile.txt')


@pytest.fixture(scope='module')
def programs():
  return tpu.Programs(CASE, tpu.devices(chips.topology('v4-8')))


def held(tree):
  """Bytes of arrays on one chip."""
  return sum(x.dtype.itemsize * math.prod(x.sharding.shard_shape(x.shape))
             for x in jax.tree.leaves(tree))


@compiles
def test_libtpu_makes_every_slice_that_is_offered():
  """And a program for all of its chips."""
  for kind, chip in chips.CHIPS.items():
    for number, shape in chip.shapes.items():
      there = tpu.devices(chips.Topology(kind, shape))
      assert len(there) == number, (kind, number)
      mesh = jax.sharding.Mesh(list(there), ('x',))
      cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('x'))
      one = jax.ShapeDtypeStruct((number, 8), jnp.float32, sharding=cut)
      text = jax.jit(lambda x: x.sum(0)).lower(one).compile().as_text()
      assert 'all-reduce' in text, (kind, number)


@compiles
def test_the_loop_exchanges_what_it_must_and_copies_no_cache(programs):
  state = programs.state()
  found, caches = programs.loop(), (state.cache, state.drafter)
  loop = faults.loop_of(found.text)
  expected = lambda x: x.kind in ('all-reduce', 'all-gather') and x.group == 4
  assert faults.lines(loop, caches, expected) == []
  # Self-attention, cross-attention, MLP and embedding in bfloat16, logits in
  # float32, of 4 nodes; the drafter lies whole on every chip.
  assert hlo.totals(loop) == {'all-reduce': (4, 4 * 4 * 768 * 2),
                              'all-gather': (1, 4 * 32_128 * 4)}
  assert programs.faults(found) == []
  # The controls: nothing allowed, and another layout's exchanges.
  whole = tpu.Programs(dataclasses.replace(CASE, rules='data'),
                       tpu.devices(chips.topology('v4-8')))
  assert len(whole.faults(found)) == 5
  assert len(faults.lines(loop, caches, lambda x: False)) == 5


@compiles
def test_a_block_copies_no_cache():
  case = dataclasses.replace(CASE, batch=4, data=4)
  programs = tpu.Programs(case, tpu.devices(chips.topology('v4-8')))
  text = programs.block(4).text
  program = hlo.parse(text)
  cache = programs.cache(programs.verifier, programs.params, 4)
  every = list(program.reach([program.entry]))
  assert faults.lines(every, cache, lambda x: False) == []


@compiles
@pytest.mark.slow
@pytest.mark.parametrize('batch,data', [(4, 1), (16, 4)])
def test_a_loop_over_several_rows_a_chip_copies_no_cache(batch, data):
  case = dataclasses.replace(CASE, batch=batch, data=data)
  programs = tpu.Programs(case, tpu.devices(chips.topology('v4-8')))
  state = programs.state()
  loop = faults.loop_of(programs.loop().text)
  caches = state.cache, state.drafter
  assert faults.lines(loop, caches, lambda x: True) == []


@compiles
@pytest.mark.parametrize('uses_q', [False, True])
def test_a_round_counts_the_calls_of_a_cut_drafter(uses_q):
  case = dataclasses.replace(CASE, verifier='t5_1_1_large', uses_q=uses_q,
                             drafter='t5_1_1_base', drafter_rules='tensor')
  programs = tpu.Programs(case, tpu.devices(chips.topology('v4-8')))
  found = programs.round().work.collectives
  # A verification and gamma = 3 calls of the drafter, a fourth for q: of each
  # three sums for its only layer, one for embeddings, and a gather of logits,
  # which of a single node the compiler makes a sum.
  assert sum(x.times for x in found) == 5 * (4 + uses_q)


@compiles
def test_a_round_takes_over_the_caches(programs):
  found, state = programs.round(), programs.state()
  caches = held((state.cache.layers, state.drafter.layers))
  assert caches <= found.donated <= found.arguments
  assert found.total < chips.CHIPS['v4'].hbm / 100


@compiles
def test_a_drafter_step_reads_its_weights_and_no_more(programs):
  found = programs.draft()
  params = programs.draft_params
  table = held(params['token_embedder'])
  weights = held(params['decoder'])
  # Cross-attention's own keys and values are made by the prefill.
  assert .95 * weights < found.work.nbytes < 1.1 * weights
  assert found.arguments > .95 * weights + table
  assert not found.work.collectives
  assert found.work.flops > .95 * weights      # 2 a weight, of 2 bytes


@compiles
def test_sampling_reads_all_logits_and_exchanges_nothing(programs):
  found = programs.judging()
  logits = 2 * 4 * programs.verifier.vocab_size * 4      # q and p, 4 nodes
  assert found.arguments > .99 * logits and found.counted > logits
  assert not found.work.collectives
  alone = programs.sampling()
  assert 8 * alone.arguments < 1.01 * found.arguments   # p of one node
  assert alone.counted < found.counted / 4 and not alone.work.collectives


@compiles
def test_an_estimate_of_the_compiler_is_sane_or_left_out(programs):
  assert programs.draft().optimal >= 0           # it says -1 of some programs
  block = programs.block(8)
  seconds = block.work.seconds(chips.CHIPS['v4'])
  assert seconds / 100 < block.optimal < 100 * seconds


@pytest.mark.parametrize('own,before,want', [
    (2., 0., True), (1., 0., True), (.9, 0., False), (0., 0., False),
    (2., 1.9, True), (2., 2.1, False)])
def test_nothing_is_faster_than_the_roofline_or_a_narrower_block(
    own, before, want):
  chip = chips.CHIPS['v5p']
  made = lambda optimal: tpu.Compiled(
      'step', 0., work=chips.Work(0., chip.bandwidth), optimal=optimal)
  assert roofline.sane(made(own), chip) == want or before
  assert roofline.sane(made(own), chip, before=made(before)) == want


def test_a_long_prompt_is_counted_by_its_blocks():
  """XLA counts the loop over whole blocks once; a CPU will do."""
  case = tpu.Case('smollm2_360m', 'smollm2_135m', gamma=2, prompt=1537,
                  new_tokens=16, layers=3)
  programs = tpu.Programs(case, jax.devices()[:1])
  reading = programs.reading()
  assert [times for _, times in reading] == [3, 3]
  least = most = 0
  for model, params in ((programs.verifier, programs.params),
                        (programs.drafter, programs.draft_params)):
    weights = sum(x.size for x in jax.tree.leaves(params['decoder']))
    config = model.config
    slots = case.prompt + case.new_tokens + 512
    attended = 4 * 3 * config.num_heads * config.head_dim * slots
    # Of the last layer only keys and values are needed.
    least += 2 * weights * 2 / 3 * 1536
    most += (2 * weights + attended) * 1536
  found = sum(times * x.work.flops for x, times in reading)
  assert least < found < most
  # The control: what the whole program says.
  once = programs.prefill().work.flops
  assert once < least and found == pytest.approx(3 * once, rel=.1)
  short = dataclasses.replace(case, prompt=64)
  (alone, times), = tpu.Programs(short, jax.devices()[:1]).reading()
  assert alone.name == 'prefill' and times == 1


@compiles
def test_what_does_not_fit_is_said(programs):
  many = tpu.Programs(tpu.Case(
      't5_1_1_base', 't5_1_1_small', batch=2**15, prompt=512, new_tokens=512,
      layers=1), tpu.devices(chips.topology('v4-8')))
  found = many.draft()
  assert found.excess.startswith('needs ') and not found.text


def test_what_the_compiler_refuses_is_one_line():
  class Refused:
    def lower(self):
      raise jax.errors.JaxRuntimeError('INTERNAL: no\n  such   layout')
  with pytest.raises(ValueError) as error:
    tpu.Programs._compile(None, 'one round', Refused())
  assert str(error.value) == ('one round does not compile: INTERNAL: no such '
                              'layout')


def test_times_of_steps_become_a_plan():
  chip = chips.Chip(flops=1e3, hbm=0, bandwidth=1., link=1., shapes={})
  step = lambda name, nbytes: tpu.Compiled(name, 0, work=chips.Work(1, nbytes))
  found = roofline.estimate(step('draft', 1), {
      1: step('1', 10), 2: step('2', 10), 8: step('8', 16)}, chip)
  assert found.cost == .1 and found.flatness(8) == 1.6
  assert found.flatness(5) == pytest.approx(1.3)
  plan = found.plan([1., 1., 0.], uses_q=False)
  # Three tokens in 10 + 1 + 2 seconds, a verifier's token in 10.
  assert plan.gamma == 2 and plan.speedup == pytest.approx(30 / 13)
  assert found.plan([.5], uses_q=True).max_gamma == 7
  # A second for each of three nodes, and two for the verifier's own token.
  drawn = dataclasses.replace(found, sampling=2., judging=1.)
  plan = drawn.plan([1., 1., 0.], uses_q=False)
  assert plan.gamma == 2 and plan.speedup == pytest.approx(3 * 12 / 16)


@pytest.mark.parametrize('change,what', [
    (dict(verifier='t5_huge'), 'Unknown preset'),
    (dict(drafter='gemma2_2b'), 'do not go together'),
    (dict(drafter='mt5_small'), 'do not go together'),
    (dict(gamma=0), '1 or more'), (dict(layers=0), '1 or more'),
    (dict(dtype='int8'), 'float32, bfloat16'), (dict(data=4), 'a multiple')])
def test_cases_that_cannot_be_are_refused(change, what):
  given = dict(verifier='t5_1_1_base', drafter='t5_1_1_small', batch=2)
  with pytest.raises(ValueError, match=what) as error:
    tpu.Case(**{**given, **change}).models()
  assert '\n' not in str(error.value)


def test_four_chips_are_not_three_groups():
  with pytest.raises(ValueError, match='what divides 4'):
    tpu.Programs(tpu.Case('t5_1_1_base', 't5_1_1_small', batch=3, data=3),
                 range(4))
