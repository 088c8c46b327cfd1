"""A finished sweep is asked for its time split, origins and predictions."""
import collections
import dataclasses
import itertools
import json
import re

import fakecosts
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweep_run_test import Bar

from spec_cascades import baselines
from spec_cascades import decode
from spec_cascades import hosts
from spec_cascades import targets
from spec_cascades import types
from spec_cascades.drafters import chain
from spec_cascades.drafters import ngram
from spec_cascades.drafters import null
from spec_cascades.drafters import space
from spec_cascades.drafters import stop
from spec_cascades.evaluation import details
from spec_cascades.evaluation import executors
from spec_cascades.evaluation import foretold
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import origins
from spec_cascades.evaluation import parts
from spec_cascades.evaluation import planner
from spec_cascades.evaluation import points
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import report
from spec_cascades.evaluation import results
from spec_cascades.evaluation import split
from spec_cascades.evaluation import sweep as sweep_lib
from spec_cascades.evaluation import timing
from spec_cascades.models import masks
from spec_cascades.warp import Warp
from tests.common import LM, P, Q, keys, prompt
from tests.models import tiny

CURVES = (points.Curve(targets.Chow, (.3,)),)


@pytest.fixture(scope='module')
def plain(pair_dir, tmp_path_factory):
  """A sweep that asks for nothing, and what it found."""
  sweep = sweep_lib.Sweep(
      str(tmp_path_factory.mktemp('sweep')), CURVES, str(pair_dir / 'verifier'),
      str(pair_dir / 'drafter'), examples=4, gamma=3, buckets=((80, 20),),
      predicted=False)
  return sweep, sweep_lib.Run(sweep)(Bar)


@pytest.fixture(scope='module')
def asked(plain):
  """The same sweep, asked afterwards."""
  sweep = dataclasses.replace(plain[0], split=True, inspected=2,
                              predicted=True)
  run = sweep_lib.Run(sweep)
  journal = (run.directory / sweep_lib.JOURNAL).read_bytes()
  found = run(Bar)
  assert (run.directory / sweep_lib.JOURNAL).read_bytes() == journal
  return run, found


def records(run):
  lines = (run.directory / sweep_lib.JOURNAL).read_text().splitlines()
  made = [results.Record(**entry) for entry in map(json.loads, lines)
          if entry['kind'] == 'example']
  return {(x.key, x.example): x for x in made}


def test_nothing_is_measured_unasked(plain):
  assert plain[1].split is None and plain[1].texts is None
  assert plain[1].predicted is None


def test_results_stay_as_they_were(plain, asked):
  assert asked[1].rows == plain[1].rows


def test_the_split_is_what_the_sweep_counted_times_costs(asked):
  run, found = asked
  assert [x.key for x in found.split] == [row.key for row in found.rows]
  known = records(run)
  for x in found.split:
    (width, cap, *costs), = x.costs
    assert (width, cap) == (80, 20) and min(costs) > 0
    own = [known[x.key, i] for i in range(4)]
    rounds = np.mean([r.stats['rounds'] for r in own])
    assert x.rounds == pytest.approx(rounds)
    assert x.parts == pytest.approx([costs[0], *(
        cost * rounds for cost in costs[1:])])
    assert x.whole == pytest.approx(1e3 * np.mean([r.seconds for r in own]))


def test_origins_are_those_that_the_sweep_counted(asked):
  run, found = asked
  index = {x.id: x.index for x in run.examples}
  assert len(found.texts) == 2
  for text in found.texts:
    assert [x.key for x in text.decoded] == [row.key for row in found.rows]
    for x in text.decoded:
      record, point = records(run)[x.key, index[text.id]], run.points[x.key]
      assert x.same and len(x.tokens) == len(record.tokens)
      kinds = collections.Counter(token.origin for token in x.tokens)
      if not point.drafter:
        assert set(kinds) == {''}
        assert all(token.pi is None for token in x.tokens)
        continue
      assert x.calls == record.stats['verifier_calls']
      for kind in ('accepted', 'corrected', 'bonus'):
        assert kinds[kind] == record.stats[kind]


