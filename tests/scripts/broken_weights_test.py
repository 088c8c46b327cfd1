"""Weights that are not numbers: what users of decode.py and sweep.py read."""
import subprocess
import sys

import pytest

from spec_cascades.evaluation import results
from spec_cascades.evaluation import sweep as sweep_lib
import sweeping
import tinypair

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def broken(pair_dir, tmp_path_factory):
  """The tiny pair, whose verifier's last norm is not a number."""
  root = tmp_path_factory.mktemp('broken')
  tinypair.write(root / 'verifier', next(pair_dir.glob('*.model')), 0, layers=2,
                 scale=float('nan'))
  (root / 'drafter').symlink_to(pair_dir / 'drafter')
  return root


def test_decode_says_which_line_in_which_round_and_exits_2(broken):
  done = subprocess.run(
      [sys.executable, 'scripts/decode.py', '--verifier', broken / 'verifier',
       '--drafter_dir', broken / 'drafter'], input='Save it.\nClose it.\n',
      cwd=sweeping.ROOT, text=True, capture_output=True, check=False)
  assert done.returncode == 2, done.stderr
  line = done.stderr.splitlines()[-1]
  assert line.startswith('decode.py: Non-finite logits: '), line
  assert 'line 1 stopped in round 1, line 2 stopped in round 1' in line
  assert 'Check the weights.' in line and 'Traceback' not in done.stderr


def test_a_sweep_counts_and_names_them(broken, tmp_path):
  done = sweeping.start(broken, tmp_path / 'cache', tmp_path / 'out',
                        EXAMPLES=2, **{'chow/points.Curve.alphas': (.3,),
                                       'sweep.Sweep.predicted': True})
  printed, errors = done.communicate()
  assert done.returncode == 0, errors
  rows = results.read_rows(tmp_path / 'out' / sweep_lib.RESULTS)
  counts = {row.method: row.faults for row in rows}
  assert counts['verifier'] == counts['Chow'] == 2 and counts['drafter'] == 0
  assert 'decodes stopped at non-finite logits: ' in printed
  assert ', round 1' in printed
