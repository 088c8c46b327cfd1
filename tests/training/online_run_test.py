"""Runs that train while they decode: what they buy, and that they resume."""
import dataclasses
import functools
import json
import os
import signal
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tinypair
from spec_cascades import checkpoints
from spec_cascades.models import t5
from spec_cascades.training import loop
from spec_cascades.training import online as online_lib
from spec_cascades.training import policies
from spec_cascades.training import start
from tests.training import interrupted_test
from training.runs import run_of

ONLINE = online_lib.Online(every=6, batch=6, size=24, rows=12, gamma=3,
                           temperature=1., window=12)


@pytest.fixture(scope='module')
def verifier(corpus, tmp_path_factory):
  """A random model that is sure of what it says."""
  directory = tmp_path_factory.mktemp('verifier')
  return str(tinypair.write(directory / 'x', corpus.vocabulary.path, 0,
                            scale=4.))


def run_with(corpus, directory, verifier, online=ONLINE, **changes):
  """A random drafter of the verifier's own sizes."""
  numbers = dict(steps=10, peak=.1, warmup=1, cooldown=1, eval_every=2,
                 save_every=2, max_length=17)
  return dataclasses.replace(
      run_of(corpus, directory, **{**numbers, **changes}),
      lm=t5.T5(tinypair.config(16, 1)), teacher=verifier, online=online)


@pytest.mark.slow
def test_a_run_buys_more_than_a_drafter_that_stays(corpus, verifier, tmp_path):
  """The control, whose rate is 0, has the same requests and answers."""
  rows = {}
  for peak in (0., .1):
    said, folder = [], tmp_path / str(peak)
    run = run_with(corpus, folder, verifier, peak=peak)
    loop.train(run, log=said.append)
    rows[peak] = [json.loads(line) for line in
                  (folder / 'metrics.jsonl').read_text().splitlines()]
    assert any('requests 1-12: ' in x and 'requests 49-60: ' in x
               for x in said)
    found = checkpoints.load(folder)              # the memory is not in the way
    assert found.lm == run.lm
    if not peak:
      want = run.lm.init_params(jax.random.key(run.recipe.seed))
      jax.tree.map(np.testing.assert_array_equal, found.params, want)
  last = {peak: x[-1] for peak, x in rows.items()}
  assert all(x['requests'] == 60 for x in last.values())
  assert last[.1]['tokens_per_call'] > last[0.]['tokens_per_call'] + 1
  assert last[.1]['accepted'] > last[.1]['first_accepted'] + .1
  assert last[.1]['tokens_per_call_T1'] > last[0.]['tokens_per_call_T1'] + 1
  for row in last.values():             # 16 texts, by chance at temperature 1
    assert row['predicted_T1'] == pytest.approx(row['tokens_per_call_T1'], .3)
  assert any('now T=1, gamma 3: ' in x for x in said)


def test_a_run_that_was_cut_off_goes_on_bitwise(corpus, verifier, tmp_path):
  """Parameters, buffer and counts."""
  def figures(name):
    rows = [json.loads(line) for line in
            (tmp_path / name / 'metrics.jsonl').read_text().splitlines()]
    return {k: x for k, x in rows[-1].items() if k != 'time'}

  def stop(line):
    if line.startswith('step 6/'):
      raise KeyboardInterrupt

  run = lambda name: run_with(corpus, tmp_path / name, verifier, steps=8,
                              save_every=4, eval_every=4)
  want = loop.train(run('whole'), log=lambda line: None)
  with pytest.raises(KeyboardInterrupt):
    loop.train(run('cut'), log=stop)
  said = []
  got = loop.train(run('cut'), log=said.append)
  assert said[0] == 'resuming at step 4'
  jax.tree.map(np.testing.assert_array_equal, got, want)
  assert figures('cut') == figures('whole')
  with pytest.raises(ValueError, match='another size or window of Online'):
    loop.train(dataclasses.replace(run('cut'), online=dataclasses.replace(
        ONLINE, size=3)), log=said.append)


@pytest.mark.slow
def test_a_killed_process_goes_on_bitwise(corpus, verifier, tmp_path):
  """SIGKILL, and the same command of scripts/train.py."""
  more = f'''
from spec_cascades.training import online
loop.Run.teacher = {verifier!r}
loop.Run.online = @online.Online()
online.Online.every = 4
online.Online.gamma = 2
online.Online.window = 8
'''
  numbers = run_of(corpus, tmp_path, steps=12, save_every=2).recipe
  environment = {**os.environ, 'PYTHONPATH': str(interrupted_test.ROOT)}
  for name in ('whole', 'cut'):
    (tmp_path / name).mkdir()
    command = interrupted_test.command_of(tmp_path / name, corpus, numbers,
                                          more)
    call = functools.partial(
        subprocess.Popen, command, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)
    if name == 'cut':
      process = call()
      while process.poll() is None and not (
          tmp_path / 'cut/run/checkpoints/4').exists():
        time.sleep(.01)
      process.kill()
      process.communicate()
      assert process.returncode == -signal.SIGKILL
    process = call()
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert ('resuming at step' in said) == (name == 'cut')
  (got, last), (want, _) = (start.restore(tmp_path / name / 'run')
                            for name in ('cut', 'whole'))
  assert last == 12
  jax.tree.map(np.testing.assert_array_equal, got, want)


def test_a_drafter_that_is_never_rejected_is_left_alone(
    corpus, verifier, tmp_path):
  """No text is kept, no token has weight, and nothing is NaN."""
  run = dataclasses.replace(
      run_with(corpus, tmp_path, verifier, dataclasses.replace(
          ONLINE, temperature=0.), steps=3, log_every=1), init_from=verifier)
  before = checkpoints.load(verifier).params
  state = loop.train(run, log=lambda line: None)
  jax.tree.map(np.testing.assert_array_equal, state.params,
               jax.tree.map(jnp.asarray, before))
  row = json.loads((tmp_path / 'metrics.jsonl').read_text().splitlines()[-1])
  assert row['accepted'] == 1


def test_what_a_line_must_hold_is_a_dictionary():
  with pytest.raises(ValueError, match="Got only='gimp_help'; allowed: a dict"):
    online_lib.Online(only='gimp_help')


@pytest.mark.parametrize('changes,match', [
    (dict(teacher=None), 'online and no teacher'),
    (dict(on_policy=policies.OnPolicy(.5)), 'online and on_policy'),
    (dict(recipe=loop.Recipe(steps=10**4)), '60000 requests are wanted'),
    (dict(lm=t5.T5(tinypair.config(16, 1, vocab_size=100))),
     '512 pieces.*100')])
def test_what_does_not_go_together_is_refused(
    corpus, verifier, tmp_path, changes, match):
  run = dataclasses.replace(run_with(corpus, tmp_path, verifier), **changes)
  with pytest.raises(ValueError, match=match):
    loop.train(run, log=lambda line: None)
  assert not (tmp_path / 'checkpoints').exists()