def test_probabilities_fit_what_was_written(asked):
  """Greedy text is what a model likes best, and pi is one there."""
  run, found = asked
  for x in (x for text in found.texts for x in text.decoded):
    point = run.points[x.key]
    assert all(0 < t.q <= 1 and 0 < t.p <= 1 for t in x.tokens)
    if point.drafter and not point.temperature:
      assert all(t.pi == 1 for t in x.tokens)
    elif point.drafter:
      assert all(t.pi == pytest.approx(t.q, rel=.01)
                 or t.pi == pytest.approx(t.p, rel=.01) for t in x.tokens)


@pytest.mark.slow
def test_every_kind_of_drafter_can_be_inspected(plain):
  """By the model that is q, within what stops it or drafts for it, if any."""
  kinds = dict(tracking=True, cascade=True, exit=True, pipelined=False)
  curves = [points.Curve(targets.TokenV3, (.4,), (1.,), kind, kind)
            for kind in kinds]
  curves.append(points.Curve(targets.Lossless, (), (1.,), 'tracking', 'p'))
  run = sweep_lib.Run(dataclasses.replace(
      plain[0], output_dir=f'{plain[0].output_dir}_kinds', curves=curves,
      examples=1, inspected=1))
  text, = run(Bar).texts
  assert len(text.decoded) == 7
  for x in text.decoded:
    method = run.points[x.key].method
    known = kinds.get(method, True)
    for t in x.tokens:
      assert (t.q is not None) == known
      assert (t.pi is not None) == (known and bool(run.points[x.key].drafter))
      if t.pi is not None:
        assert t.pi == pytest.approx(t.p, rel=.02) if method == 'p' else t.pi


def test_predictions_are_the_planners(asked):
  """Of each point with drafts; exact at T=0, where nothing is drawn."""
  run, found = asked
  drafted = [row for row in found.rows if row.drafter]
  plans = planner.forecast(
      drafted, fakecosts.make(), acceptance='texts',
      texts=run.acceptance(lambda keys, **_: keys))
  assert [(x.key, x.predicted, x.decoded) for x in found.predicted] == [
      (p.row.key, p.tokens[3], p.row.tokens_per_call) for p in plans]
  assert {x.temperature for x in drafted} == {0., 1.}
  for row, x in zip(drafted, found.predicted):
    if not row.temperature:
      assert x.predicted == pytest.approx(x.decoded)


def test_predictions_are_made_wherever_they_can_be(monkeypatch):
  chosen = sweep_lib.Sweep('x', CURVES)
  assert chosen.predicts
  assert not dataclasses.replace(chosen, predicted=False).predicts
  cut = dataclasses.replace(chosen, mesh=meshes.Mesh(1, 2))
  assert cut.predicts
  assert not dataclasses.replace(chosen, executor=executors.Ray()).predicts
  monkeypatch.setattr(hosts, 'count', lambda: 2)
  assert chosen.predicts and not cut.predicts
  with pytest.raises(ValueError, match='allowed on several devices: predicted'):
    dataclasses.replace(cut, predicted=True)


def test_a_memory_too_small_for_them_loses_nothing(asked, monkeypatch):
  run, _ = asked
  path = run.directory / details.PREDICTED
  before, rows = path.read_bytes(), run.directory / sweep_lib.RESULTS
  def full(*unused):
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory.\nmore')
  monkeypatch.setattr(foretold, 'tokens_per_call', full)
  path.unlink()
  rows.unlink()
  try:
    with pytest.raises(ValueError, match=r'^RESOURCE_EXHAUSTED: Out of memory. '
                       r'\(reading texts.*predicted=False reports them\.$'):
      sweep_lib.Run(run.sweep)(Bar)
  finally:
    path.write_bytes(before)
  assert len(rows.read_text().splitlines()) == len(run.points)


