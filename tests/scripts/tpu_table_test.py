"""tpu_table.py: a table of what was compiled before; nothing compiles here."""
import errno
import importlib.metadata
import json
import os
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
PAIR = 't5_small_large'                # not in PAIRS: behind those
ROW = {
    'whole loop': PROGRAM | dict(faults=[]), 'one round': PROGRAM,
    'libtpu': '0.0.42.1', 'max_gamma': 16, 'mesh': dict(data=1, model=4),
    'host_bytes': 2**32, 'cost': .078, 'flatness': {'1': 1., '8': 1.04},
    'round_ms': 1.314, 'judging': .012, 'gamma': 6, 'speedup': 2.64}
MARKS = 'before\n<!-- tpu_table.py: begin -->\nold\n<!-- end -->\nafter\n'


def tabled(folder, row, before=MARKS, more=()):
  """The document with the table of one case."""
  (folder / 'rows').mkdir(exist_ok=True)
  (folder / f'rows/{PAIR}.v4-8.json').write_text(json.dumps(row))
  output = folder / 'tpu.md'
  output.write_text(before)
  code = (
      'import sys; sys.path.insert(0, "scripts"); import tpu_table;'
      'tpu_table._versions = lambda: dict(jax="9", libtpu="0.0.42.1");'
      'tpu_table.main(sys.argv[1:])')
  subprocess.run(
      [sys.executable, '-c', code, f'--pairs={PAIR}', '--topologies=v4-8',
       f'--rows={folder / "rows"}', f'--output={output}', *more],
      check=True, cwd=cli_test.ROOT)
  return output.read_text()


