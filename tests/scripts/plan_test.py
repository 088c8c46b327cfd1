"""The planner and the benchmarks on the command line; nothing is measured."""
import cli_test
import fakecosts
import fakesweep
import pytest

from spec_cascades.evaluation import costs
from spec_cascades.evaluation import results


@pytest.fixture
def files(tmp_path):
  """A sweep's folder and a file of costs."""
  results.write_rows(tmp_path / 'results.jsonl', fakesweep.make(limit=3).rows)
  costs.write(tmp_path / 'costs.json', fakecosts.make())
  return tmp_path, tmp_path / 'costs.json'


def test_a_plan_has_a_line_for_every_point(files):
  folder, path = map(str, files)
  whole, single, short = cli_test.drive('plan', [
      [folder, path], [f'{folder}/results.jsonl', path, '--acceptance', 'iid'],
      [folder, path, '--max_gamma', '2']])
  for code, err, out, programs in (whole, single, short):
    assert code == 0 and err == '' and programs == 0, err
    assert 'TokenV3 alpha=0.4 T=1' in out and 'SpecDecode T=0' in out
    head, *lines = out.split('\n\n')[1].strip().split('\n')
    assert head.split()[0] == 'point'
    assert len(lines) == len([r for r in fakesweep.make(limit=3).rows
                              if r.rule])
  assert 'Assumed: acceptance by position' in whole[2]
  assert 'Assumed: i.i.d. acceptance' in single[2]
  assert 'gamma 5' in single[2] and 'gamma 3' not in short[2]
  assert 'left out: 4 of a model alone' in whole[2]
  assert 'note: ' not in whole[2]


def test_other_machines_are_pointed_out(files):
  folder, path = files
  costs.write(path, fakecosts.make(machine='another', device='tpu'))
  (code, _, out, _), = cli_test.drive('plan', [[str(folder), str(path)]])
  assert code == 0
  assert 'note: the machine of the sweep is a processor, 2 cores' in out
  assert 'note: the device of the sweep is cpu' in out


def test_plan_refuses(files, tmp_path):
  folder, path = files
  rows, saved = (folder / 'results.jsonl').read_text(), path.read_text()
  bad = dict(rows=rows[:len(rows) // 2], none='', other='{"schema": 0}\n',
             costs=saved[:-20], binary='\x80')
  for name, content in bad.items():
    (tmp_path / name).write_text(content, encoding='latin-1')
  empty = tmp_path / 'empty'
  empty.mkdir()
  at = lambda name: str(tmp_path / name)
  good = str(folder)
  cli_test.check('plan', [
      ([], 'required'), ([good], 'costs'),
      ([at('nowhere'), str(path)], 'nowhere'),
      ([str(empty), str(path)], 'results.jsonl'),
      ([good, at('nowhere')], 'nowhere'), ([good, str(empty)], 'empty'),
      ([at('rows'), str(path)], 'line '), ([at('none'), str(path)], 'line 1'),
      ([at('other'), str(path)], 'schema 0'),
      ([at('binary'), str(path)], 'utf-8'),
      ([good, at('costs')], 'does not hold step costs'),
      ([good, at('binary')], 'does not hold step costs'),
      ([good, at('rows')], 'does not hold step costs'),
      ([good, str(path), '--acceptance', 'best'], "'best'"),
      ([good, str(path), '--acceptance', 'texts'], 'belong together'),
      ([good, str(path), '--gin_file=gin/sweeps/quickstart.gin'],
       'belong together'),
      ([good, str(path), '--acceptance', 'texts', '--gin_file=none.gin'],
       'No gin file none.gin'),
      ([good, str(path), '--gin.EXAMPLES=5'], '--gin.EXAMPLES=5 without'),
      ([good, str(path), '--max_gamma', '0'], '--max_gamma 0'),
      ([good, str(path), '--max_gamma', 'x'], "'x'")])


def test_benchmark_refuses(tmp_path):
  cli_test.check('benchmark', [
      ([], 'what'), (['speed'], "'speed'"),
      (['steps', '--runs', '0'], '--runs 0'),
      (['steps', '--output', str(tmp_path)], 'a directory; give a file'),
      (['steps', '--output', f'{__file__}/x'], 'no directory and can'),
      (['rules', '--output', str(tmp_path / 'x')], 'with steps'),
      (['rules', '--rate', '2'], 'a rate in [0, 1]'),
      (['rules', '--gamma', '0'], '--gamma 0'),
      (['rules', '--weights', str(tmp_path)], 'allowed: peers, and a path'),
      (['peers', '--weights', str(tmp_path / 'no')], 'a path that exists'),
      (['bf16', '--gammas', '0'], 'gammas from 1')])
