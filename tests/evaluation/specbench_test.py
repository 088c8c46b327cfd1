"""Exports for Spec-Bench: what its scripts read is what the sweep measured."""
import contextlib
import dataclasses
import io
import json
import pathlib
import shutil
import sys

import gin
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import specbench
from spec_cascades.evaluation import sweep as sweep_lib
from tests.evaluation import sweep_run_test

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'scripts'))
import _cli  # noqa: E402
import export_specbench as script  # noqa: E402

GIN = """
from __gin__ import dynamic_registration
from spec_cascades import baselines
from spec_cascades import targets
from spec_cascades.evaluation import points
from spec_cascades.evaluation import sweep
points.Curve.temperatures = (1.0,)
token/points.Curve.rule = @targets.TokenV3
token/points.Curve.alphas = (0.4,)
lookup/points.Curve.rule = @targets.Lossless
lookup/points.Curve.drafter = 'ngram'
sequential/points.Curve.rule = @baselines.SeqCascade
sequential/points.Curve.alphas = (0.5,)
sweep.Sweep.curves = [@token/points.Curve(), @lookup/points.Curve(),
                      @sequential/points.Curve()]
sweep.Sweep.examples = 3
sweep.Sweep.timed = 2
sweep.Sweep.trials = 2
sweep.Sweep.gamma = 3
sweep.Sweep.buckets = ((80, 20),)
sweep.Sweep.output_dir = %OUTPUT_DIR
"""
POINTS = 5


@pytest.fixture(name='exported', scope='module')
def _exported(pair_dir, tmp_path_factory):
  """A sweep of 3 texts, 2 of them timed twice, and the script's export."""
  where = tmp_path_factory.mktemp('sweep')
  (where / 'sweep.gin').write_text(f"{GIN}OUTPUT_DIR = '{where / 'out'}'")
  flags = [f'--gin_file={where / "sweep.gin"}',
           *(f'--gin.sweep.Sweep.{name}={pair_dir / name}'
             for name in ('verifier', 'drafter'))]
  known, bindings = _cli.parse(_cli.gin_parser(''), flags)
  _cli.configure(known.gin_file, bindings)
  run = sweep_lib.Run(_cli.call(sweep_lib.Sweep))
  run(sweep_run_test.Bar)
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    script.main(flags)
  gin.clear_config()
  return run, [pathlib.Path(line) for line in printed.getvalue().splitlines()]


def lines(path):
  return [json.loads(line) for line in path.read_text('utf-8').splitlines()]


def test_there_is_a_file_per_trial_and_point(exported):
  run, paths = exported
  assert len(paths) == len(set(paths)) == 2 * len(run.points) == 2 * POINTS
  assert paths[0].parents[1] == run.directory / 'specbench'
  assert {path.parent.name for path in paths} == {'run_1', 'run_2'}
  assert {'verifier_T=1.jsonl', 'TokenV3_alpha=0.4_T=1.jsonl'} <= {
      path.name for path in paths}
  for path in paths:
    answers = lines(path)
    assert [x['question_id'] for x in answers] == [0, 1]
    assert {x['category'] for x in answers} == {'translation'}
    assert all(len(x['choices']) == 1 for x in answers)


def test_their_figures_are_ours(exported):
  """What they compute of the files, in our words, against the journal."""
  run, paths = exported
  records, names = run.finished(), points_lib.file_names(run.points)
  base = next(key for key, x in run.points.items()
              if not x.drafter and x.model == points_lib.VERIFIER)
  again = lambda text: len(run.pair.vocabulary.encode(text)) - 1
  files = {(p.parent.name, p.stem): [x['choices'][0] for x in lines(p)]
           for p in paths}
  for folder, trial in (('run_1', 1), ('run_2', 2)):
    own = lambda key, trial=trial: [records[key, i, trial] for i in range(2)]
    # They count the baseline's tokens anew, from its text, less one.
    theirs = np.mean([sum(map(again, x['turns'])) / sum(x['wall_time'])
                      for x in files[folder, names[base]]])
    assert theirs == pytest.approx(np.mean(
        [again(run.read(r.tokens)) / r.seconds for r in own(base)]))
    for key in run.points:
      choices, mine = files[folder, names[key]], own(key)
      speed = np.mean([sum(x['new_tokens']) / sum(x['wall_time'])
                       for x in choices])
      assert speed / theirs == pytest.approx(
          np.mean([len(r.tokens) / r.seconds for r in mine]) / theirs)
      mean = np.mean([n for x in choices for n in x['accept_lengths']])
      assert mean == pytest.approx(sum(len(r.tokens) for r in mine) /
                                   sum(r.stats['rounds'] for r in mine))
      assert [sum(x['decoding_steps']) for x in choices] == [
          len(x['accept_lengths']) for x in choices] == [
              r.stats['rounds'] for r in mine]
      assert [sum(x['accept_lengths']) for x in choices] == [
          len(r.tokens) for r in mine]
      assert [x['turns'] for x in choices] == [
          [run.read(r.tokens)] for r in mine]


