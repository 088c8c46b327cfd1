"""Parts without their verifier draft as their whole exports do, or are refused.
"""
import dataclasses
import pickle
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import besides
import tinypair
from spec_cascades import baselines
from spec_cascades import checkpoints
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.checkpoints import beside
from spec_cascades.checkpoints import extras
from spec_cascades.drafters import null
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import examples
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import points
from spec_cascades.evaluation import sweep as sweep_lib
from spec_cascades.models import features
from spec_cascades.models import heads
from tests import ggufs

pytestmark = pytest.mark.slow
SOURCES = [x.source for x in examples.read()][:4]
CASES = [(kind, name) for kind, names in besides.NAMES.items()
         for name in names]


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A verifier, another one, and of all kinds `whole` and `part`."""
  root = tmp_path_factory.mktemp('place')
  words = tinypair.make_vocabulary(root)
  besides.write_verifier(root / 'verifier', words)
  besides.write_verifier(root / 'other', words, 1)
  for name in besides.CONFIGS:
    besides.write_whole(root / 'whole' / name, words, name)
    besides.write_part(root / 'part' / name, root / 'verifier', name)
  return root


def load(place, verifier='verifier', **kwargs):
  return pairs.load(str(place / verifier), None, **kwargs)


def decoded(pair, drafter, params, heat):
  spec = decode.GenSpecSample(drafting.verifier(pair, drafter), drafter, 24,
                              eos=1)
  rows = [pair.vocabulary.encode(x)[:20] for x in SOURCES]
  state = spec(pair.verifier.params, params, pair.prompt(rows, 20),
               decode.row_keys(0, range(len(rows))), targets.Lossless(),
               warp.Warp(heat))
  return jax.device_get((state.tokens, state.lengths, state.stats))


@pytest.mark.parametrize('kind, name', CASES)
def test_a_part_is_the_same_drafter_with_the_verifiers_own_arrays(
    place, kind, name):
  names = [f'{name}:{place / x / kind}' for x in ('whole', 'part')]
  pair = drafting.supplied(load(place), [(x, 2) for x in names])
  whole, part = (drafting.make(x, pair, 2) for x in names)
  assert whole[0] == part[0]
  jax.tree.map(np.testing.assert_array_equal, whole[1], part[1])
  assert part[1]['model'] is pair.verifier.params
  again = drafting.make(names[1], pair, 2)
  jax.tree.map(lambda x, y: x is y or pytest.fail('a copy'), part[1], again[1])


@pytest.mark.parametrize('kind, name', CASES)
def test_it_decodes_as_the_whole_export_token_for_token(place, kind, name):
  """Greedy as the verifier alone, too; and drafts are accepted, but a tree's.
  """
  pair, accepted = load(place), 0
  for heat in (0., 1.):
    whole, part = (decoded(pair, *drafting.make(
        f'{name}:{place / x / kind}', pair, 2), heat)
                   for x in ('whole', 'part'))
    jax.tree.map(np.testing.assert_array_equal, whole, part)
    accepted += part[2].accepted.sum()
    if not heat:
      np.testing.assert_array_equal(
          part[0], decoded(pair, null.Null(), None, 0.)[0])
  assert accepted > 0 or name == 'eagle_tree'


@pytest.mark.parametrize('name', ['skip', 'exit', 'pipelined'])
def test_layers_of_a_verifier_that_has_heads_draft_for_it(place, name):
  pair = load(place, 'whole/heads')
  got = decoded(pair, *drafting.make(name, pair, 2), 0.)
  np.testing.assert_array_equal(got[0], decoded(pair, null.Null(), None, 0.)[0])


@pytest.mark.parametrize('kind, name', CASES)
def test_a_run_drafts_for_the_verifier_in_it(place, kind, name):
  """Which is then the run itself: --verifier RUN --drafter eagle3:RUN."""
  path = f'whole/{kind}'
  pair, alone = load(place, path), load(place)
  got = decoded(pair, *drafting.make(f'{name}:{place / path}', pair, 2), 0.)
  want = decoded(alone, null.Null(), None, 0.)
  np.testing.assert_array_equal(got[0], want[0])


@pytest.mark.parametrize('kind, name', CASES)
def test_a_whole_of_another_verifier_is_refused(place, kind, name):
  pair = load(place, 'other')
  with pytest.raises(ValueError, match='beside another verifier than .*other'):
    drafting.supplied(pair, [(f'{name}:{place}/whole/{kind}', 2)])


def test_a_tree_that_was_chosen_is_drafted(place):
  drafter, _ = drafting.make(f'medusa:{place}/part/heads', load(place), 2)
  assert drafter.paths == besides.TREE
  name = f'medusa:{place}/part/heads'
  pair = drafting.supplied(load(place), [(name, 2)])
  part = pair.parts[name].params
  none = dataclasses.replace(part, heads=dataclasses.replace(
      part.heads, paths=()))
  pair.parts[name] = dataclasses.replace(pair.parts[name], params=none)
  with pytest.warns(UserWarning, match='medusa drafts a chain of 2. Choose'):
    drafter, _ = drafting.make(name, pair, 2)
  assert drafter.paths == besides.LINE


@pytest.mark.parametrize('gamma,refused', [(1, False), (2, True)])
@pytest.mark.parametrize('name', ['medusa:{}/part/shared',
                                  'hydra++:{}/part/prefix'])
def test_rules_that_read_q_take_a_head_that_is_spare(
    place, name, gamma, refused):
  """2 heads: a tree 1 deep leaves one for the leaf, 2 deep none."""
  name, rule = name.format(place), targets.Chow(.3)
  drafting.check_name(name, rule, gamma)
  pair = drafting.supplied(load(place), [(name, gamma)])
  drafter, params = drafting.make(name, pair, gamma)
  spec = decode.GenSpecSample(drafting.verifier(pair, drafter), drafter, 24)
  row = pair.vocabulary.encode(SOURCES[0])[:20]
  step = lambda: jax.eval_shape(
      decode.run, spec, pair.verifier.params, params, pair.prompt([row], 20),
      decode.row_keys(0, [0]), rule, warp.Warp(1.))
  if refused:
    with pytest.raises(ValueError, match='Chow on .* needs q, but .* has none'):
      step()
  else:
    assert step().tokens.shape == (1, 24)


def test_the_pairs_dtype_is_that_of_its_part(place):
  pair = load(place, dtype='bfloat16')
  for kind, name in (('heads', 'medusa'), ('fused', 'eagle3'),
                     ('masks', 'pass')):
    drafter, params = drafting.make(f'{name}:{place}/part/{kind}', pair, 2)
    assert params['model'] is pair.verifier.params
    want = drafting.make(name if kind != 'masks' else
                         f'{name}:{place}/whole/{kind}', dataclasses.replace(
                             pair, drafter=pairs.load(
                                 f'{place}/whole/{kind}', None,
                                 dtype='bfloat16').verifier), 2)
    assert drafter == want[0]
    jax.tree.map(np.testing.assert_array_equal, params, want[1])
    kinds = lambda tree: jax.tree.map(lambda x: x.dtype, tree)
    assert kinds(params) == kinds(want[1])


def test_the_pairs_dtype_is_that_of_a_whole_model(place):
  """Which would otherwise be read as float32, and be slower."""
  pair = load(place, dtype='bfloat16')
  kinds = lambda params: {x.dtype.name for x in jax.tree.leaves(params)
                          if jnp.issubdtype(x.dtype, jnp.floating)}
  _, params = drafting.make(f'medusa:{place}/whole/heads', pair, 2)
  assert kinds(params) == kinds(pair.verifier.params) == {'bfloat16'}
  pair = dataclasses.replace(pair, drafter=pair.verifier)
  made, params = drafting.make(f'specinfer:{place}/other', pair, 2)
  assert kinds(params) == {'bfloat16'}
  assert {lm.config.dtype for lm in made.lms} == {'bfloat16'}


def test_another_verifier_is_refused(place):
  pair = load(place, 'other')
  for kind, name in CASES:
    path = f'{place}/part/{kind}'
    with pytest.raises(ValueError, match='was trained beside a/verifier') as e:
      drafting.supplied(pair, [(f'{name}:{path}', 2)])
    said = str(e.value)
    assert '\n' not in said and pair.verifier.name in said
    assert pair.verifier.sha256[:12] in said
    assert pairs.digest(str(place / 'verifier'))[:12] in said


def test_what_does_not_fit_is_refused(place, tmp_path):
  pair, part = load(place), place / 'part'
  cut = shutil.copytree(part / 'features', tmp_path / 'cut')
  (cut / beside.WEIGHTS).write_bytes((cut / beside.WEIGHTS).read_bytes()[:-9])
  for name, gamma, match in (
      (f'eagle:{part}/fused', 2, 'allowed with it: eagle3 or eagle3_tree'),
      (f'eagle3:{part}/features', 2, 'allowed with it: eagle or eagle_'),
      (f'medusa:{part}/prefix', 2, r'allowed with it: hydra\+\+'),
      (f'hydra++:{part}/heads', 2, 'allowed with it: medusa'),
      (f'medusa:{part}/masks', 2, 'allowed with it: pass or space'),
      (f'pass:{part}/heads', 2, 'has no mask tokens'),
      (f'pass:{place}/verifier', 2, 'has no mask tokens'),
      (f'medusa:{place}/verifier', 2, 'was not trained beside the verifier'),
      (f'space:{part}/masks', 5, 'Space with length 5 takes 5 masks'),
      (f'eagle:{cut}', 2, 'is damaged or cut off'),
      (f'specinfer:{part}/features', 2, 'no model of its own')):
    if name.startswith('specinfer'):
      pair = dataclasses.replace(pair, drafter=pair.verifier)
    with pytest.raises(ValueError, match=match):
      drafting.supplied(pair, [(name, gamma)])


def test_heads_that_are_all_drafted_with_are_refused_where_a_rule_reads_q(
    place):
  pair, part = load(place), place / 'part'
  for kind, name in (('heads', 'medusa'), ('prefix', 'hydra++')):
    count, named = besides.CONFIGS[kind].count, f'{name}:{part}/{kind}'
    drafting.supplied(pair, [(named, count - 1, True), (named, count, False),
                             (named, count)])
    with pytest.raises(ValueError, match=f'gamma {count} drafts with all of'):
      drafting.supplied(pair, [(named, count, True)])
  curves = [points.Curve(targets.Lossless), points.Curve(targets.Chow, (.4,)),
            points.Curve(baselines.SeqCascade, (.5,))]
  made = points.expand(curves, gamma=3)
  assert {(point.rule, *reads) for point, (_, _, *reads) in zip(
      made, points.drafts(made, curves))} == {
          ('', False), ('Lossless', False), ('Chow', True),
          ('SeqCascade', False)}


def test_looking_at_what_is_read_packs_no_parameters(place):
  """Ray's workers are sent those of the checkpoint, and the part."""
  pair = drafting.supplied(load(place), [
      (f'{name}:{place}/part/{kind}', 2) for kind, name in CASES])
  pair.verifier.unpacked()
  assert len(pair.parts) == len(CASES)
  sent = pickle.loads(pickle.dumps(dict(pair.parts)))
  sent = dataclasses.replace(pair, parts=sent)
  for name in pair.parts:
    (one, params), (two, others) = (drafting.make(name, x, 2)
                                    for x in (pair, sent))
    assert one == two
    jax.tree.map(np.testing.assert_array_equal, params, others)