def test_a_prediction_that_is_there_is_not_made_again(asked, monkeypatch):
  """And is shown with a warning where it is not what was decoded."""
  run, found = asked
  path, measured = run.directory / details.PREDICTED, []
  before = path.read_bytes()
  first, last = found.predicted
  wrong = dataclasses.replace(first, predicted=1.5 * first.decoded)
  results.write_rows(path, [wrong])                # killed before the last
  monkeypatch.setattr(foretold, 'tokens_per_call', lambda *args: (
      measured.append(args[2]), last.decoded)[1])
  try:
    again = sweep_lib.Run(run.sweep)(Bar)
  finally:
    path.write_bytes(before)
  assert measured == [run.points[last.key]]
  printed = report.write(run.directory, again)
  assert f'{1.5 * first.decoded:.2f} (+50.0%)' in printed
  warned = [x for x in printed.splitlines() if x.startswith('warning: ')]
  assert len(warned) == 1 and f'at {first.point} ' in warned[0]
  assert warned[0] in (run.directory / report.PAGE).read_text('utf-8')


def test_a_part_goes_on_from_where_it_was(asked):
  """Else a compiler may do it once for all the times that it is timed."""
  run, _ = asked
  made = programs_lib.Programs(run.pair, CURVES)
  point = next(x for x in run.points.values() if x.drafter)
  bucket, prompt, keys = programs_lib.Prompts(run.rows, run.buckets, 0)(0)
  spec, params, draft_params = made.loop(point, bucket)
  found = parts._prefills(2, spec, params, draft_params, prompt, keys)
  drafts = lambda steps: parts._drafts(steps, spec, draft_params, found, keys,
                                       *made.chosen(point))
  first, second = drafts(1), drafts(2)
  assert first.tree.tokens[0, 0] == 0              # as every text begins
  assert second.tree.tokens[0, 0] == first.tree.tokens[0, -1]
  scores = lambda steps, tree: parts._scores(steps, spec, params, found[0],
                                             tree)
  likeliest = scores(1, first.tree).argmax(-1)
  np.testing.assert_allclose(
      scores(2, first.tree),
      scores(1, first.tree.replace(tokens=likeliest)), rtol=1e-4, atol=1e-5)


def test_a_prompt_is_read_as_often_as_it_is_timed():
  """The encoder's products are in the loop, none of them before it."""
  lm = tiny.LMS['t5_1_0']
  given = types.Prompt(jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32),
                       tiny.inputs_of(lm, rows=1))
  code = parts._prefills.lower(
      2, decode.GenSpecSample(lm, null.Null(), 12), tiny.params_of(lm), None,
      given, keys(1)).compile().as_text()
  before, entry = code.split('\nENTRY ')
  products = re.compile(r'= \S+ (?:dot|custom-call)\(')
  assert len(products.findall(before)) > 4 and not products.findall(entry)


def test_the_page_shows_them(asked):
  run, found = asked
  report.write(run.directory, found)
  content = (run.directory / report.PAGE).read_text(encoding='utf-8')
  assert 'Where the time goes' in content
  assert content.count('<details') == 2


def test_nothing_is_measured_twice(asked):
  run, found = asked
  with timing.CompileLog() as log:
    again = sweep_lib.Run(run.sweep)(Bar)
  assert log.programs == 0
  assert again.split == found.split and again.texts == found.texts
  assert again.predicted == found.predicted


def test_a_split_that_was_killed_goes_on(asked, monkeypatch):
  """No time that was taken is taken again, and one cut short is."""
  run, found = asked
  whole, taken = run.directory / details.SPLIT, run.directory / split.TAKEN
  before, lines = whole.read_bytes(), taken.read_bytes().splitlines(True)
  assert len(lines) == split.REPEATS * len(found.split)
  whole.unlink()
  taken.write_bytes(b''.join(lines[:-2]) + lines[-2][:9])
  calls, once = [], parts.seconds
  monkeypatch.setattr(parts, 'seconds',
                      lambda *args: calls.append(args) or once(*args))
  again = sweep_lib.Run(run.sweep)(Bar)
  assert taken.read_bytes().startswith(b''.join(lines[:-2]))
  assert len(taken.read_bytes().splitlines()) == len(lines)
  late = {json.loads(line)['key'] for line in lines[-2:]}
  assert len(calls) == 2 + len(late)               # to compile, and two turns
  before_by = {x.key: x for x in found.split}
  for x in again.split:
    assert x.key in late or x.parts == before_by[x.key].parts
  whole.write_bytes(before)


