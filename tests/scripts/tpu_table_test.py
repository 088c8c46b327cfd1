"""tpu_table.py: a table of what was compiled before; nothing compiles here."""
import importlib.metadata
import json
import pathlib
import subprocess
import sys

import cli_test
import pytest

sys.path.insert(0, str(cli_test.ROOT / 'scripts'))
import tpu_table  # noqa: E402

PROGRAM = dict(seconds=30., excess='', total=3 * 2**30, work=dict(
    collectives=[dict(kind='all-reduce', nbytes=10_000, times=73),
                 dict(kind='all-gather', nbytes=770_000, times=1)]))
ROW = {
    'whole loop': PROGRAM | dict(faults=[]), 'one round': PROGRAM,
    'libtpu': '0.0.42.1', 'max_gamma': 16, 'mesh': dict(data=1, model=4),
    'host_bytes': 2**32, 'cost': .078, 'flatness': {'1': 1., '8': 1.04},
    'round_ms': 1.314, 'judging': .012, 'gamma': 6, 'speedup': 2.64}
MARKS = 'before\n<!-- tpu_table.py: begin -->\nold\n<!-- end -->\nafter\n'


def tabled(folder, row, before=MARKS):
  """The document with the table of one case."""
  (folder / 'rows').mkdir()
  (folder / 'rows/pair.v4-8.json').write_text(json.dumps(row))
  output = folder / 'tpu.md'
  output.write_text(before)
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
  assert ('| pair | v4-8 | 3.0 | 1 all-gather, 0.77 MB, 73 all-reduce, 0.73 '
          'MB | 0.078 | 1.04x | 1.31 | 1.2 % | 6, 2.64x | 60, 4.0 | none |'
         ) in text


def test_what_does_not_fit_is_in_the_table(tmp_path):
  full = PROGRAM | dict(excess='needs 50G, and 16G is there')
  text = tabled(tmp_path, {'whole loop': full, 'jax': '9', 'host_bytes': 0,
                           'mesh': dict(data=1), 'libtpu': '0.0.42.1'})
  assert '| needs 50G, and 16G is there | - |' in text


def test_a_slice_of_several_groups_says_how_many_rows(tmp_path):
  """And takes the place of what was there for the slice."""
  row = ROW | dict(jax='9', mesh=dict(data=4, model=16))
  (tmp_path / 'again').mkdir()
  text = tabled(tmp_path, row)
  assert '| pair | v4-8, 4 rows | 3.0 |' in text
  text = tabled(tmp_path / 'again', ROW | dict(jax='9'), text)
  assert '| pair | v4-8 | 3.0 |' in text and 'rows' not in text


def test_what_is_not_known_stays_in_the_table(tmp_path):
  old = MARKS.replace('old', """| pair | slice |
| --- | --- |
| pair | v4-8 | stale |
| gemma2_2b_27b | v5p-8 | 17.5 | 7 gather | .1 | - | - | - | - | 9, 1 |
| t5_small_xl | v6e-16 | needs 50G, and 16G is there |
| t5_small_xl | v4-8 | 2.0 |""")
  text = tabled(tmp_path, ROW | dict(jax='9'), old)
  lines = [x.split(' | ') for x in text.splitlines() if x.startswith('| ')]
  assert {len(x) for x in lines} == {11}
  assert [x[:3] for x in lines[2:]] == [
      ['| t5_small_xl', 'v4-8', '2.0'],
      ['| t5_small_xl', 'v6e-16', 'needs 50G, and 16G is there'],
      ['| gemma2_2b_27b', 'v5p-8', '17.5'], ['| pair', 'v4-8', '3.0']]
  assert lines[4][-2:] == ['9, 1', '- |']


def test_the_longest_draft_tried_and_faults_are_marked(tmp_path):
  faults = ['%copy.1 = bf16[4]{0} copy(%p), x=1', 'ROOT %s = token[] send(%q)',
            '%copy.2 = bf16[1,4]{1,0:T(8,128)(2,1)} copy(%r), x=1']
  text = tabled(tmp_path, ROW | {
      'jax': '9', 'max_gamma': 6, 'whole loop': PROGRAM | dict(faults=faults)})
  assert '| 6+, 2.64x | 60, 4.0 | 2 copy, 1 send |' in text


def test_a_case_that_was_killed_says_so(monkeypatch):
  killed = subprocess.CompletedProcess((), -9, stderr='a warning of libtpu')
  monkeypatch.setattr(tpu_table.subprocess, 'run', lambda *_, **__: killed)
  with pytest.raises(ValueError, match='v4-8 was ended by signal 9') as error:
    tpu_table._compiled('pair', 'v4-8', pathlib.Path(), '.8')
  assert '\n' not in str(error.value)


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
        f'--rows={tmp_path}'], 'v4-8, v4-16')])
  assert output.read_text() == MARKS
