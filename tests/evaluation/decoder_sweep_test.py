"""Sweeps of decoder-only checkpoints: prompts, ends, drafts without a model."""
import dataclasses

import pytest

from spec_cascades import targets
from spec_cascades.evaluation import asking
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import points
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import sweep as sweep_lib
from tests import ggufs
from tests.evaluation.sweep_run_test import Bar

pytest.importorskip('tokenizers')
CURVES = (
    points.Curve(targets.Lossless, temperatures=(0.,), name='prompt lookup',
                 drafter='ngram'),
    points.Curve(targets.Lossless, temperatures=(0.,), name='layer skip',
                 drafter='skip'),
    points.Curve(targets.TokenV3, (.3,), (0.,), drafter='skip'))
CHAIN = (points.Curve(targets.Lossless, temperatures=(0.,)),)


@pytest.fixture(scope='module')
def path(tmp_path_factory):
  return str(ggufs.make(tmp_path_factory.mktemp('gguf') / 'x.gguf', 'llama',
                        ggufs.byte_level()))


@pytest.fixture(scope='module')
def sweep(path, tmp_path_factory):
  return sweep_lib.Sweep(
      str(tmp_path_factory.mktemp('sweep') / 'out'), CURVES, path, None,
      asking=asking.Asking('and {source} the', end='q'), examples=3, gamma=3,
      buckets=((250, 12),))


def test_a_sweep_of_one_model(sweep):
  run = sweep_lib.Run(sweep)
  words = run.pair.vocabulary
  assert words.decode(run.eos[:1]) == 'q' and run.pair.drafter is None
  assert run.starts == [len(row) for row in run.rows]
  found = run(Bar)
  assert [row.method for row in found.rows] == [
      'verifier', 'prompt lookup', 'layer skip', 'TokenV3']
  assert {e.method: e.equal for e in found.equalities} == {
      'prompt lookup': 3, 'layer skip': 3}
  assert found.compilations.while_timing == 0
  by_name = {row.method: row for row in found.rows}
  assert {row.drafter for row in found.rows} == {'', 'ngram', 'skip'}
  assert by_name['verifier'].tokens_per_call == 1
  # Whatever room its input leaves, no output has more than 12 tokens.
  assert 3 <= by_name['verifier'].emitted <= 36
  again = sweep_lib.Run(sweep)(Bar)
  assert again.rows == found.rows


@pytest.mark.slow
def test_details_of_one_model(sweep):
  """q is the model that drafts at a point: none, or layers of the verifier."""
  run = sweep_lib.Run(dataclasses.replace(sweep, split=True, inspected=1))
  found = run(Bar)
  assert [x.method for x in found.split] == [
      'verifier', 'prompt lookup', 'layer skip', 'TokenV3']
  (text,), methods = found.texts, [run.points[x.key].method
                                   for x in found.texts[0].decoded]
  assert methods == ['verifier', 'prompt lookup', 'layer skip', 'TokenV3']
  for method, x in zip(methods, text.decoded):
    unknown = method in ('verifier', 'prompt lookup')
    assert x.same and {t.q is None for t in x.tokens} == {unknown}
    if method != 'verifier':
      assert all(t.pi == 1 for t in x.tokens)


def test_inspected_texts_end_where_the_sweep_cut_them(sweep, tmp_path):
  """Inputs are far narrower than their bucket: room is no limit, the cap is."""
  run = sweep_lib.Run(dataclasses.replace(
      sweep, output_dir=str(tmp_path / 'out'), curves=CURVES[1:2], inspected=2,
      buckets=((250, 3),)))
  assert max(map(len, run.rows)) < 250 - 3
  for text in run(Bar).texts:
    alone, drafted = text.decoded
    assert alone.same and drafted.same
    assert len(alone.tokens) == len(drafted.tokens) == 3


def test_what_is_asked_is_part_of_the_key(sweep, tmp_path):
  keys = []
  for name, asked in (('a', sweep.asking), ('b', asking.Asking('x {source}'))):
    other = dataclasses.replace(sweep, asking=asked,
                                output_dir=str(tmp_path / name))
    keys.append(set(sweep_lib.Run(other).points))
  assert not keys[0] & keys[1]


def test_drafters_that_need_a_model_are_refused(sweep, tmp_path):
  curves = (points.Curve(targets.Lossless),)
  other = dataclasses.replace(sweep, curves=curves, output_dir=str(tmp_path))
  with pytest.raises(ValueError, match='chain needs a small model'):
    sweep_lib.Run(other)
  pair = pairs.load(sweep.verifier, None)
  alone = [name for name, kind in drafting.KINDS.items()
           if not (kind.small or kind.needs)]
  assert {'null', 'ngram', 'skip', 'exit'} <= set(alone)
  drafting.supplied(pair, [(name, 4) for name in alone])


def test_prompts_are_texts_with_a_source(path):
  words = pairs.load(path, None).vocabulary
  assert asking.Asking()(words, 'a b') == 'a b'
  assert asking.Asking('Say {source}!')(words, '{source}') == 'Say {source}!'
  chat = asking.Asking('Say {source}!', chat=True)
  assert 'user: Say a!' in chat(words, 'a')
  assert chat.end_token(words) == words.ends[-1] == words.turn_end
  assert asking.Asking().end_token(words) == words.ends[0]
  newline = asking.Asking(end='\n').end_token(words)
  assert words.decode([newline]) == '\n'
  for given, what in ((dict(template='no place'), 'has to hold'),
                      (dict(template=3), 'has to hold'),
                      (dict(chat='false'), 'True or False'),
                      (dict(end=5), 'text, or None')):
    with pytest.raises(ValueError, match=what):
      asking.Asking(**given)
  tokens = words.encode('\n the end\n\nand so on')
  assert asking.Asking(end='\n').answer(words, tokens) == 'the end'
  assert asking.Asking().answer(words, tokens) == words.decode(tokens)
  with pytest.raises(ValueError, match='one token for'):
    asking.Asking(end='qq').end_token(words)


def test_a_t5_ends_as_it_did(pair_dir):
  words = pairs.load(str(pair_dir / 'verifier'),
                     str(pair_dir / 'drafter')).vocabulary
  assert asking.Asking().end_token(words) == 1


def test_the_decoders_that_come_along(tmp_path):
  """A Gemma-style pair: its drafts are worth something, and change nothing."""
  folder = pairs.ASSETS / 'debian_gemma'
  found = sweep_lib.Run(sweep_lib.Sweep(
      str(tmp_path / 'out'), CHAIN, str(folder / 'verifier'),
      str(folder / 'drafter'), asking=asking.Asking('{source}\n'), examples=6,
      gamma=4, buckets=((42, 64),), predicted=False))(Bar)
  assert [e.equal for e in found.equalities] == [6]
  by_name = {row.method: row for row in found.rows}
  assert by_name['SpecDecode'].tokens_per_call > 1.8
  assert by_name['SpecDecode'].verifier == 'debian_gemma/verifier'
  assert by_name['verifier'].quality > by_name['drafter'].quality > 10
