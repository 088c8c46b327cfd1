"""A sweep by several processes: the rows of one, and it goes on after a death.

Each process has its own devices and decodes units that the first one deals out;
dealing_test.py has the dealing without a model. Or all of them lie on one mesh,
and decode each unit together.
"""
import json
import signal
import sys

import gin
import pytest

import processes
import sweeping
from spec_cascades.evaluation import results
from spec_cascades.evaluation import sweep as sweep_lib
from tests.evaluation.sweep_run_test import Bar

sys.path.insert(0, str(processes.ROOT / 'scripts'))
import _cli  # noqa: E402


def command_of(pair_dir, out, **bindings):
  settings = {
      'OUTPUT_DIR': out, 'EXAMPLES': 6, 'GAMMA': 2, 'BUCKETS': ((80, 12),),
      'sweep.Sweep.verifier': pair_dir / 'verifier',
      'sweep.Sweep.drafter': pair_dir / 'drafter', 'sweep.Sweep.curves':
      '[@chow/points.Curve()]', 'chow/points.Curve.alphas': (.5,),
      'chow/points.Curve.temperatures': (1.,), **bindings}
  return ['scripts/sweep.py', '--gin_file=gin/sweeps/quickstart.gin',
          *(f'--gin.{name}={value}' for name, value in settings.items())]


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
  """What one compiles, the others need not."""
  return dict(
      JAX_COMPILATION_CACHE_DIR=str(tmp_path_factory.mktemp('cache')),
      JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0')


@pytest.fixture(scope='module')
def whole(pair_dir, tmp_path_factory):
  """By one process: this one."""
  out = tmp_path_factory.mktemp('one') / 'out'
  _, file, *args = command_of(pair_dir, out)
  _, bindings = _cli.parse(_cli.Parser(), args)
  _cli.configure([file.removeprefix('--gin_file=')], bindings)
  sweep_lib.Run(_cli.call(sweep_lib.Sweep))(Bar)
  gin.clear_config()
  return out


def rows_of(directory):
  return [results.deterministic(row) for row in results.read_rows(
      directory / sweep_lib.RESULTS)]


def tokens_of(directory):
  found = sweeping.records(directory / sweep_lib.JOURNAL)
  keys = [(x['key'], x['example'], x['trial']) for x in found]
  assert len(set(keys)) == len(keys)            # nothing twice
  return {key: x['tokens'] for key, x in zip(keys, found)}


@pytest.mark.slow
def test_two_processes_give_the_rows_of_one(pair_dir, whole, cache, tmp_path):
  out = tmp_path / 'two'
  texts = processes.finish(processes.start(
      2, *command_of(pair_dir, out), **cache))
  assert rows_of(out) == rows_of(whole) and len(rows_of(out)) == 3
  assert tokens_of(out) == tokens_of(whole)
  assert str(out / 'report.html') in texts[0][0]
  line, = texts[1][0].splitlines()
  count, what = line.split(' ', 1)
  assert 0 <= int(count) <= 6 and what == f'units decoded for {out}'


# More decodes than can be made in the half minute until a death is noticed.
LONG = {'EXAMPLES': 200, 'BUCKETS': ((80, 60),),
        'chow/points.Curve.alphas': tuple(x / 96 for x in range(96))}
DECODES = 200 * (96 + 2)


def killed(command, out, cache, count, victim, decodes=DECODES):
  """One of `count` is killed when 12 decodes are done; the same goes on."""
  several = processes.start(count, *command, **cache)
  processes.wait_for(lambda: len(sweeping.records(
      out / sweep_lib.JOURNAL)) >= 12, *several)
  several[victim].send_signal(signal.SIGKILL)
  errors = processes.stopped([x for x in several if x is not several[victim]])
  several[victim].communicate()
  done = len(tokens_of(out))
  assert 12 <= done < decodes
  for err in errors:
    said = [x for x in err.splitlines() if x.startswith('sweep.py: ')]
    assert len(said) == 1 and 'The same command goes on' in said[0], err
    assert 'Check failure' not in err
  processes.finish(processes.start(count, *command, **cache))
  assert len(tokens_of(out)) == decodes
  return out


@pytest.mark.slow
@pytest.mark.parametrize('count,victim', [(2, 0), (2, 1), (4, 2)])
def test_a_killed_process_stops_all_and_the_same_command_goes_on(
    pair_dir, cache, tmp_path, count, victim):
  out = tmp_path / 'out'
  killed(command_of(pair_dir, out, **LONG), out, cache, count, victim)
  alone = tmp_path / 'alone'
  processes.finish(processes.start(1, *command_of(
      pair_dir, alone, **LONG), **cache))
  assert rows_of(out) == rows_of(alone) and tokens_of(out) == tokens_of(alone)


def on_one_mesh(pair_dir, out, data, model, **bindings):
  """Two of these devices' worth of work for each process."""
  return [*command_of(pair_dir, out, DATA=data, MODEL=model, **bindings),
          '--gin_file=gin/executors/mesh.gin']


def late(directory):
  """Programs that were compiled while the clock ran, as the journal says."""
  notes = map(json.loads, (directory / sweep_lib.JOURNAL).open())
  return [x['programs'] for x in notes if x.get('kind') == 'decoded']


def less_keys(directory):
  """Deterministic columns but those that name the mesh's own points."""
  names = ('key', 'sweep')
  return [{k: x for k, x in row.items() if k not in names}
          for row in rows_of(directory)]


def test_two_processes_on_one_mesh_give_the_rows_of_one(
    pair_dir, whole, cache, tmp_path):
  """One device each, that cut the model between them: both decode all."""
  out = tmp_path / 'mesh'
  texts = processes.finish(processes.start(
      2, *on_one_mesh(pair_dir, out, 1, 2), **cache))
  assert less_keys(out) == less_keys(whole) and len(rows_of(out)) == 3
  assert texts[1][0] == f'6 units decoded for {out}\n'
  assert late(out) == [0]


@pytest.mark.slow
def test_four_processes_on_one_mesh_in_batches(pair_dir, cache, tmp_path):
  """And a drafter and a baseline that decode in other ways."""
  more = tmp_path / 'more.gin'
  more.write_text("""
from __gin__ import dynamic_registration
from spec_cascades import baselines
from spec_cascades import targets
from spec_cascades.evaluation import points
copied/points.Curve.rule = @targets.Lossless
copied/points.Curve.temperatures = (1.,)
copied/points.Curve.drafter = 'ngram'
sequential/points.Curve.rule = @baselines.SeqCascade
sequential/points.Curve.alphas = (.4,)
sequential/points.Curve.temperatures = (1.,)
""")
  changes = {'sweep.Sweep.batch': 4, 'sweep.Sweep.timed': 5, 'EXAMPLES': 10,
             'sweep.Sweep.curves': '[@copied/points.Curve(), '
             '@sequential/points.Curve()]'}
  alone, out = tmp_path / 'alone', tmp_path / 'mesh'
  processes.finish(processes.start(
      1, *command_of(pair_dir, alone, **changes), f'--gin_file={more}',
      **cache))
  processes.finish(processes.start(
      4, *on_one_mesh(pair_dir, out, 2, 2, **changes), f'--gin_file={more}',
      **cache))
  assert less_keys(out) == less_keys(alone) and len(rows_of(out)) == 4
  assert late(out) == [0]


@pytest.mark.slow
@pytest.mark.parametrize('victim', [0, 1])
def test_a_death_on_one_mesh_stops_both_and_the_same_command_goes_on(
    pair_dir, whole, cache, tmp_path, victim):
  out = tmp_path / 'out'
  killed(on_one_mesh(pair_dir, out, 1, 2), out, cache, 2, victim, 18)
  assert less_keys(out) == less_keys(whole)


@pytest.mark.slow
@pytest.mark.parametrize('data,model', [(1, 3), (4, 2)])
def test_a_mesh_of_neither_one_nor_all_processes_is_refused(
    pair_dir, tmp_path, data, model):
  out = tmp_path / 'out'
  for err in processes.stopped(processes.start(
      2, *on_one_mesh(pair_dir, out, data, model), devices=2)):
    said, = [x for x in err.splitlines() if x.startswith('sweep.py: ')]
    assert 'this process has 2, all 2 together 4; allowed: up to 2' in said
  assert not out.exists()


@pytest.mark.slow
def test_four_processes_measure_quality_in_batches_and_latency_apart(
    pair_dir, cache, tmp_path):
  changes = {'sweep.Sweep.batch': 4, 'sweep.Sweep.timed': 5}
  outs = [tmp_path / str(count) for count in (1, 4)]
  for count, out in zip((1, 4), outs):
    processes.finish(processes.start(count, *command_of(
        pair_dir, out, EXAMPLES=30, **changes), **cache))
  assert rows_of(outs[0]) == rows_of(outs[1])
  assert tokens_of(outs[0]) == tokens_of(outs[1])


@pytest.mark.slow
@pytest.mark.parametrize('name,said', [
    ('SEED', 'seed is 1, not 0'), ('sources.Corpus.seed', 'texts to take'),
    ('sources.Corpus.cut', 'texts to take'), ('EXAMPLES', 'texts to take')])
def test_processes_that_differ_are_refused(pair_dir, tmp_path, name, said):
  """The second is told another number: one line on each, nothing written."""
  out = tmp_path / 'out'
  (tmp_path / 'test.jsonl').write_text('\n'.join(
      json.dumps(dict(id=str(i), en='a word', de='ein Wort',
                      near_duplicate=False)) for i in range(9)))
  command = [*command_of(pair_dir, out, **{
      'sources.Corpus.directory': tmp_path,
      'sweep.Sweep.data': '@sources.Corpus()'}),
             '--gin_file=gin/tasks/debian_ende.gin']
  both = processes.start(2, '-c', f'''
import os, runpy, sys
sys.path.insert(0, 'scripts')
sys.argv = {[str(x) for x in command]!r}
own = int(os.environ['JAX_PROCESS_ID']) + {0 if name == 'SEED' else 7}
sys.argv.append(f'--gin.{name}={{own}}')
runpy.run_path(sys.argv[0], run_name='__main__')
''')
  for err in processes.stopped(both):
    lines = [x for x in err.splitlines() if x.startswith('sweep.py: ')]
    assert len(lines) == 1 and said in lines[0], err
  assert not (out / sweep_lib.JOURNAL).exists()
