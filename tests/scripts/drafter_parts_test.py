"""What drafters need besides models: datastores, times, and trained parts."""
import json
import shutil

import jax
import numpy as np
import pytest

import besides
import fakecosts
import tinypair
from spec_cascades.drafters import suffixes
from spec_cascades.evaluation import (
    costs, datastores, drafting, examples, pairs, translate)
from tests.scripts.cli_test import check, drive

TEXTS = [x.reference for x in examples.read()][:20]


@pytest.fixture(scope='module')
def built(pair_dir, tmp_path_factory):
  """The datastore, and the pair that has it."""
  place = tmp_path_factory.mktemp('built')
  (place / 'texts.txt').write_text('\n'.join([*TEXTS, '']), encoding='utf-8')
  command = ['--file', str(place / 'texts.txt'), '--verifier',
             str(pair_dir / 'verifier'), '--output', str(place / 'store')]
  (code, err, out, _), = drive('build_datastore', [command])
  assert code == 0, err
  pair = pairs.load(str(pair_dir / 'verifier'), None)
  assert str(place / 'store') in out
  name = f'rest:{place}/store'
  return place / 'store', drafting.supplied(pair, [(name, 4)])


def test_it_holds_every_text_from_start_to_end(built):
  _, pair = built
  store = next(iter(pair.parts.values())).params
  want = [t for x in TEXTS for t in (0, *pair.vocabulary.encode(x))]
  assert store.tokens.tolist() == want
  np.testing.assert_array_equal(store.order,
                                suffixes.index(np.array(want)).order)


def test_the_first_token_is_drafted_as_texts_begin(built):
  """The decoder's start token is in the datastore."""
  _, pair = built
  drafter, store = drafting.make(next(iter(pair.parts)), pair, 4)
  chains, lengths = drafter._follows(store, np.zeros(1, np.int32),
                                     np.int32(1))
  begins = {pair.vocabulary.bare(x)[0] for x in TEXTS}
  assert set(np.asarray(chains)[np.asarray(lengths) > 0, 0].tolist()) <= begins


def test_greedy_text_is_that_without_drafts(built):
  _, pair = built
  said = []
  for name in (*pair.parts, 'null'):
    settings = translate.Settings(drafter=name, gamma=4, max_length=24)
    translator = translate.Translator(pair, settings)
    steps = list(translator(translator.encode('Click the button.')))
    said.append(''.join(x.text for x in steps))
  assert said[0] == said[1] != ''


def test_what_is_refused(built, pair_dir, tmp_path):
  store, _ = built
  verifier = str(pair_dir / 'verifier')
  damaged, half = tmp_path / 'damaged', tmp_path / 'half'
  for place in (damaged, half):
    shutil.copytree(store, place)
  (half / 'datastore.json').unlink()
  order = np.load(damaged / 'order.npy')
  order[3] += 1
  np.save(damaged / 'order.npy', order)
  cut = shutil.copytree(store, tmp_path / 'cut')
  (cut / 'order.npy').write_bytes(b'\x93NUMPY')
  asked = lambda path, *more: [
      '--drafter', f'rest:{path}', *more, 'Click.']
  ours = '--verifier', verifier
  check('decode', [
      (['--drafter', 'rest', '--verifier', verifier, 'Click.'], 'needs a path'),
      (asked(tmp_path / 'nothing', *ours), 'No datastore in'),
      (asked(half, *ours), 'No datastore in'),
      (asked(damaged, *ours), 'is damaged'),
      (asked(cut, *ours), "can't be read"),
      (asked(store), 'another vocabulary')])
  empty = tmp_path / 'empty.txt'
  empty.write_text(' \n', encoding='utf-8')
  out = str(tmp_path / 'out')
  check('build_datastore', [
      (['--output', out], 'give one of the two'),
      (['--output', out, '--file', str(empty), '--verifier', verifier],
       'one row of token ids'),
      (['--output', out, '--corpora', 'nothing'], 'nothing')])
  assert not (tmp_path / 'out').exists()


def test_a_part_of_an_unknown_drafter_is_refused(built):
  _, pair = built
  with pytest.raises(ValueError, match='a path may follow one of .*adaptive, '):
    drafting.supplied(pair, [('chain:x', 4)])


def test_half_a_datastore_is_none(tmp_path, monkeypatch):
  """Written last is what makes it one."""
  store = suffixes.index(np.arange(9))
  datastores.write(str(tmp_path), store, 'a', 'numbers')
  with monkeypatch.context() as patch:
    patch.setattr(datastores.files, 'write_atomically',
                  lambda *_: (_ for _ in ()).throw(OSError('full')))
    with pytest.raises(OSError):
      datastores.write(str(tmp_path), store, 'a', 'numbers')
  with pytest.raises(ValueError, match='No datastore'):
    datastores.read(str(tmp_path), 'a', 9)
  datastores.write(str(tmp_path), store, 'a', 'numbers')
  found, digest = datastores.read(str(tmp_path), 'a', 9)
  assert digest == json.loads((tmp_path / 'datastore.json').read_text())[
      'sha256']
  jax.tree.map(np.testing.assert_array_equal, found, store)


def test_step_times_make_adaptive_lengths(pair_dir, tmp_path):
  """And those of too narrow blocks are refused before anything is compiled."""
  path = tmp_path / 'costs.json'
  costs.write(path, fakecosts.make())
  pair = pairs.load(*(str(pair_dir / x) for x in ('verifier', 'drafter')))
  times = costs.read(path).times
  widest = max(times.verifier)
  drafter, _ = drafting.make(f'adaptive:{path}', pair, widest - 1)
  assert drafter.cost == times.drafter / times.verifier[widest]
  said = ['--verifier', str(pair_dir / 'verifier'), '--drafter_dir',
          str(pair_dir / 'drafter'), 'Click.', '--drafter']
  check('decode', [
      ([*said, 'adaptive'], 'needs a path'),
      ([*said, f'adaptive:{tmp_path}/none'], 'No file at'),
      ([*said, f'adaptive:{path}', '--gamma', str(widest)],
       'measure it, or draft less')])


def test_a_part_decodes_with_its_verifier_and_is_no_model(tmp_path):
  """As its whole export does; what can't be is said before compiling."""
  words = tinypair.make_vocabulary(tmp_path)
  own, other = (besides.write_verifier(tmp_path / name, words, seed)
                for seed, name in enumerate(('own', 'other')))
  part = besides.write_part(tmp_path / 'part', own, 'features')
  whole = besides.write_whole(tmp_path / 'whole', words, 'features')
  asked = lambda verifier, *more: [
      'Click the button.', '--verifier', verifier, '--gamma', '2',
      '--max_length', '12', '--temperature', '1', '--trace', *more]
  (code, err, out, _), (_, _, same, _) = drive('decode', [
      asked(own, '--drafter', f'eagle:{x}') for x in (part, whole)])
  assert code == 0, err
  assert out == same and '+draft accepted' in out
  alone = 'no model of its own; give it behind the name of a drafter, eagle:'
  check('decode', [
      (asked(other, '--drafter', f'eagle:{part}'),
       f'{part} was trained beside a/verifier'),
      (asked(own, '--drafter', f'eagle3:{part}'),
       'allowed with it: eagle or eagle_tree'),
      (asked(part, '--drafter', 'ngram'), alone),
      (asked(own, '--drafter', 'chain', '--drafter_dir', part), alone),
      (asked(own, '--drafter', 'eagle', '--drafter_dir', part), alone)])