def test_a_model_alone_gives_a_token_a_round(exported):
  run, paths = exported
  for path in paths:
    if path.stem in ('verifier_T=1', 'drafter_T=1'):
      for line in lines(path):
        assert set(line['choices'][0]['accept_lengths']) == {1}


@given(st.integers(1, 5).flatmap(lambda gamma: st.tuples(
    st.just(gamma), st.lists(st.integers(0, gamma), max_size=20),
    st.integers(0, gamma))))
def test_lengths_of_a_chain_are_told_from_its_counters(drawn):
  """Rounds of a chain: so many drafts accepted, all of gamma gives a bonus."""
  gamma, accepted, cut = drawn
  histogram, rejected = np.zeros((2, gamma + 1), int)
  for n in accepted:
    histogram[n] += 1
    rejected[n] += n < gamma
  if cut:
    histogram[cut] += 1       # the last round, which EOS ended
  bonus = accepted.count(gamma)
  stats = dict(histogram=histogram.tolist(), rejected=rejected.tolist(),
               rounds=len(accepted) + bool(cut), bonus=bonus,
               corrected=len(accepted) - bonus)
  assert specbench.accept_lengths(stats) == sorted(
      [n + 1 for n in accepted] + [cut] * bool(cut))


def test_what_can_not_be_exported_is_refused(exported, tmp_path):
  run, paths = exported
  with pytest.raises(ValueError, match='is there; choose another --output'):
    specbench.export(run, paths[0].parent)
  fresh = sweep_lib.Run(dataclasses.replace(
      run.sweep, output_dir=str(tmp_path / 'fresh')))
  with pytest.raises(ValueError, match='Run the sweep there'):
    specbench.export(fresh, tmp_path / 'export')
  assert not (tmp_path / 'export').exists()
  path, = specbench.export(run, tmp_path / 'named', 'qa')[:1]
  assert {line['category'] for line in lines(path)} == {'qa'}


CONFIG = """
def get_sweep():
  return [(name, ('sweep.gin',), ('sweep.Sweep.output_dir = %OUTPUT_DIR',))
          for name in ('one', 'two')]
"""


def test_every_sweep_of_a_configuration_is_exported_or_none(
    exported, tmp_path, monkeypatch, capsys):
  """The command of the sweep, --config and all, is the export's, too."""
  run, paths = exported
  monkeypatch.chdir(tmp_path)
  where = run.directory.parent / 'sweep.gin'
  (tmp_path / 'sweep.gin').write_text(where.read_text('utf-8'))
  (tmp_path / 'both.py').write_text(CONFIG)
  flags = ['--config=both.py', '--output=export',
           *(f'--gin.sweep.Sweep.{name}={getattr(run.sweep, name)}'
             for name in ('verifier', 'drafter'))]
  leave = lambda name: shutil.copytree(
      run.directory, tmp_path / 'runs/both' / name,
      ignore=shutil.ignore_patterns('specbench'))
  try:
    leave('one')
    with pytest.raises(ValueError, match='No examples.jsonl in runs/both/two'):
      script.main(flags)
    assert not (tmp_path / 'export').exists()
    leave('two')
    script.main(flags)
  finally:
    gin.clear_config()
  printed = [pathlib.Path(x) for x in capsys.readouterr().out.splitlines()]
  assert {path.parents[1] for path in printed} == {
      pathlib.Path('export/one'), pathlib.Path('export/two')}
  assert len(printed) == 2 * len(paths)
  for path in printed:
    same, = (x for x in paths if x.parts[-2:] == path.parts[-2:])
    assert path.read_bytes() == same.read_bytes()


@pytest.mark.parametrize('flags', [
    [], ['--config=configs/debian.py', '--gin_file=gin/sweeps/quickstart.gin']])
def test_an_export_names_its_sweep_in_one_way(flags):
  with pytest.raises(ValueError, match='--gin_file'):
    script.main(flags)


def test_every_metric_has_a_category():
  from spec_cascades.evaluation import qualities
  assert set(specbench.CATEGORIES) == set(qualities.QUALITIES)
