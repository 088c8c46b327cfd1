"""Training on meshes of 8 devices is training on one.

It runs in a process of its own, where the CPU counts as 8 devices. Losses and
parameters agree with those of one device to 1e-5 of their size: sums over
devices are float32 sums in another order.
"""
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tinypair
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import text
from spec_cascades.models import gemma
from spec_cascades.models import heads
from spec_cascades.models import t5
from spec_cascades.training import ahead
from spec_cascades.training import data
from spec_cascades.training import distill
from spec_cascades.training import loop
from spec_cascades.training import optimizers
from spec_cascades.training import policies
from spec_cascades.training import progress
from spec_cascades.training import sharding
from spec_cascades.training import start
from spec_cascades.training import steps as steps_lib
from spec_cascades.training import train_step
from tests.models import tiny
from training.data_test import write_corpus
from training.runs import SIZES, recipe

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = '--xla_force_host_platform_device_count=8'
ONE, OURS = (1, 1), (2, 4)
FSDP = dict(mesh=OURS, rules='fsdp')
NEAR = 1e-5
# Logical axes of the modules, as T5X calls them, that lie on `model`; and on
# `data` where all is cut, but for the width of a table of embeddings.
CUT, WIDTH, TABLE = ('vocab', 'mlp', 'heads', 'joined_kv'), 'embed', 'embedding'
T5 = t5.T5(t5.T5Config(**{**SIZES, 'num_heads': 8, 'head_dim': 2}))
# Keys and values of one head: they are not cut.
GEMMA = gemma.Gemma(dataclasses.replace(
    tiny.LMS['gemma3'].config, vocab_size=tinypair.PIECES, num_heads=8,
    num_kv_heads=1, head_dim=8, num_layers=1, windows=(0,)))


def run_of(directory, mesh, lm=T5, rules='tensor', **changes):
  """Of texts in `directory`; 10 rows a batch, which 8 does not divide."""
  words = text.Vocabulary(str(directory / f'{tinypair.PIECES}.model'))
  corpus = data.ParallelText(str(directory), words, buckets=(48,),
                             tokens_per_batch=480, packed=True)
  numbers = recipe(**{**dict(steps=6, save_every=2, eval_every=9, log_every=1,
                             eval_sentences=1, eval_batch=1, max_length=3),
                      **changes})
  return loop.Run(lm, corpus, str(directory / 'run'), numbers, mesh=mesh,
                  rules=rules, optimizer=optimizers.adamw)


def steps_of(run, count=3):
  """Losses of the first steps, and the state behind them."""
  update = train_step.Update(run.lm, run.optimizer(.01))
  state = sharding.place(
      run.lm, update.init(run.lm.init_params(jax.random.key(0))),
      sharding.layout(run.mesh, run.lm, rules=run.rules))
  folder, found = pathlib.Path(run.model_dir), []
  folder.mkdir(exist_ok=True)
  with progress.Progress(folder, [].append, total=9, tensorboard=False) as said:
    steps = steps_lib.Steps(run, update, state, None, said,
                            steps_lib.Offline(run, update))
    said.add = lambda at, metrics, *rest: found.append(float(metrics['loss']))
    for _ in range(count):
      steps.advance()
    steps.settle()
  return found, steps.state


def laid(state):
  """How each parameter, and what AdamW keeps for it, is cut up."""
  out = {}
  for path, x in jax.tree_util.tree_leaves_with_path(state):
    shard, = {s.data.shape for s in x.addressable_shards}
    spec = [str(axis) for axis in x.sharding.spec]
    out[optimizers.name(path)] = (list(x.shape), list(shard), spec)
  return out


def apart(some, others):
  """The largest difference of two trees, relative to their largest entry."""
  some, others = (jax.tree.map(np.asarray, x) for x in (some, others))
  scale = max(np.abs(x).max() for x in jax.tree.leaves(some))
  return float(max(jax.tree.leaves(jax.tree.map(
      lambda a, b: np.abs(a - b).max() / scale, some, others))))


class Killed(Exception):
  pass


def broken_off(directory, before, then):
  """Dies in step 4, behind a checkpoint; the same call goes on, or `then`."""
  def dies(line):
    if line.startswith('step 4/'):
      raise Killed
  try:
    loop.train(run_of(directory, **before), log=dies)
  except Killed:
    lines = []
    state = loop.train(run_of(directory, **then), log=lines.append)
    return lines[0], state
  return 'was not killed', None