def test_few_programs_are_there_at_a_time(asked, monkeypatch):
  """Each group compiles its own, with those of others forgotten."""
  run, found = asked
  whole, taken = run.directory / details.SPLIT, run.directory / split.TAKEN
  before = whole.read_bytes(), taken.read_bytes()
  whole.unlink()
  taken.unlink()
  monkeypatch.setattr(split, 'GROUP', 2)
  events, once, clear = [], parts.seconds, jax.clear_caches
  monkeypatch.setattr(jax, 'clear_caches',
                      lambda: (events.append(None), clear()))
  monkeypatch.setattr(parts, 'seconds', lambda loop, *args: (
      events.append(args[-1]), once(loop, *args))[1])
  again = sweep_lib.Run(run.sweep)(Bar)
  count = len(found.split)
  assert [x.key for x in again.split] == [x.key for x in found.split]
  groups = [list(some) for forgot, some in itertools.groupby(
      events, lambda x: x is None) if not forgot]
  assert len(groups) == events.count(None) == -(-count // 2) > 1
  assert [len(x) for x in groups] == [
      (1 + split.REPEATS) * n for n in [2] * (count // 2) + [1] * (count % 2)]
  lines = [json.loads(x)['key'] for x in taken.read_bytes().splitlines()]
  assert sorted(lines) == sorted(
      x.key for x in found.split for _ in range(split.REPEATS))
  whole.write_bytes(before[0])
  taken.write_bytes(before[1])


@pytest.mark.parametrize('name', [details.SPLIT, details.TEXTS,
                                  details.PREDICTED])
@pytest.mark.parametrize('change', [
    lambda text: text[:len(text) // 3], lambda text: '{"schema": 1}',
    lambda text: text.replace('"sweep": "', '"sweep": "0')])
def test_files_of_others_are_refused_before_anything_runs(asked, name, change):
  run, _ = asked
  path = run.directory / name
  before = path.read_text()
  path.write_text(change(before))
  try:
    with pytest.raises(ValueError, match='of this sweep; move it'):
      sweep_lib.Run(run.sweep)
  finally:
    path.write_text(before)


def test_texts_that_differ_come_first_and_there_is_room_for_all(
    asked, monkeypatch):
  run, found = asked
  figures = collections.namedtuple('Figures', 'ready base')
  keys = [row.key for row in found.rows if row.temperature == 0]
  base, *others = keys
  made = {(key, i, 0): results.Record(key, i, 1., [7, 8, 9, 1], 0, {})
          for key in keys for i in range(4)}
  for i, wrong in ((1, 1), (2, 3)):
    made[others[0], i, 0].tokens[:wrong] = [5] * wrong
  some = figures(lambda _: keys, {0.: base})
  assert origins.chosen(run, some, made) == [2, 1]
  monkeypatch.setattr(origins, 'MAX_TOKENS', 4 * len(keys))
  assert origins.chosen(run, some, made) == [2]
  monkeypatch.setattr(origins, 'MAX_TOKENS', 4)
  assert origins.chosen(run, some, made) == []


@pytest.mark.parametrize('changes', [
    dict(split=1), dict(split=None), dict(predicted=1),
    dict(inspected=-1), dict(inspected=True), dict(inspected=None)])
def test_bad_settings(plain, changes):
  with pytest.raises(ValueError, match='allowed: '):
    dataclasses.replace(plain[0], **changes)


def test_all_loops_but_those_of_baselines_have_a_split():
  curves = [points.Curve(targets.Lossless, temperatures=(0.,)),
            points.Curve(targets.Lossless, (), (0.,), 'ngram', 'copying'),
            points.Curve(targets.Lossless, (), (0.,), 'rest:x', 'REST'),
            points.Curve(targets.Lossless, (), (0.,), 'tracking', 'stopping'),
            points.Curve(baselines.SeqCascade, (.5,), (0.,))]
  made = programs_lib.Programs(None, curves)
  fit = {x.method: split.fits(x, made) for x in points.expand(curves, gamma=2)}
  assert fit == dict(verifier=True, drafter=True, SpecDecode=True,
                     copying=True, REST=True, stopping=True,
                     SeqCascade=False)


@pytest.mark.parametrize('drafter,params', [
    (ngram.NGram(3), None), (chain.Chain(LM, 3, stop.Below(.6)), Q)],
                         ids=['lookup', 'stops'])
def test_rounds_that_differ_in_cost_are_timed_one_by_one(
    drafter, params, monkeypatch):
  """By the drafts and the logits that the loop itself has in each."""
  loop = decode.GenSpecSample(LM, drafter, 12, eos=-1), P, params
  chosen = targets.Lossless(), Warp()
  seen = dict(_redrafts=[], _rescores=[])
  for name, found in seen.items():
    once = getattr(parts, name)
    monkeypatch.setattr(parts, name, lambda *args, once=once, found=found: (
        found.append(once(*args)), found[-1])[1])
  took = parts.along(loop, prompt(1), keys(1), chosen)
  assert set(took) == {*parts.PARTS, parts.DRAFT_STEPS}
  assert took[parts.DRAFT_STEPS] == 0 and min(
      took[part] for part in parts.PARTS) > 0
  rounds = list(decode.stream(*loop, prompt(1), keys(1), *chosen))
  # The first call of each pair, of one step, says how many the second has.
  assert len(rounds) == len(seen['_redrafts']) / 2 > 3
  want = [x.feedback for x in rounds for _ in range(2)]
  for feedback, draft, logits in zip(want, *seen.values()):
    np.testing.assert_array_equal(draft.tree.parents,
                                  feedback.draft.tree.parents)
    np.testing.assert_array_equal(draft.tree.tokens, feedback.draft.tree.tokens)
    np.testing.assert_allclose(logits, feedback.logits, atol=1e-6)
  assert len({x.draft.tree.num_drafts.item() for x in want}) > 1


def test_what_is_done_once_a_text_is_no_part_of_a_draft(monkeypatch):
  """SPACE reads its first draft in a pass of its own."""
  beside = dict(model=P, heads=dict(embedding=jax.random.dirichlet(
      jax.random.key(5), jnp.full(5, .3), (3,))))
  drafter = space.Space(masks.Masked(LM, masks.MasksConfig(3)), 2)
  loop = decode.GenSpecSample(LM, drafter, 20, eos=-1), P, beside
  seen, drafts = [], parts._drafts
  monkeypatch.setattr(parts, '_drafts', lambda *args: (
      seen.append(drafts(*args)), seen[-1])[1])
  took = parts.seconds(loop, prompt(1), keys(1), (targets.Lossless(), Warp()))
  assert set(took) == {*parts.PARTS, parts.DRAFT_STEPS}
  assert [draft.calls.tolist() for draft in seen] == [[0], [0]]


def test_a_part_that_takes_long_is_repeated_less(monkeypatch):
  """At least twice; what one step takes is that of all over their number."""
  asked, seconds = [], {}
  monkeypatch.setattr(parts.timing, 'timed', lambda function, steps, *args: (
      asked.append(steps), (seconds['of one'] * steps, args))[1])
  for seconds['of one'], steps in ((1e-4, 24), (.02, 13), (.2, 2), (30., 2)):
    took, out = parts._timed(None, 24, 'a')
    assert took == pytest.approx(seconds['of one']) and out == ('a',)
    assert asked[-2:] == [1, steps]
