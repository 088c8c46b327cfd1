"""Decoding text: streaming shows what the loop decodes, with its origins."""
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode
from spec_cascades import warp
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import rules
from spec_cascades.evaluation import text
from spec_cascades.evaluation import trace
from spec_cascades.evaluation import translate

SOURCE = 'This package contains the documentation.'


@pytest.fixture(scope='module')
def pair(pair_dir):
  return pairs.load(str(pair_dir / 'verifier'), str(pair_dir / 'drafter'))


@pytest.mark.parametrize('rule, drafter, temperature', [
    ('TokenV3', 'chain', 1.), ('Lossless', 'ngram', 0.),
    ('Lossless', 'jacobi', 0.), ('Lossless', 'lookahead', 1.)])
def test_streamed_text_equals_the_loops(pair, rule, drafter, temperature):
  settings = translate.Settings(rule, drafter, gamma=3, seed=4, max_length=24,
                                temperature=temperature)
  translator = translate.Translator(pair, settings)
  tokens = translator.encode(SOURCE)
  steps = list(translator(tokens, 2))
  made, draft_params = drafting.make(drafter, pair, 3)
  spec = decode.GenSpecSample(pair.verifier.lm, made, 25, eos=text.EOS)
  state = spec(pair.verifier.params, draft_params,
               text.encoder_prompt([tokens], 32), decode.row_keys(4, [2]),
               rules.make(rule, None), warp.Warp(jnp.float32(temperature)))
  want = state.tokens[0, 1:int(state.lengths[0])]
  assert ''.join(step.text for step in steps) == pair.vocabulary.decode(want)
  pieces = [piece for step in steps for piece in step.pieces]
  assert len(pieces) == len(want)
  for name in trace.ORIGINS:
    count = int(getattr(state.stats, name)[0])
    assert sum(piece.origin == name for piece in pieces) == count


@pytest.mark.parametrize('changes, what', [
    (dict(rule='Nope'), 'Unknown rule'), (dict(drafter='dream'), 'Unknown dr'),
    (dict(rule='Chow', alpha=3.), 'alpha of Chow'), (dict(gamma=0), 'gamma'),
    (dict(rule='Chow', drafter='ngram'), 'take the drafter chain'),
    (dict(temperature=-1.), 'temperature'), (dict(top_p=1.5), 'top_p'),
    (dict(top_k=-1), 'top_k'), (dict(seed=-1), 'seed'),
    (dict(max_length=0), 'max_length')])
def test_settings_are_checked_when_made(changes, what):
  with pytest.raises(ValueError, match=what):
    translate.Settings(**changes)


def test_inputs_are_checked(pair):
  translator = translate.Translator(pair, translate.Settings(),
                                    max_input_length=9)
  with pytest.raises(ValueError, match='Line 2 is empty'):
    translator.encode(' ', 'Line 2')
  with pytest.raises(ValueError, match='takes at most 9'):
    translator.encode(SOURCE * 3)


@pytest.mark.parametrize('limit', [0, 129])
def test_limits_of_inputs_are_the_models_at_most(pair, limit):
  with pytest.raises(ValueError, match='max_input_length is'):
    translate.Translator(pair, translate.Settings(), max_input_length=limit)


def test_a_fault_names_its_round(pair_dir, pair):
  fresh = pairs.load(str(pair_dir / 'verifier'), None).verifier
  broken = jax.tree.map(lambda x: x * np.nan, fresh.checkpoint)
  verifier = dataclasses.replace(fresh, checkpoint=broken)
  translator = translate.Translator(
      dataclasses.replace(pair, verifier=verifier), translate.Settings())
  first, *_ = translator(translator.encode(SOURCE))
  assert first.fault == 1 and first.text == ''


def test_traces_are_coloured_unless_told_not_to():
  step = translate.Step('ab', (translate.stream.Piece('a', 'accepted'),
                               translate.stream.Piece('b', 'corrected')), 5)
  plain = trace.Painter(False).line(3, step)
  assert plain == '   3  1/5  +a ~b'
  vivid = trace.Painter(True).line(3, step)
  assert '\x1b[32ma\x1b[0m' in vivid and '\x1b[33mb\x1b[0m' in vivid
  assert re.sub('\x1b[^m]*m', '', vivid) == '   3  1/5  a b'
  assert not trace.has_colour(True, {'NO_COLOR': '1'})
  assert trace.has_colour(True, {}) and not trace.has_colour(False, {})
  assert trace.has_colour(False, {'FORCE_COLOR': '1'})