def test_outlines_have_the_shapes_of_what_is_packed(place):
  pair = load(place)
  outlined = pairs.outlined(pair.verifier)
  want = pair.verifier.params
  # Their dtype depends on the numbers, see `products.compacted`.
  assert jax.tree.map(lambda x: x.shape, outlined.params) == (
      jax.tree.map(lambda x: x.shape, want))
  assert pairs.outlined(pair.verifier) is pair.verifier


def test_sweeps_know_a_part_by_what_it_holds(place, tmp_path):
  def parts(path):
    made = sweep_lib.Run(sweep_lib.Sweep(
        str(tmp_path / 'out'), (points.Curve(
            targets.Lossless, drafter=f'eagle:{path}'),),
        str(place / 'verifier'), None, examples=1, gamma=2,
        buckets=((80, 20),)))
    return made.inputs['parts'], set(made.points)

  path = tmp_path / 'part'
  seen = []
  for seed in (0, 0, 1):
    besides.write_part(path, place / 'verifier', 'features', seed)
    seen.append(parts(path))
  assert seen[0][0] == {f'eagle:{path}': beside.read(
      place / 'part/features').sha256}
  assert seen[0] == seen[1] and not seen[0][1] & seen[2][1]


def test_beside_a_decoder_of_another_format(tmp_path):
  """Its digest is of the file; what it drafts is judged by it."""
  pytest.importorskip('tokenizers')
  path = str(ggufs.make(tmp_path / 'x.gguf', 'llama', ggufs.byte_level()))
  found = checkpoints.load(path)
  pair = pairs.load(path, None)
  for config in (features.FeatureConfig(2, 4, 8), heads.HeadsConfig(
      2, paths=besides.LINE)):
    lm = features.beside(found.lm, config)
    name, out = config.drafters[0], tmp_path / config.kind
    beside.write(out, lm, lm.fresh(found.params, jax.random.key(0)),
                 extras.Owner('x', pairs.digest(path)))
    drafter, params = drafting.make(f'{name}:{out}', pair, 2)
    assert params['model'] is pair.verifier.params
    got, want = (decoded(pair, *x, 0.) for x in (
        (drafter, params), (null.Null(), None)))
    np.testing.assert_array_equal(got[0], want[0])