def resumed(directory):
  """A whole run, one that died, and those that went on otherwise."""
  ours, one = dict(mesh=OURS), dict(mesh=ONE)
  places = [directory / name for name in ('whole', 'same', 'a', 'b', 'c')]
  for place in places:
    place.mkdir()
    for path in directory.glob('*.*'):
      (place / path.name).symlink_to(path)
  begun, init = [], train_step.Update.init

  def noted(self, params):
    begun.append(laid(params))
    return init(self, params)
  with mock.patch.object(train_step.Update, 'init', noted):
    want = loop.train(run_of(places[0], **ours), log=lambda line: None)
  said, same = broken_off(places[1], ours, ours)
  equal = jax.tree.map(lambda a, b: bool(
      (np.asarray(a) == np.asarray(b)).all()), want, same)
  others = [broken_off(*x) for x in zip(
      places[2:], (one, FSDP, ours), (ours, ours, FSDP))]
  return dict(said=[said, *(told for told, _ in others)],
              bitwise=all(jax.tree.leaves(equal)),
              laid=[laid(x) == laid(want) for x in (
                  same, *(other for _, other in others))],
              fsdp=laid(others[-1][1]), begun=begun == [laid(want.params)],
              others=[apart(want.params, x.params) for _, x in others],
              read=apart(want.params, start.restore(places[1] / 'run')[0]))


def refused(directory):
  """What is said of meshes that can't be, before a model is made."""
  out = []
  for mesh, lm, rules in (
      ((3, 4), T5, 'fsdp'), ((1, 0), T5, 'data'), ((8,), T5, 'tensor'),
      ((2, 3), T5, 'fsdp'), ((1, 5), GEMMA, 'tensor'), (OURS, T5, 'zero'),
      (OURS, T5, ['fsdp'])):
    try:
      loop.train(run_of(directory, mesh, lm, rules))
    except ValueError as error:
      out.append(str(error))
  return out


def stepped(directory, lm, *places):
  """Losses on each mesh, how far parameters are apart, and how they lie."""
  found = [steps_of(run_of(directory, lm=lm, **place))
           for place in (dict(mesh=ONE), *places)]
  return dict(losses=[losses for losses, _ in found],
              apart=[apart(found[0][1].params, x.params) for _, x in found],
              laid=[laid(x) for _, x in found])


def written(directory):
  """Corpora that a verifier writes, alone, with a drafter, with guesses."""
  verifier = str(tinypair.write(
      directory / 'verifier', directory / f'{tinypair.PIECES}.model', 0,
      scale=4.0))
  corpus, out = run_of(directory, ONE).corpus, []
  for name, more in (('alone', {}), ('drafted', dict(drafter=verifier)),
                     ('guessed', dict(guesses=3))):
    texts = []
    for mesh in (meshes.Mesh(), meshes.Mesh(3, 2)):
      place = directory / f'{name}{mesh.size}'
      distill.distill(corpus, verifier, str(place), sentences=20, batch=8,
                      mesh=mesh, log=lambda line: None, **more)
      texts.append((place / 'train.jsonl').read_text())
    out.append(len(texts[0].splitlines()) * (texts[0] == texts[1]))
  return out


def begun(directory):
  """Whether a run starts from another's parameters, read in parts."""
  run = run_of(directory, OURS, rules='fsdp', steps=0)
  run = dataclasses.replace(run, init_from=str(directory / 'whole/run'),
                            model_dir=str(directory / 'begun'))
  want, _ = start.restore(run.init_from)
  with mock.patch.object(start, 'restore', None):
    state = loop.train(run, log=lambda line: None)
  cut = [x for x in jax.tree.leaves(state.params) if x.addressable_shards[
      0].data.size < x.size]
  return apart(state.params, want), len(cut)


def headed(directory):
  """What a run of heads is found to be, whose verifier writes some texts."""
  out = []
  for mesh in (ONE, (2, 2)):
    place = directory / f'headed{mesh[0]}'
    place.mkdir()
    for path in directory.glob('*.*'):
      (place / path.name).symlink_to(path)
    run = run_of(place, mesh, heads.Headed(T5, heads.HeadsConfig(2)), steps=2,
                 eval_every=2, eval_sentences=3, eval_batch=3, max_length=12)
    loop.train(dataclasses.replace(
        run, objective=ahead.Ahead(), on_policy=policies.OnPolicy(1.),
        corpus=dataclasses.replace(run.corpus, packed=False)),
               log=lambda line: None)
    row = (place / 'run/metrics.jsonl').read_text().splitlines()[-1]
    out.append({key: x for key, x in json.loads(row).items() if key != 'time'})
  return out


def main():
  jax.config.update('jax_numpy_rank_promotion', 'raise')
  directory, part = pathlib.Path(sys.argv[1]), sys.argv[2]
  if part == 'quick':
    found = dict(t5=stepped(
        directory, T5, dict(mesh=(8, 1)), dict(mesh=(1, 8)), dict(mesh=OURS),
        dict(mesh=(4, 1), rules='fsdp'), FSDP), refused=refused(directory))
  else:
    found = dict(gemma=stepped(directory, GEMMA, dict(mesh=OURS), FSDP),
                 resumed=resumed(directory), written=written(directory),
                 headed=headed(directory), begun=begun(directory))
  print(json.dumps(found))


def in_a_process(directory, part):
  """What `main` finds, where there are 8 devices."""
  write_corpus(directory)
  tinypair.make_vocabulary(directory)
  flags = os.environ.get('XLA_FLAGS', '')
  done = subprocess.run(
      [sys.executable, '-c', 'from training import mesh_test as t; '
       't.main()', str(directory), part],
      cwd=ROOT, capture_output=True, text=True, check=False, env=dict(
          os.environ, PYTHONPATH=f'{ROOT}{os.pathsep}{ROOT / "tests"}',
          JAX_PLATFORMS='cpu', XLA_FLAGS=f'{flags} {FLAGS}'))
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope='module')
def quick(tmp_path_factory):
  return in_a_process(tmp_path_factory.mktemp('quick'), 'quick')


