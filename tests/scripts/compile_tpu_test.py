"""compile_tpu.py on the command line; but for a slow test nothing compiles."""
import importlib.util
import json
import subprocess
import sys

import cli_test
import pytest

from spec_cascades.evaluation import estimated

sys.path.insert(0, str(cli_test.ROOT / 'scripts'))
import tpu_table  # noqa: E402

CONFIG = '--config=gin/tpu/t5_small_xl.gin'


def test_it_refuses():
  v4 = '--topology=v4-8'
  cli_test.check('compile_tpu', [
      ([CONFIG], '--topology'), ([v4], '--config'),
      (['--topology=v4-4', CONFIG], 'v4-8, v4-16'),
      (['--topology=h100', CONFIG], 'v6e-256'),
      ([v4, '--config=gin/tpu/none.gin'], 'No gin file'),
      ([v4, CONFIG, '--gin.VERIFER=t5_base'], 'VERIFER'),
      ([v4, CONFIG, '--gin.VERIFIER=t5_huge'], 'Unknown preset'),
      ([v4, CONFIG, '--gin.DRAFTER=gemma2_2b'], 'do not go together'),
      ([v4, CONFIG, '--gin.BATCH=3', '--gin.DATA=2'], 'a multiple'),
      ([v4, CONFIG, '--config=gin/tpu/fsdp.gin', '--gin.BATCH=3'],
       '3 rows on data=4'),
      ([v4, CONFIG, '--acceptance=80%'], 'from 0 to 1'),
      ([v4, CONFIG, '--widths=2,4'], '1 among them'),
      ([v4, CONFIG, '--widths=1,x'], 'whole numbers from 1'),
      ([v4, CONFIG, '--widths=1,²'], 'whole numbers from 1'),
      ([v4, CONFIG, '--widths=1,2'], 'the block of a round'),
      ([v4, CONFIG, '--gin.VERIFIER=[1]'], 'Unknown preset'),
      ([v4, CONFIG, '--batches=0,4'], 'whole numbers from 1'),
      ([v4, CONFIG, '--outputs=-1'], '0 or more'),
      ([v4, CONFIG, '--price=3'], 'without --outputs'),
      ([v4, CONFIG, '--outputs=9', '--batches=1'], 'with the times of steps'),
      ([v4, CONFIG, '--outputs=9', '--acceptance=.8,.7'], 'one a position'),
      ([v4, CONFIG, '--hop_us=-1'], '0 or more'),
      *(([v4, CONFIG, f'--gin.{given}'], what) for given, what in (
          ('DTYPE=float7', "dtype='float7'; allowed: float32, bfloat16"),
          ('DTYPE=int8', "dtype='int8'"), ('LAYERS=0', 'layers=0; allowed: a'),
          ('LAYERS=-1', 'layers=-1'), ('LAYERS=2.', 'layers=2.0'),
          ('USES_Q=maybe', "uses_q='maybe'; allowed: True or False"),
          ('GAMMA=x', "gamma='x'; allowed: a whole number, 1 or more"),
          ('GAMMA=512', 'less than 512'), ('BATCH=1.5', 'batch=1.5'),
          ('DATA=True', 'data=True'), ('RULES=5', 'data, tensor, fsdp'))),
      ([v4, CONFIG, '--hop_us=inf'], '0 or more'),
      ([v4, CONFIG, '--outputs=9', '--price=inf'], '0 or more'),
      ([v4, CONFIG, '--widths=1,1000000'], 'up to 512'),
      ([v4, CONFIG, '--json=/tmp'], 'give a file in a folder'),
      ([v4, CONFIG, f'--json={__file__}/x'], 'give a file in a folder'),
      ([v4, CONFIG, '--only=steps', '--batches=1'], 'one of the two')])


def test_a_pair_comes_first():
  v4, fsdp = '--topology=v4-8', '--config=gin/tpu/fsdp.gin'
  first = 'the file of a pair first'
  cli_test.check('compile_tpu', [
      ([v4, fsdp], f'names no pair of models; allowed: {first}'),
      ([v4, fsdp, CONFIG], first), ([v4, CONFIG, fsdp, CONFIG], first),
      ([v4, CONFIG, '--config=gin/tpu/none.gin'], 'No gin file'),
      ([v4, CONFIG, fsdp, '--gin.BATCH=6'], '6 rows on data=4')])


BILL = """
import sys, types
sys.path.insert(0, 'scripts')
import compile_tpu
from spec_cascades.evaluation import chips, tpu
chip = chips.Chip(flops=1., hbm=0, bandwidth=1., link=1., shapes={})
program = lambda flops: tpu.Compiled('', 0., work=chips.Work(flops, 0.))
programs = types.SimpleNamespace(
    case=tpu.Case('gemma2_9b', 'gemma2_2b', gamma=1, new_tokens=10),
    reading=lambda: [(program(5.), 15.75), (program(1.), 15.75)])
flags = types.SimpleNamespace(outputs=3600, price=2., hop_us=1.)
compile_tpu._bill(programs, chip, flags, [1.], 3.)
"""


