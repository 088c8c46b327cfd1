"""Decoding on meshes of 8 devices: as on one device, and no reshuffling.

Where only rows are cut, tokens and statistics are those of one device that
decodes as many rows at a time, to the bit, if it computes its products as the
mesh does. With kernels of our own, which are for one device, it gets the same
tokens and counts. Sums that several devices share are rounded in another order,
so that rows may differ where something tipped by less than 1e-4 (see
tests/models/margins_test). The decoding runs in a process of its own, where the
CPU counts as 8 devices, or in several.
"""
import dataclasses
import functools
import itertools
import json
import sys

from flax import traverse_util
import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import processes
from spec_cascades import decode, fetching, sharding, targets
from spec_cascades import warp as warp_lib
from spec_cascades.drafters.chain import Chain
from spec_cascades.evaluation import hlo
from spec_cascades.evaluation import rules as rules_lib
from spec_cascades.models import gemma, products, t5
from tests.common import keys, select
from tests.models import margins_test, tiny

ROWS, LENGTH = 16, 32
SLOTS = LENGTH + margins_test.GAMMA + 1
# Sizes that 8 devices divide, but for Gemma's two key heads.
_sizes = dict(vocab_size=32, num_heads=8, mlp_dim=32)
LMS = dict(
    t5=t5.T5(dataclasses.replace(tiny.LMS['t5_1_1'].config, **_sizes)),
    t5_tied=t5.T5(dataclasses.replace(tiny.LMS['t5_1_0'].config, **_sizes)),
    gemma=gemma.Gemma(dataclasses.replace(
        tiny.LMS['gemma2'].config, **_sizes)),
    llama=gemma.Gemma(dataclasses.replace(
        tiny.LMS['llama3'].config, **_sizes)))
RULES = dict(lossless=(targets.Lossless(), 1.), greedy=(targets.Lossless(), 0.),
             ensemble=(targets.Ensemble(.4), 1.), chow=(targets.Chow(.3), 1.),
             token=(targets.TokenV3(.4), 1.),
             choice=(targets.Choice((targets.Chow(.3), targets.Diff(.2)),
                                    jnp.int32(1)), 1.),
             **{name: (rule(), 1.) for name, rule in rules_lib.RULES.items()})
# Model, (data, model), the verifier's layout, the drafter's, and the rule.
FAST = [('t5', (2, 4), 'tensor', 'data', 'ensemble')]
MESHES = (2, 4), (4, 2), (8, 1), (1, 8)
ALONE = (1, 1)                       # one device, with the products of a mesh
_PAIRS = itertools.cycle([('data', 'greedy'), ('tensor', 'chow'),
                          ('data', 'token')])
SLOW = [
    ('gemma', (4, 2), 'data', 'data', 'lossless'),
    ('gemma', (8, 1), 'data', 'data', 'ensemble'),
    ('t5', (8, 1), 'data', 'data', 'lossless'),
    *((name, shape, 'tensor', *next(_PAIRS))
      for name in ('t5', 'gemma') for shape in MESHES),
    *((name, (4, 2), 'fsdp', 'data', 'ensemble') for name in LMS),
    *((name, (2, 4), 'tensor', 'fsdp', 'lossless')
      for name in ('t5_tied', 'llama'))]
# Each with every rule of the package.
LAYOUTS = [
    ('t5', (2, 4), 'tensor', 'data'), ('gemma', (2, 4), 'tensor', 'tensor'),
    ('t5', (8, 1), 'data', 'data'), ('gemma', (8, 1), 'data', 'data'),
    ('t5', (4, 2), 'tensor', 'tensor'), ('gemma', (4, 2), 'tensor', 'data'),
    ('t5', (1, 8), 'tensor', 'tensor'), ('gemma', (1, 8), 'tensor', 'data')]
EVERY = [(*layout, rule) for rule in (*rules_lib.RULES, 'choice')
         for layout in LAYOUTS]
# Of the devices of several processes.
ACROSS = [('t5', (2, 4), 'tensor', 'data', 'ensemble'),
          ('t5', (8, 1), 'data', 'data', 'lossless'),
          ('t5', (1, 8), 'tensor', 'tensor', 'greedy'),
          ('gemma', (1, 8), 'tensor', 'data', 'chow'),
          ('gemma', (4, 2), 'fsdp', 'data', 'ensemble')]
# Searches for a beta, which go on until every row has its own.
SEARCHES = dict(LossyBeta=1, LossyBudget=3)