@pytest.fixture(scope='module')
def thorough(tmp_path_factory):
  return in_a_process(tmp_path_factory.mktemp('thorough'), 'thorough')


def check_losses(found, count):
  """With dropout, on packed rows; the same noise falls on the same rows."""
  one, *others = found['losses']
  assert one[0] > one[1] > one[2] > 1 and len(others) == count
  for losses in others:
    np.testing.assert_allclose(losses, one, rtol=NEAR)
  assert max(found['apart']) < NEAR


def cut_of(lm, mesh, fsdp):
  """The axis of the mesh that each axis of each parameter is cut by."""
  token = jnp.ones((1, 1), jnp.int32)
  inputs = (token, token) if isinstance(lm, t5.T5) else (token,)

  def of(path, matrix, axis, size):
    if axis in CUT and size % mesh[1] == 0 and not (
        matrix and lm is GEMMA and path.split('/')[-2] in ('key', 'value')):
      return 'model' if mesh[1] > 1 else None
    wide = fsdp and matrix and axis == WIDTH and not path.endswith(TABLE)
    return 'data' if wide and size % mesh[0] == 0 else None
  return {path: [of(path, len(shape) == 2, axis, size)
                 for axis, size in zip(names, shape)]
          for path, (shape, names) in tiny.layout(lm, *inputs).items()}


def check_shards(laid, lm, mesh=OURS, fsdp=False):
  """Cut by logical axes: every parameter, and Adam's two moments of it."""
  axes, cut = cut_of(lm, mesh, fsdp), []
  parts = dict(zip(('data', 'model'), mesh))
  for path, (shape, shard, spec) in laid.items():
    parameter = next((x for x in axes if path.endswith('/' + x)), None)
    if parameter is None:
      assert shape == shard == []                    # counts of steps
      continue
    want = axes[parameter]
    assert shard == [n // parts.get(on, 1) for n, on in zip(shape, want)]
    assert spec == [str(x) for x in want]
    cut += [on for on in want if on]
  for axis in ('data',) * fsdp + ('model',) * (mesh[1] > 1):
    matrices = sum(axis in x for x in axes.values())
    assert cut.count(axis) == 3 * matrices and matrices >= 6


def test_losses_and_parameters_do_not_depend_on_the_mesh(quick):
  check_losses(quick['t5'], 5)


def test_parameters_and_moments_are_cut_by_their_logical_axes(quick):
  *_, tensor, rows, both = quick['t5']['laid']
  check_shards(tensor, T5)
  check_shards(rows, T5, (4, 1), fsdp=True)
  check_shards(both, T5, fsdp=True)


@pytest.mark.slow
def test_a_decoder_is_trained_on_a_mesh(thorough):
  check_losses(thorough['gemma'], 2)
  check_shards(thorough['gemma']['laid'][1], GEMMA)
  check_shards(thorough['gemma']['laid'][2], GEMMA, fsdp=True)


@pytest.mark.slow
def test_a_run_that_died_goes_on_bitwise_on_another_mesh_or_by_other_rules(
    thorough):
  got = thorough['resumed']
  assert got['said'] == ['resuming at step 2'] * 4
  assert got['bitwise'] and got['read'] == 0
  assert got['begun']                  # no device has a whole optimiser
  assert got['laid'] == [True, True, True, False]
  check_shards(got['fsdp'], T5, fsdp=True)
  assert max(got['others']) < NEAR


def test_a_mesh_that_can_not_be_is_refused(quick):
  many, none, one, heads, decoder, *rules = quick['refused']
  assert 'mesh=(3, 4), which takes 12 devices; there are 8' in many
  assert 'model of mesh' in none
  assert 'allowed: (data, model)' in one
  assert '3 does not divide' in heads and 'heads (8)' in heads
  assert 'vocab (512)' in heads and 'of a T5' in heads
  assert '5 does not divide' in decoder and 'heads (8)' in decoder
  for got, line in zip(("'zero'", "['fsdp']"), rules, strict=True):
    assert line == f'Got rules={got}; allowed: data, tensor, fsdp.'


@pytest.mark.slow
def test_a_verifier_on_a_mesh_writes_the_same_corpus(thorough):
  assert thorough['written'] == [20, 20, 20]


@pytest.mark.slow
def test_heads_are_trained_and_measured_on_a_mesh(thorough):
  alone, mesh = thorough['headed']
  assert {'bleu', 'validation_loss', 'validation_agreement_2'} <= set(alone)
  assert mesh == pytest.approx(alone, rel=1e-4)


@pytest.mark.slow
def test_a_run_starts_from_another_read_in_parts(thorough):
  apart_by, cut = thorough['begun']
  assert apart_by == 0 and cut > 6