def test_all_blocks_of_a_long_prompt_are_paid_for():
  """15.75 blocks of 6 s and 5 rounds of 3: 109.5 hours for 3,600."""
  done = subprocess.run([sys.executable, '-c', BILL], cwd=cli_test.ROOT,
                        capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  assert 'a prompt of 94500.000 ms' in done.stdout
  assert 'at least 109.5 hours of the slice, 219 at 2 an hour' in done.stdout


FULL = """
import sys, types
sys.path.insert(0, 'scripts')
import compile_tpu
from spec_cascades.evaluation import chips, tpu
program = lambda name, **more: lambda *_: tpu.Compiled(
    name, 0., work=chips.Work(1., 1.), **more)
full = dict(excess='needs 50G, and 16G is there')
for name in ('judging', 'sampling'):
  programs = types.SimpleNamespace(**{
      'case': tpu.Case('gemma2_9b', 'gemma2_2b', gamma=1),
      'draft': program('drafter step'), 'judging': program('judging'),
      'sampling': program('sampling'),
      'block': lambda width: program(f'verification of {width}')(),
      name: program(name, **full)})
  flags = types.SimpleNamespace(widths=[1, 2], hop_us=1., outputs=0)
  chip = chips.topology('v5e-4').chip
  print(compile_tpu._steps(programs, chip, flags, [.8]))
"""


def test_a_round_whose_sampling_does_not_fit_has_no_times():
  """A program that does not fit does nothing, in no time."""
  done = subprocess.run([sys.executable, '-c', FULL], cwd=cli_test.ROOT,
                        capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  one, nothing, other, none = done.stdout.splitlines()
  assert one.startswith('judging: does not fit: needs 50G')
  assert other.startswith('sampling: does not fit: needs 50G')
  assert nothing == none == '{}'


@pytest.mark.skipif(importlib.util.find_spec('libtpu') is not None,
                    reason='libtpu is installed')
def test_without_libtpu_it_says_what_to_install():
  cli_test.check('compile_tpu', [
      (['--topology=v4-8', CONFIG], "pip install 'libtpu==0.0.42.*'")])


compiles = pytest.mark.skipif(
    importlib.util.find_spec('libtpu') is None,
    reason='needs requirements-compile.txt: libtpu, 200 MB')


@compiles
@pytest.mark.slow
@pytest.mark.parametrize('more', [[], ['--config=gin/tpu/fsdp.gin']])
def test_what_is_written_is_what_the_table_reads(tmp_path, more):
  path = tmp_path / 'found.json'
  done = subprocess.run(
      [sys.executable, 'scripts/compile_tpu.py', '--topology=v4-32', CONFIG,
       *more, '--widths=1,8', f'--json={path}', '--outputs=7200',
       '--price=2', '--gin.LAYERS=1', '--gin.PROMPT=32',
       '--gin.NEW_TOKENS=16', '--gin.GAMMA=2'],
      cwd=cli_test.ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  row = json.loads(path.read_text())
  wanted = {name: row[name] for name in ('jax', 'libtpu', 'topology', 'case')}
  assert not tpu_table._differs(row, wanted, [.8])
  cells = tpu_table._cells('pair', 'v4-32', row, [.8])
  assert cells[8] == (f'{row["gamma"]}{"+" * (row["gamma"] == 7)}, '
                      f'{row["speedup"]:.2f}x')
  assert len(cells) == len(tpu_table.HEAD) and '-' not in cells
  assert cells[-1] == 'none' and 'all-reduce' in cells[3]
  assert row['case']['rules'] == ('fsdp' if more else 'tensor')
  on = estimated.read(path)
  assert on.name == 'v4-32' and on.small == row['cost']
  assert 0 < on.layer == pytest.approx(1 - on.head)            # one layer
  for line in ('whole loop: ', 'no exchange, host', 'verification of 8',
               f'best gamma {row["gamma"]}',
               '7,200 outputs of 16 tokens, 6.6 rounds of gamma 2 and'):
    assert line in done.stdout


@compiles
def test_four_chips_are_not_three_groups():
  cli_test.check('compile_tpu', [
      (['--topology=v4-8', CONFIG, '--gin.BATCH=3', '--gin.DATA=3'],
       'what divides 4'),
      (['--topology=v4-8', CONFIG, '--gin.RULES=pipeline'], 'Unknown rules'),
      (['--topology=v4-8', CONFIG, '--batches=4', '--acceptance=.8,.7'],
       'one a position'),
      (['--topology=v4-8', CONFIG, '--gin.DATA=2', '--gin.BATCH=2',
        '--batches=2,3'], 'a multiple')])
