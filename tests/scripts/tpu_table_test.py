"""tpu_table.py: a table of what was compiled before; nothing compiles here."""
import importlib.metadata
import json
import subprocess
import sys

import cli_test
import pytest

PROGRAM = dict(seconds=30., excess='', total=3 * 2**30, work=dict(
    collectives=[dict(kind='all-reduce', nbytes=10_000, times=73),
                 dict(kind='all-gather', nbytes=770_000, times=1)]))
ROW = {
    'whole loop': PROGRAM, 'one round': PROGRAM, 'libtpu': '0.0.42.1',
    'host_bytes': 2**32, 'cost': .078, 'flatness': {'1': 1., '8': 1.04},
    'round_ms': 1.314, 'judging': .012, 'gamma': 6, 'speedup': 2.64}
MARKS = 'before\n<!-- tpu_table.py: begin -->\nold\n<!-- end -->\nafter\n'


def tabled(folder, row):
  """The document with the table of one case."""
  (folder / 'rows').mkdir()
  (folder / 'rows/pair.v4-8.json').write_text(json.dumps(row))
  output = folder / 'tpu.md'
  output.write_text(MARKS)
  code = (
      'import sys; sys.path.insert(0, "scripts"); import tpu_table;'
      'tpu_table._versions = lambda: dict(jax="9", libtpu="0.0.42.1");'
      'tpu_table.main(sys.argv[1:])')
  subprocess.run(
      [sys.executable, '-c', code, '--pairs=pair', '--topologies=v4-8',
       f'--rows={folder / "rows"}', f'--output={output}'],
      check=True, cwd=cli_test.ROOT)
  return output.read_text()


def test_what_was_compiled_becomes_a_table(tmp_path):
  text = tabled(tmp_path, ROW | dict(jax='9'))
  assert text.startswith('before\n') and text.endswith('after\n')
  assert 'old' not in text
  assert ('| pair | v4-8 | 3.0 | 1 all-gather, 0.77 MB, 73 all-reduce, 0.73 MB '
          '| 0.078 | 1.04x | 1.31 | 1.2 % | 6, 2.64x | 60, 4.0 |') in text


def test_what_does_not_fit_is_in_the_table(tmp_path):
  full = PROGRAM | dict(excess='needs 50G, and 16G is there')
  text = tabled(tmp_path, {'whole loop': full, 'jax': '9', 'host_bytes': 0,
                           'libtpu': '0.0.42.1'})
  assert '| needs 50G, and 16G is there | - |' in text


def test_it_refuses(tmp_path):
  plain = tmp_path / 'plain.md'
  plain.write_text('no marks')
  cli_test.check('tpu_table', [
      ([f'--output={plain}'], 'lacks the lines'),
      ([f'--output={tmp_path / "none.md"}'], 'none.md')])


def test_a_case_that_fails_is_one_line(tmp_path):
  pytest.importorskip('libtpu')
  assert importlib.metadata.version('libtpu')
  output = tmp_path / 'tpu.md'
  output.write_text(MARKS)
  cli_test.check('tpu_table', [
      ([f'--output={output}', '--pairs=t5_small_xl', '--topologies=v4-4',
        f'--rows={tmp_path}'], 'v4-4 failed')])
  assert output.read_text() == MARKS
