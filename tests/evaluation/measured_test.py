"""A finished sweep is analysed again from what it left, with equal figures."""
import json
import pathlib
import sys

import fakesweep
import pytest

from spec_cascades.evaluation import measured
from spec_cascades.evaluation import points
from spec_cascades.evaluation import report
from spec_cascades.evaluation import sweep
from spec_cascades import targets

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'scripts'))
import analyse  # noqa: E402

CURVES = (points.Curve(targets.Lossless, temperatures=(1.,)),
          points.Curve(targets.Chow, (.2, .6), (1.,)))


@pytest.fixture(scope='module')
def left(tmp_path_factory):
  directory = tmp_path_factory.mktemp('sweep')
  found = fakesweep.leave(directory, 12, CURVES)
  return directory, found, report.write(directory, found)


def files(directory):
  return {p.name: p.read_bytes() for p in (directory / 'tables').iterdir()}


def test_the_script_writes_the_tables_of_the_sweep(left, tmp_path, capsys):
  directory, _, text = left
  before = {p: p.read_bytes() for p in directory.rglob('*') if p.is_file()}
  analyse.main([str(directory), f'--output={tmp_path}'])
  assert files(tmp_path) == files(directory)
  printed = capsys.readouterr().out.removesuffix(f'{tmp_path / "tables"}\n')
  assert 'The paper\'s claims' in printed and text.endswith(printed.rstrip())
  analyse.main([str(directory)])
  assert before == {p: p.read_bytes() for p in directory.rglob('*')
                    if p.is_file()}


def test_another_share_chooses_on_other_texts(left, tmp_path):
  analyse.main([str(left[0]), '--validation=.25', f'--output={tmp_path}'])
  ours, theirs = files(tmp_path), files(left[0])
  assert {name for name in ours if ours[name] != theirs[name]} == {
      f'chosen.{end}' for end in ('md', 'tex', 'csv')}


def test_a_few_curves_are_drawn(left, tmp_path):
  analyse.main([str(left[0]), f'--output={tmp_path}', '--draw', 'Chow'])
  assert {p.name for p in tmp_path.iterdir()} == {*report.CURVES, 'tables'}
  assert all((tmp_path / name).stat().st_size > 5000
             for name in report.CURVES)
  with pytest.raises(ValueError, match="'OPT'; allowed: SpecDecode; Chow."):
    analyse.main([str(left[0]), f'--output={tmp_path / "x"}', '--draw', 'OPT'])
  assert not (tmp_path / 'x').exists()


def read(directory):
  return measured.read(directory / sweep.SCORES, directory / sweep.JOURNAL)


def test_scores_survive_a_file(left):
  directory, found, _ = left
  again = read(directory)
  assert again.points == found.measured.points and len(again.points) == 5
  assert (again.plan, again.texts, again.quality, again.seed) == (
      found.measured.plan, found.measured.texts, found.measured.quality, 0)
  assert again.stats == found.measured.stats
  for key in again.points:
    assert (again.parts[key] == found.measured.parts[key]).all()
    assert (again.seconds[key] == found.measured.seconds[key]).all()


@pytest.mark.parametrize('change, what', [
    (lambda s, j: s.unlink(), 'No scores.jsonl .* give its command again'),
    (lambda s, j: j.unlink(), 'No examples.jsonl'),
    (lambda s, j: s.write_text('{}\n'), 'does not belong to the journal'),
    (lambda s, j: s.write_text(s.read_text()[:-9]), 'does not belong'),
    (lambda s, j: s.write_text(s.read_text().replace('"sweep": "', '"sweep": "'
                                                     'x')), 'another sweep'),
    (lambda s, j: j.write_text('not json\n'), 'is not a journal'),
    (lambda s, j: j.write_text(j.read_text()[:2000].rsplit('\n', 1)[0] + '\n'),
     'does not belong')])
def test_files_that_do_not_fit_are_refused(left, tmp_path, change, what):
  paths = [tmp_path / name for name in (sweep.SCORES, sweep.JOURNAL)]
  for path in paths:
    path.write_bytes((left[0] / path.name).read_bytes())
  change(*paths)
  with pytest.raises(ValueError, match=what):
    read(tmp_path)


@pytest.mark.parametrize('change, what', [
    (lambda path: path.unlink(), 'No results.jsonl .* command of the sweep'),
    (lambda path: path.write_text(path.read_text().split('\n', 1)[1]),
     'other points than the journal'),
    (lambda path: path.write_text(path.read_text().replace(
        '"key": "', '"key": "x', 1)), 'other points than the journal')])
def test_rows_of_another_sweep_are_refused(left, tmp_path, change, what):
  for name in (sweep.SCORES, sweep.JOURNAL, sweep.RESULTS):
    (tmp_path / name).write_bytes((left[0] / name).read_bytes())
  change(tmp_path / sweep.RESULTS)
  with pytest.raises(ValueError, match=what):
    analyse.main([str(tmp_path)])
  assert not (tmp_path / 'tables').exists()


@pytest.mark.parametrize('flags, what', [
    (['--validation=1'], 'allowed: a share'), (['--seed=-1'], 'whole numbers'),
    (['--other=3'], 'unrecognized'), (['--validation=x'], 'invalid float')])
def test_flags_that_do_not_fit_are_refused(left, flags, what):
  with pytest.raises(ValueError, match=what):
    analyse.main([str(left[0]), *flags])


def test_scores_name_no_text(left):
  """Digests only: data sets may not be passed on."""
  head = json.loads((left[0] / sweep.SCORES).read_text().split('\n', 1)[0])
  assert all(len(x) == 64 and int(x, 16) for x in head['texts'])
