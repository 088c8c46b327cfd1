"""Twenty kills at random moments leave no trace in what a sweep finds."""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from spec_cascades.evaluation import results
from spec_cascades.evaluation import sweep as sweep_lib

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).resolve().parents[2]
KILLS, POINTS, EXAMPLES, TIMED = 20, 120, 12, 4


def test_twenty_kills_change_nothing(tmp_path):
  """All points of configs/debian.py, the shipped pair, a few embedded texts."""
  env = dict(os.environ, JAX_COMPILATION_CACHE_DIR=str(tmp_path / 'cache'),
             JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0')

  def start(out):
    return subprocess.Popen(
        [sys.executable, 'scripts/sweep.py', '--gin_file=gin/sweeps/debian.gin',
         '--gin_file=gin/protocols/local.gin', f'--gin.OUTPUT_DIR={out}',
         f'--gin.EXAMPLES={EXAMPLES}', f'--gin.sweep.Sweep.timed={TIMED}',
         '--gin.sweep.Sweep.batch=6', '--gin.BUCKETS=((48, 72),)',
         '--gin.sweep.Sweep.predicted=False'],
        cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE)

  def finish(out):
    process = start(out)
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    assert f'{POINTS} points on {EXAMPLES} texts' in printed
    return [results.deterministic(row) for row in results.read_rows(
        out / sweep_lib.RESULTS)]

  def wait(process, out, records, seconds):
    """Until so many decodes are in the journal, and then some seconds."""
    journal = out / sweep_lib.JOURNAL
    while records and not (journal.exists() and journal.read_bytes().count(
        b'"kind": "example"') >= records):
      assert process.poll() is None, process.communicate()
      time.sleep(.01)
    time.sleep(seconds)

  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  straight = finish(whole)
  draw, total = random.Random(0), POINTS * (EXAMPLES + TIMED)
  moments = [(0, draw.uniform(1, 10)) for _ in range(KILLS // 4)]
  moments += [(int(total * x), draw.uniform(0, .1)) for x in sorted(
      draw.uniform(.001, .95) for _ in range(KILLS - len(moments)))]
  sizes = []
  for moment in moments:
    process = start(killed)
    wait(process, killed, *moment)
    assert process.poll() is None               # it is at work
    process.send_signal(signal.SIGKILL)
    process.communicate()
    journal = killed / sweep_lib.JOURNAL
    sizes.append(journal.stat().st_size if journal.exists() else 0)
  print(f'bytes in the journal after each kill: {sizes}')
  assert sizes == sorted(sizes)
  assert not (killed / 'report.html').exists()
  assert finish(killed) == straight and len(straight) == POINTS
  lines = [json.loads(x) for x in
           (killed / sweep_lib.JOURNAL).read_text().splitlines()]
  keys = [(x['key'], x['example'], x['trial']) for x in lines
          if x['kind'] == 'example']
  assert len(keys) == len(set(keys)) == POINTS * (EXAMPLES + TIMED)