def made(name, shape, own, drafters):
  """Specification and parameters on a mesh; on one device without a shape."""
  lm = LMS[name]
  plain = tiny.params_of(lm)
  wrap = lambda lm, rules: lm
  if shape:
    devices = jax.local_devices()[:1] if shape == ALONE else None
    mesh = sharding.mesh(*shape, devices)
    wrap = lambda lm, rules: sharding.Sharded(lm, sharding.Layout(mesh, rules))
  p, q = wrap(lm, own), wrap(lm, drafters)
  spec = decode.GenSpecSample(p, Chain(q, margins_test.GAMMA), LENGTH, eos=-1)
  return spec, p.pack(plain), q.pack(margins_test.shaken(plain, .3))


def given(name, rule):
  """Rows of different lengths, their keys, the rule and the warp."""
  target, temperature = RULES[rule]
  prompt = select(margins_test.prompts(LMS[name]),
                  jnp.arange(ROWS) % margins_test.ROWS)
  return prompt, keys(ROWS), target, warp_lib.Warp(jnp.float32(temperature))


def margins(one, many, rule):
  """How near what tipped was, of rows that differ."""
  target, temperature = RULES[rule]
  one, many = (margins_test.rounds_of(*x) for x in (one, many))
  found = [margins_test.first_margin(
      one, (many, i), i, keys(ROWS)[i], target, temperature)
           for i in range(ROWS)]
  return [float(x) for x in found if x is not None]


def by_rows(shape, own, drafters):
  """Whether every device computes what one device would, of its rows."""
  return shape[1] == 1 or own == drafters == 'data'


def on_one(spec, params, draft_params, prompt, row_keys, *rest, groups):
  """Tokens and counters, decoded in so many groups, one after the other."""
  parts = []
  for rows in np.split(np.arange(ROWS), groups):
    state = decode.run(spec, params, draft_params,
                       *select((prompt, row_keys), rows), *rest)
    parts.append(jax.tree.leaves((state.tokens, state.stats)))
  return [np.concatenate(x) for x in zip(*parts)]


def decoded(name, shape, own, drafters, rule):
  """A case on the mesh and on one device, and the loop that was compiled."""
  alone = *made(name, None, own, drafters), *given(name, rule)
  whole = by_rows(shape, own, drafters)
  spec, *params = made(name, shape, own, drafters)
  spread = (spec, *params, *spec.lm.layout.rows(given(name, rule)))
  program = decode.run.lower(*spread).compile()
  many = program(*spread)
  got = jax.tree.leaves(fetching.get((many.tokens, many.stats)))

  def apart(one, far):
    """Rows that differ; `deferred`, a sum of fractions, by more than `far`."""
    near = lambda x: far * np.issubdtype(x.dtype, np.floating)
    return np.any([(np.abs(a - b) > near(a)).reshape(ROWS, -1).any(1)
                   for a, b in zip(one, got)], 0)

  one = on_one(*alone, groups=shape[0] if whole else 1)
  far = apart(one, 1e-5 if whole else 1e-4)
  if whole:
    alike = *made(name, ALONE, own, drafters), *alone[3:]
    far |= apart(on_one(*alike, groups=shape[0]), 0)
  slots = [x for y in (many.cache, many.drafter) for x in jax.tree.leaves(y)]
  return dict(
      apart=int(far.sum()), rounds=int(many.stats.rounds.max()),
      shards=[x.sharding.shard_shape(x.shape) for x in (
          many.tokens, many.cache.layers[0][0], many.drafter.layers[0][0])],
      margins=margins(alone, spread, rule) if far.any() else [],
      **inspected(program.as_text(), slots))


def inspected(text, slots):
  """What the decode loop of a program does besides arithmetic."""
  program = hlo.parse(text)
  loop = max((program.inside(x) for x in program.loops), key=len)
  types = {f'f32[{",".join(map(str, x.sharding.shard_shape(x.shape)))}]'
           for x in slots if x.ndim == 4}
  return dict(
      collectives=[(x.kind, x.nbytes, x.group) for x in hlo.collectives(loop)],
      host=[x.line for x in hlo.host_transfers(loop)],
      copies=[x.line for x in hlo.copies(loop, types)])


def aliased():
  """Bytes of caches on a device, and those that a round takes over."""
  name, shape, *layouts, rule = FAST[0]
  spec, *params = made(name, shape, *layouts)
  prompt, row_keys, target, warp = spec.lm.layout.rows(given(name, rule))
  state = decode._init(spec, *params, prompt, row_keys)
  held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(
      (state.cache.layers, state.drafter.layers)))
  step = decode._step.lower(spec, *params, target, warp, state).compile()
  memory = step.memory_analysis()
  return dict(held=held, kept=memory.alias_size_in_bytes,
              temporary=memory.temp_size_in_bytes)


