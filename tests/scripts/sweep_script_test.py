"""A sweep that is killed goes on with the same command."""
import functools
import re
import signal
import time

import pytest
import sweeping
from sweeping import EXAMPLES
from sweeping import POINTS
from sweeping import records

from spec_cascades.evaluation import results
from spec_cascades.evaluation import sweep as sweep_lib


@pytest.fixture
def start(pair_dir, tmp_path):
  return functools.partial(sweeping.start, pair_dir, tmp_path / 'cache')


def test_a_killed_sweep_resumes_to_the_same_rows(start, tmp_path):
  killed, whole = tmp_path / 'killed', tmp_path / 'whole'
  process = start(killed)
  journal = killed / sweep_lib.JOURNAL
  while len(records(journal)) < 50:
    assert process.poll() is None, process.stderr.read()
    time.sleep(.02)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  before = journal.read_bytes()
  assert 50 <= len(records(journal)) < EXAMPLES * POINTS
  assert not (killed / sweep_lib.RESULTS).exists()

  out, err = start(killed).communicate()
  assert f'{POINTS} points on {EXAMPLES} texts' in out, err
  after = journal.read_bytes()
  complete = before[:before.rfind(b'\n') + 1]
  assert after.startswith(complete)
  seen = [(entry['key'], entry['example']) for entry in records(journal)]
  assert len(seen) == len(set(seen)) == EXAMPLES * POINTS

  out, err = start(whole).communicate()
  assert str(whole / 'report.html') in out, err
  assert re.search(r'^\d+ s: compiling \d+, decoding \d+, all else \d+ \(',
                   out, re.MULTILINE)
  resumed, straight = (
      [results.deterministic(row) for row in results.read_rows(
          d / sweep_lib.RESULTS)] for d in (killed, whole))
  assert resumed == straight and len(straight) == POINTS
  tokens = lambda d: {(e['key'], e['example']): e['tokens']
                      for e in records(d / sweep_lib.JOURNAL)}
  assert tokens(killed) == tokens(whole)
  assert {p.name for p in whole.iterdir()} == {
      'claims', 'examples.jsonl', 'results.jsonl', 'scores.jsonl',
      'frontier.png', 'frontier.pdf', 'rejection.png', 'rejection.pdf',
      'quality_by_rejection.png', 'quality_by_rejection.pdf',
      'acceptance.png', 'acceptance.pdf', 'report.html', 'tables'}

  read = lambda: {p: p.read_bytes() for p in whole.rglob('*') if p.is_file()}
  content = read()
  refused = start(whole, GAMMA=4)
  out, err = refused.communicate()
  assert refused.returncode == 2 and err.count('\n') == 1, err
  assert 'does not belong to this sweep' in err and out == ''
  assert content == read()
