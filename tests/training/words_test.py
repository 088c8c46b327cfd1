"""A drafter over part of the vocabulary: trained, saved, exact."""
import collections
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tinypair
from spec_cascades import checkpoints
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.drafters import chain
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import text
from spec_cascades.models import reduced
from spec_cascades.models import t5
from spec_cascades.training import export
from spec_cascades.training import loop
from training.runs import run_of

SIZE = 160


@pytest.fixture(scope='module')
def verifier(corpus, tmp_path_factory):
  directory = tmp_path_factory.mktemp('verifier')
  return str(tinypair.write(directory / 'x', corpus.vocabulary.path, 0,
                            scale=4.))


def run_with(corpus, directory, verifier, **changes):
  numbers = dict(steps=20, peak=.1, warmup=2, log_every=5, save_every=10,
                 eval_every=20, gamma=2, eval_sentences=2, max_length=12)
  return dataclasses.replace(
      run_of(corpus, directory, **{**numbers, **changes}), teacher=verifier,
      lm=reduced.Reduced(t5.T5(tinypair.config(16, 1)), SIZE))


@pytest.fixture(scope='module')
def trained(corpus, verifier, tmp_path_factory):
  """A run, its last state and what it said; it was cut off once."""
  run, said = run_with(corpus, tmp_path_factory.mktemp('run'), verifier), []

  def log(line):
    said.append(line)
    if line.startswith('step 15/') and 'resuming at step 10' not in said:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    loop.train(run, log=log)
  return run, loop.train(run, log=log), said


def test_it_comes_closer_to_its_verifier(trained):
  _, state, said = trained
  read = lambda name: [float(re.search(name + r' ([0-9.]+)', line)[1])
                       for line in said if 'tokens/s' in line]
  distance, acceptance = read('loss'), read('acceptance')
  assert 'resuming at step 10' in said and int(state.step) == 20
  assert distance[-1] < distance[0] - .5
  assert acceptance[-1] > acceptance[0] + .05
  assert any(line.startswith('step 20  T=1, gamma 2: ') for line in said)


def test_its_tokens_are_the_most_frequent_of_the_training_targets(
    trained, corpus):
  run, state, _ = trained
  counts = collections.Counter()
  for line in corpus.lines('train'):
    row = [*corpus.vocabulary.bare(line['de']), text.EOS]
    if max(len(row), len(corpus.encode(line['en']))) <= 48:
      counts.update(row)
  tokens = np.asarray(state.params['tokens'])
  assert len(tokens) == run.lm.size and text.EOS in tokens
  least = min(counts[t] for t in tokens.tolist() if t != text.EOS)
  most = max(counts[t] for t in range(tinypair.PIECES) if t not in tokens)
  assert least >= most > 0


def test_the_mapping_comes_back_from_a_run_and_from_its_export(
    trained, tmp_path):
  run, state, _ = trained
  found = checkpoints.load(run.model_dir)
  assert found.lm == run.lm
  jax.tree.map(np.testing.assert_array_equal, found.params, state.params)
  export.export(run, str(tmp_path / 'out'), dtype='bfloat16', sentences=2,
                log=lambda line: None)
  exported = checkpoints.load(str(tmp_path / 'out'))
  assert exported.lm == run.lm
  np.testing.assert_array_equal(exported.params['tokens'],
                                state.params['tokens'])


def test_a_rule_that_reads_q_is_decoded_exactly(trained, verifier, corpus):
  """Greedy Diff, token for token, from both models' logits in float64.

  At the first row's threshold p always decides, at the last row's never.
  """
  alphas = np.array([-1., -.3, -.2, -.1, -.05, -.02, 0., 1.], np.float32)
  run, state, _ = trained
  pair = pairs.load(verifier, run.model_dir)
  rows = [corpus.encode(line['en']) for line in corpus.lines('train')]
  rows = [row for row in rows if len(row) <= 48][:8]
  spec = decode.GenSpecSample(
      pair.verifier.lm, chain.Chain(pair.drafter.lm, 3), 13, eos=text.EOS)
  big = checkpoints.load(verifier)
  done = spec(pair.verifier.params, pair.drafter.params, pair.prompt(rows, 48),
              decode.row_keys(0, range(8)), targets.Diff(jnp.asarray(alphas)),
              warp.Warp(0.))
  tokens, lengths = np.asarray(done.tokens)[:, 1:], np.asarray(done.lengths) - 1
  batch = dict(inputs=jnp.asarray(text.pad(rows, 48)), targets=tokens)
  p = np.asarray(big.lm.teacher_forced(big.params, batch), np.float64)
  q = np.asarray(run.lm.lm.teacher_forced(state.params['model'], batch),
                 np.float64)
  beyond = np.setdiff1d(np.arange(tinypair.PIECES), state.params['tokens'])
  q[..., beyond] = -np.inf
  law = lambda x: np.exp(x - x.max(-1, keepdims=True)) / np.exp(
      x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
  p, q = law(p), law(q)
  keeps = q.max(-1) >= p.max(-1) - alphas[:, None]
  want = np.where(keeps, q.argmax(-1), p.argmax(-1))
  own = np.arange(12) < lengths[:, None]
  assert (tokens == want)[own].all()
  assert 10 < (keeps & own).sum() < own.sum() - 10
  assert ((q.argmax(-1) != p.argmax(-1)) & keeps & own).any()


def test_a_whole_drafter_becomes_a_reduced_one(corpus, verifier, tmp_path):
  """Its parameters as they are, its tokens from the corpus."""
  run = dataclasses.replace(run_with(corpus, tmp_path, verifier, steps=0),
                            init_from=verifier)
  got = loop.train(run, log=lambda line: None).params
  want = checkpoints.load(verifier).params
  jax.tree.map(np.testing.assert_array_equal, got['model'], want)
  other = dataclasses.replace(run, lm=reduced.Reduced(run.lm.lm, SIZE - 1),
                              model_dir=str(tmp_path / 'other'),
                              init_from=run.model_dir)
  with pytest.raises(ValueError, match='predicts 160 tokens, the model to '
                     'train 159'):
    loop.train(other, log=lambda line: None)
  with pytest.raises(ValueError, match='vocabulary of 600 tokens'):
    loop.train(dataclasses.replace(
        run, lm=reduced.Reduced(run.lm.lm, 600),
        model_dir=str(tmp_path / 'wide')), log=lambda line: None)