def main():
  cases = json.loads(sys.argv[1])
  found = [decoded(name, tuple(shape), *rest) for name, shape, *rest in cases]
  print(json.dumps(dict(found=found, aliased=aliased())))


MAIN = '''
from spec_cascades import hosts
hosts.start(mesh=8)                  # before anything is put on a device
from tests import sharding_test
sharding_test.main()
'''


def run(cases, count=1):
  """On 8 devices, of one process or of several together: what each found."""
  found = processes.finish(processes.start(
      count, '-c', MAIN, json.dumps(cases), devices=8 // count))
  return [json.loads(out.splitlines()[-1]) for out, _ in found]


@pytest.fixture(scope='module')
def fast():
  return run(FAST)[0]


@functools.cache
def of_slow(part):
  """What was found of six cases of `SLOW`, in a process of their own."""
  return run(SLOW[6 * part:6 * (part + 1)])[0]['found']


@functools.cache
def of_rule(rule):
  """What was found of its cases of `EVERY`, in a process of their own."""
  cases = [case for case in EVERY if case[-1] == rule]
  return dict(zip(cases, run(cases)[0]['found'], strict=True))


def layers_of(lm):
  """Sums that a step shares where everything is cut: two or three a layer."""
  return (3 * lm.config.num_decoder_layers if isinstance(lm, t5.T5)
          else 2 * lm.config.num_layers)


def check(case, got):
  """Rows agree or nearly tie; the loop does what its layout asks for."""
  name, (data, model), own, drafters, rule = case
  print(f'{case}: {got["apart"]} rows of {ROWS} differ, margins '
        f'{got["margins"]}')
  assert got['rounds'] > 5 and len(got['margins']) == got['apart']
  assert all(x < margins_test.NEAR for x in got['margins'])
  assert not (by_rows((data, model), own, drafters) and got['apart'])
  assert not got['host'] and not got['copies']
  stop, rest = [], []
  for x in got['collectives']:
    (stop if x[0] == 'all-reduce' and x[1] == 1 else rest).append(x)
  assert len(stop) == (data > 1) * (1 + SEARCHES.get(rule, 0))
  lm, rows, want = LMS[name], ROWS // data, {}
  calls = [(own, margins_test.GAMMA + 1, margins_test.GAMMA + 1),
           (drafters, 1, 1)]
  if not RULES[rule][0].uses_q:        # and one that reads two, ahead of a loop
    calls.append((drafters, 2, 1))
  for rules, read, scored in calls:
    if rules == 'data' or model == 1:
      continue
    for kind, n, nodes, width in (
        ('all-reduce', layers_of(lm) + 1, read, lm.config.emb_dim),
        ('all-gather', 1, scored, lm.config.vocab_size)):
      each = np.array((n, n * 4 * rows * nodes * width))
      want[kind] = want.get(kind, 0) + each
  if 'fsdp' in (own, drafters):        # weights are gathered, too
    assert {x[0] for x in rest} == {'all-reduce', 'all-gather'}
    return
  found = {kind: (sum(x[0] == kind for x in rest),
                  sum(x[1] for x in rest if x[0] == kind))
           for kind in {x[0] for x in rest}}
  assert found.keys() == want.keys()
  for kind, (number, nbytes) in found.items():      # some may be combined
    assert number <= want[kind][0] and nbytes == want[kind][1], kind
  assert all(x[2] == model for x in rest)


@pytest.mark.parametrize('i', range(len(FAST)), ids=lambda i: '-'.join(
    map(str, FAST[i])))
def test_meshes_decode_as_one_device(fast, i):
  check(FAST[i], fast['found'][i])


@pytest.mark.slow
@pytest.mark.parametrize('i', range(len(SLOW)), ids=lambda i: '-'.join(
    map(str, SLOW[i])))
def test_more_meshes_decode_as_one_device(i):
  check(SLOW[i], of_slow(i // 6)[i % 6])


@pytest.mark.slow
@pytest.mark.parametrize('case', EVERY, ids=lambda case: '-'.join(
    map(str, case)))
def test_every_rule_decodes_as_on_one_device(case):
  check(case, of_rule(case[-1])[case])


@pytest.mark.slow
@pytest.mark.parametrize('count', [2, 4])
def test_a_mesh_of_several_processes_decodes_as_one_device(count):
  """All of them see the same, in the arrays and in the programs."""
  each = run(ACROSS, count)
  assert len(each) == count
  for found in each:
    for case, got in zip(ACROSS, found['found'], strict=True):
      check(case, got)
    assert 0 < found['aliased']['held'] <= found['aliased']['kept']


def test_layouts_cut_what_they_say(fast):
  shards, = (x['shards'] for x in fast['found'])
  assert shards == [[8, LENGTH], [8, 2, SLOTS, 32], [8, 8, SLOTS, 32]]


@pytest.mark.slow
def test_layouts_leave_whole_what_devices_do_not_divide():
  assert of_slow(0)[0]['shards'] == [[4, LENGTH], *[[4, 2, SLOTS, 6]] * 2]


def test_a_round_takes_over_the_caches(fast):
  found = fast['aliased']
  print(found)
  assert 0 < found['held'] <= found['kept']


MESH = jax.sharding.AbstractMesh((2, 4), sharding.AXES)


@pytest.mark.parametrize('name', [*tiny.LMS, *LMS])
def test_parameters_have_the_axes_that_the_modules_say(name):
  """linen's own names, of which 'joined_kv' may be heads of either kind."""
  lm = {**tiny.LMS, **LMS}[name]
  token = (jnp.ones((1, 1), jnp.int32),) * (1 + isinstance(lm, t5.T5))
  for path, (shape, axes) in tiny.layout(lm, *token).items():
    named = [x for x in reversed(path.split('/')) if x in sharding.PARAMETERS]
    ours = sharding.PARAMETERS[named[0]] if named else (None,) * len(shape)
    same = {'joined_kv': ('heads', 'kv_heads'), 'embed': ('embed', 'table')}
    for mine, theirs in zip(ours, axes, strict=True):
      assert mine in same.get(theirs, (theirs,)) or (
          mine is None and (len(axes) == 1 or theirs == 'relpos_buckets')
      ), path


@pytest.mark.parametrize('name', LMS)
@pytest.mark.parametrize('rules', sharding.RULES)
def test_every_matrix_is_cut_in_both_layouts(name, rules):
  lm, layout = LMS[name], sharding.Layout(MESH, rules)
  plain = jax.eval_shape(lm.init_params, jax.random.key(0))
  model = sharding.Sharded(lm, layout)
  assert model.joined == (rules == 'data')
  packed = jax.eval_shape(functools.partial(
      products.pack, joined=model.joined, cut=True,
      tied=lm.config.logits_via_embedding), plain)
  for tree in (plain, packed):
    shardings = layout.parameters(tree, lm.config)
    assert jax.tree.structure(shardings) == jax.tree.structure(tree)
    flat = zip(jax.tree_util.tree_leaves_with_path(tree),
               jax.tree.leaves(shardings))
    for (path, x), found in flat:
      parts = x.size // np.prod(found.shard_shape(x.shape))
      wide = dict(data=1, tensor=4, fsdp=8)[rules]
      text = jax.tree_util.keystr(path)
      if x.ndim < 2 or 'key' in text or 'value' in text:
        # Two key heads are not cut into four.
        assert parts in (1, wide // 4, wide), text
      elif 'embedding' in text:
        assert parts == (1 if rules == 'data' else 4), text
      else:
        assert parts == wide, text


def test_checkpoints_are_asked_for_by_name():
  lm, layout = LMS['t5'], sharding.Layout(MESH, 'fsdp')
  plain = jax.eval_shape(lm.init_params, jax.random.key(0))
  by_name = traverse_util.flatten_dict(plain, sep='/')
  tree = traverse_util.flatten_dict(
      layout.parameters(plain, lm.config), sep='/')
  for name, x in by_name.items():
    assert layout.parameter(name, x.shape, lm.config) == tree[name]


def test_gin_makes_meshes_and_layouts():
  with gin.unlock_config():
    gin.clear_config()
    gin.parse_config('''
from __gin__ import dynamic_registration
from spec_cascades import sharding
sharding.mesh.model = 1
sharding.Layout.mesh = @sharding.mesh()
sharding.Layout.rules = 'fsdp'
''')
    made = gin.get_configurable(sharding.Layout)()
    gin.clear_config()
  assert isinstance(made, sharding.Layout) and made.rules[-1] == (
      'embed', 'data')
  assert dict(made.mesh.shape) == dict(data=len(jax.devices()), model=1)


@pytest.mark.parametrize('call,what', [
    (lambda: sharding.mesh(3, 2, range(8)), 'product'),
    (lambda: sharding.mesh(0, 8, range(8)), '1 or more'),
    (lambda: sharding.Layout(MESH, 'pipeline'), 'data, tensor, fsdp'),
    (lambda: sharding.Layout(MESH, (('layers', 'data'),)), 'kv_heads'),
    (lambda: sharding.Layout(MESH, (('mlp', 'rows'),)), 'data, model'),
    (lambda: sharding.Layout(MESH, 'data').rows(jnp.zeros(7)), '7 rows')])
def test_bad_input_is_refused(call, what):
  with pytest.raises(ValueError, match=what) as error:
    call()
  assert '\n' not in str(error.value)