def test_what_was_compiled_becomes_a_table(tmp_path):
  text = tabled(tmp_path, ROW | dict(jax='9'))
  assert text.startswith('before\n') and text.endswith('after\n')
  assert 'old' not in text
  assert (f'| {PAIR} | v4-8 | 3.0 | 1 all-gather, 0.77 MB, 73 all-reduce, 0.73 '
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
  assert f'| {PAIR} | v4-8, 4 rows | 3.0 |' in text
  text = tabled(tmp_path / 'again', ROW | dict(jax='9'), text)
  assert f'| {PAIR} | v4-8 | 3.0 |' in text and 'rows' not in text


def test_what_is_not_known_stays_in_the_table(tmp_path):
  old = MARKS.replace('old', """| pair | slice |
| --- | --- |
| t5_small_large | v4-8 | stale |
| gemma2_2b_27b | v5p-8 | 17.5 | 7 gather | .1 | - | - | - | - | 9, 1 |
| t5_small_xl | v6e-16 | needs 50G, and 16G is there |
| t5_small_xl | v4-8 | 2.0 |""")
  text = tabled(tmp_path, ROW | dict(jax='9'), old)
  lines = [x.split(' | ') for x in text.splitlines() if x.startswith('| ')]
  assert {len(x) for x in lines} == {11}
  assert [x[:3] for x in lines[2:]] == [
      ['| t5_small_xl', 'v4-8', '2.0'],
      ['| t5_small_xl', 'v6e-16', 'needs 50G, and 16G is there'],
      ['| gemma2_2b_27b', 'v5p-8', '17.5'], [f'| {PAIR}', 'v4-8', '3.0']]
  assert lines[4][-2:] == ['9, 1', '- |']


def test_the_longest_draft_tried_and_faults_are_marked(tmp_path):
  faults = ['%copy.1 = bf16[4]{0} copy(%p), x=1', 'ROOT %s = token[] send(%q)',
            '%copy.2 = bf16[1,4]{1,0:T(8,128)(2,1)} copy(%r), x=1']
  text = tabled(tmp_path, ROW | {
      'jax': '9', 'max_gamma': 6, 'whole loop': PROGRAM | dict(faults=faults)})
  assert '| 6+, 2.64x | 60, 4.0 | 2 copy, 1 send |' in text


# As gin/tpu has it; one field is newer than the row, one has gone since.
CASE = dict(verifier='t5_1_1_large', drafter='t5_1_1_small', gamma=5, batch=1,
            prompt=512, new_tokens=128, data=1, rules='tensor',
            drafter_rules='data', dtype='bfloat16', uses_q=False, gone=3)
# A round of 5: 5 x 1 + 10 + 6 x .5 ms; one of 1: 1 + 10 + 1 ms.
TIMED = ROW | dict(
    jax='9', topology='v4-8', acceptance=[.8], case=CASE, draft_ms=1.,
    verify_ms=10., round_ms=18., judging=3 / 18,
    flatness={'1': 1., '6': 1., '8': 1., '32': 1.})


def test_a_plan_is_made_at_the_acceptance_and_holds_sampling(tmp_path):
  """At .8 a token of the verifier takes 10 ms and a half of .5."""
  text = tabled(tmp_path, TIMED, more=['--acceptance=0'])
  assert ' | 0, 1.00x | ' in text
  best = lambda cost: max(((1 - .8**(n + 1)) / .2 * cost / (
      n + 10 + (n + 1) * .5), n) for n in range(1, 17))
  speedup, gamma = best(10.25)
  text = tabled(tmp_path, TIMED)
  assert f' | {gamma}, {speedup:.2f}x | ' in text
  assert f'{speedup:.2f}' != f'{best(10)[0]:.2f}'
  speedup, gamma = best(13)
  assert f' | {gamma}, {speedup:.2f}x | ' in tabled(
      tmp_path, TIMED | dict(sampling_ms=3.))


WANTED = dict(jax='9', libtpu='0.0.42.1', topology='v4-8',
              case=CASE | dict(gone=3, layers=None))


@pytest.mark.parametrize('change,what', [
    ({}, []), (dict(jax='8'), ['jax']), (dict(topology='v4-16'), ['topology']),
    (dict(case=CASE | dict(prompt=8064, layers=2)), ['prompt', 'layers']),
    (dict(acceptance=[.6]), [])])
def test_rows_of_other_cases_are_told_apart(change, what):
  assert tpu_table._differs(TIMED | change, WANTED, [.8]) == what


def test_a_plan_without_times_is_of_its_acceptance():
  old = ROW | dict(jax='9')
  assert not tpu_table._differs(old, WANTED, [.6])
  old |= dict(acceptance=[.8])
  assert not tpu_table._differs(old, WANTED, [.8])
  assert tpu_table._differs(old, WANTED, [.6]) == ['acceptance']


@pytest.mark.parametrize('text', [
    '{}', '[]', '', json.dumps(TIMED)[:400],
    json.dumps({k: v for k, v in TIMED.items() if k != 'one round'})])
def test_what_is_no_row_is_refused(tmp_path, text):
  path = tmp_path / 'row.json'
  path.write_text(text)
  with pytest.raises(ValueError, match='row.json is no row') as error:
    tpu_table._known({(PAIR, 'v4-8'): path}, {(PAIR, 'v4-8'): WANTED}, [.8])
  assert '\n' not in str(error.value)


def test_all_is_checked_before_anything_is_compiled(tmp_path, monkeypatch):
  output, file = tmp_path / 'tpu.md', tmp_path / 'file'
  output.write_text(MARKS)
  file.write_text('')
  monkeypatch.setattr(tpu_table, '_versions', lambda: dict(jax='', libtpu=''))
  compiled = lambda *_: pytest.fail('compiled')
  monkeypatch.setattr(tpu_table, '_compiled', compiled)
  ours = [f'--output={output}', f'--rows={tmp_path / "rows"}']
  for args, what in (
      ([f'--rows={file}'], 'give a directory'),
      ([f'--rows={file}/x'], 'give a directory'),
      (['--acceptance=80%'], 'from 0 to 1'),
      ([f'--pairs={PAIR},fsdp'], "Unknown pair 'fsdp'; allowed: gemma2"),
      (['--pairs=gemma2_2b_27b', '--topologies=v4-8,v5e-8'],
       'takes 16 chips of this kind; v5e-8 has 8'),
      (['--topologies=v4-8,v4-4'], 'v4-8, v4-16')):
    with pytest.raises(ValueError, match=what) as error:
      tpu_table.main([*ours, *args])
    assert '\n' not in str(error.value)
  assert output.read_text() == MARKS


def test_a_full_disk_leaves_the_document(tmp_path, monkeypatch):
  output, rows = tmp_path / 'tpu.md', tmp_path / 'rows'
  output.write_text(MARKS)
  rows.mkdir()
  (rows / f'{PAIR}.v4-8.json').write_text(json.dumps(ROW | dict(jax='9')))

  def full(number):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', full)
  monkeypatch.setattr(tpu_table, '_versions',
                      lambda: dict(jax='9', libtpu='0.0.42.1'))
  with pytest.raises(OSError, match="tpu.md can't be written"):
    tpu_table.main([f'--pairs={PAIR}', '--topologies=v4-8', f'--rows={rows}',
                    f'--output={output}'])
  assert output.read_text() == MARKS


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
  pytest.importorskip('libtpu', reason='needs requirements-compile.txt')
  assert importlib.metadata.version('libtpu')
  output = tmp_path / 'tpu.md'
  output.write_text(MARKS)
  cli_test.check('tpu_table', [
      ([f'--output={output}', '--pairs=t5_small_xl', '--topologies=v4-4',
        f'--rows={tmp_path}'], 'v4-8, v4-16')])
  assert output.read_text() == MARKS


def test_the_page_holds_the_aims_for_a_row():
  """8 tokens at most 1.15 of one, sampling and acceptance under 5 %."""
  page = (cli_test.ROOT / 'docs/tpu.md').read_text()
  lines = page.split('tpu_table.py: begin')[1]
  rows = [[x.strip() for x in line.strip('|').split('|')]
          for line in lines.split('end -->')[0].splitlines()
          if line.startswith('| ')][2:]
  assert len(rows) == 18
  for row in rows:
    assert float(row[5].rstrip('x')) <= 1.15 and row[10] == 'none'
    assert float(row[7].rstrip(' %')) < 5
