"""decode.py on meshes and by several processes prints what one device does."""
import subprocess

import pytest

import processes
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import translate

LINES = ['Click the button to save.', '', 'The file is missing.',
         'Open the menu.']
SETTINGS = dict(rule='Chow', alpha=.3, gamma=2, temperature=1., max_length=8)


@pytest.fixture(scope='module')
def want(pair_dir):
  """What each line becomes on one device, and the lines that are printed."""
  pair = pairs.load(str(pair_dir / 'verifier'), str(pair_dir / 'drafter'))
  translator = translate.Translator(pair, translate.Settings(**SETTINGS))
  made = [''.join(step.text for step in translator(translator.encode(line), i))
          if line else '' for i, line in enumerate(LINES)]
  return ''.join(f'{text}\n' for text in made)


@pytest.fixture
def command(pair_dir, tmp_path):
  path = tmp_path / 'texts'
  path.write_text('\n'.join(LINES))
  return ['scripts/decode.py', '--verifier', pair_dir / 'verifier',
          '--drafter_dir', pair_dir / 'drafter', '--file', path,
          *(x for name, value in SETTINGS.items()
            for x in (f'--{name}', value))]


@pytest.mark.slow
def test_two_processes_share_the_lines_each_on_two_devices(command, want):
  (out, _), (other, _) = processes.finish(processes.start(
      2, *command, '--mesh', '1,2', devices=2))
  assert out == want and other == ''


@pytest.mark.slow
@pytest.mark.parametrize('flags', [
    ['--mesh', '2,2'], ['--mesh', '4,1', '--layout', 'data', '--trace'],
    ['--mesh', '1,4', '--layout', 'fsdp', '--drafter_layout', 'tensor']])
def test_two_processes_share_one_mesh(command, want, flags):
  (out, _), (other, _) = processes.finish(processes.start(
      2, *command, *flags, devices=2))
  if '--trace' in flags:
    assert all(line in out.splitlines() for line in want.splitlines())
  else:
    assert out == want
  assert other == ''


@pytest.mark.slow
def test_four_processes_share_one_mesh_and_the_lines_of_the_first(
    command, want):
  at = command.index('--file')
  several = processes.start(4, *command[:at], *command[at + 2:], '--mesh',
                            '1,4', stdin=subprocess.PIPE)
  several[0].stdin.write('\n'.join(LINES))
  texts = processes.finish(several)
  assert [out for out, _ in texts] == [want, '', '', '']


@pytest.mark.slow
@pytest.mark.parametrize('drafter', [
    'medusa:medusa', 'pass:pass', 'eagle_tree:eagle', 'ngram'])
def test_drafters_of_other_kinds_on_one_mesh(drafter):
  """Parts are whole on each device, and read beside a verifier that is cut."""
  kind, _, part = drafter.partition(':')
  if part:
    kind += f':{pairs.SHIPPED}/parts/{part}'
  command = ['scripts/decode.py', '--drafter', kind, LINES[0]]
  (want, _), = processes.finish(processes.start(1, *command))
  texts = processes.finish(processes.start(2, *command, '--mesh', '1,2'))
  assert [out for out, _ in texts] == [want, ''] and len(want) > 9


def each_with(command, *own):
  """Two processes, each with flags of its own."""
  return processes.start(2, '-c', """
import os, runpy, sys
sys.path.insert(0, 'scripts')
i = int(os.environ['JAX_PROCESS_ID'])
sys.argv = %r + %r[i]
runpy.run_path(sys.argv[0], run_name='__main__')
""" % ([*map(str, command)], own))


@pytest.mark.slow
def test_processes_with_other_flags_are_refused(command):
  """Before any weights are read: on one mesh they would wait for ever."""
  for err in processes.stopped(each_with(
      [*command, '--mesh', '1,2'], ['--seed', '0'], ['--seed', '1'])):
    assert 'Process 1 and process 0 are not alike: seed is 1, not 0' in err


@pytest.mark.slow
def test_the_first_process_alone_is_profiled_on_one_mesh(
    command, want, tmp_path):
  (out, err), (other, _) = processes.finish(each_with(
      [*command, '--mesh', '1,2'], ['--profile', str(tmp_path / 'trace')], []))
  assert out == want and other == '' and 'verification' in err


@pytest.mark.slow
def test_two_processes_with_the_shipped_pair(tmp_path):
  """Whose weights lie in one piece of memory, which small ones do not."""
  path = tmp_path / 'texts'
  path.write_text('\n'.join(LINES))
  command = ['scripts/decode.py', '--file', path]
  (want, _), = processes.finish(processes.start(1, *command))
  texts = processes.finish(processes.start(2, *command))
  assert [out for out, _ in texts] == [want, ''] and want.count('\n') == 4


@pytest.mark.slow
def test_each_process_reads_its_own_bytes_of_a_file(command, want, tmp_path):
  """And what is wrong in one of them ends all, before anything is printed."""
  path = command[command.index('--file') + 1]
  path.write_bytes(b'\xef\xbb\xbf' + '\r\n'.join(LINES).encode() + b'\r\n')
  texts = processes.finish(processes.start(3, *command))
  assert [out for out, _ in texts] == [want, '', '']
  path.write_bytes('\n'.join(LINES).encode() + b'\n\xff\n')
  for out, err in processes.finish(processes.start(3, *command), code=2):
    assert out == '' and 'is not UTF-8' in err


@pytest.mark.slow
@pytest.mark.parametrize('flags', [
    ['--mesh', '2,1', '--layout', 'data'], ['--mesh', '2,2'],
    ['--mesh', '2,2', '--layout', 'fsdp', '--drafter_layout', 'tensor'],
    ['--mesh', '1,2', '--trace']])
def test_one_process_on_any_mesh(command, want, flags):
  (out, _), = processes.finish(processes.start(1, *command, *flags, devices=4))
  if '--trace' in flags:
    assert all(line in out.splitlines() for line in want.splitlines())
  else:
    assert out == want


@pytest.mark.slow
def test_a_profile_changes_no_text(command, want, tmp_path):
  (out, err), = processes.finish(processes.start(
      1, *command, '--mesh', '1,2', '--profile', tmp_path / 'trace', devices=2))
  assert out == want and list(tmp_path.glob('trace/**/*.xplane.pb'))
  shares = {x.split('  ')[0]: float(x.split()[-1].rstrip('%'))
            for x in err.splitlines() if x.endswith('%')}
  assert all(shares[x] > 0 for x in (
      'prompts', 'drafting', 'verification', 'sampling', 'cache writes'))


@pytest.mark.slow
def test_four_processes_read_standard_input_of_the_first(command, want):
  at = command.index('--file')
  several = processes.start(4, *command[:at], *command[at + 2:],
                            stdin=subprocess.PIPE)
  several[0].stdin.write('\n'.join(LINES))
  texts = processes.finish(several)
  assert [out for out, _ in texts] == [want, '', '', '']


@pytest.mark.parametrize('flags,what', [
    (['--mesh', '4'], 'Got --mesh 4; allowed: DATA,MODEL'),
    (['--mesh', '²,1'], 'allowed: DATA,MODEL'),
    (['--mesh', '0,1'], 'data of a mesh is 0'),
    (['--mesh', '1,64'], 'takes 64 devices; this process has'),
    (['--mesh', '1,2', '--layout', 'x'], "Unknown rules 'x'")])
def test_meshes_that_can_not_be_are_refused(command, flags, what, capsys,
                                            monkeypatch):
  monkeypatch.syspath_prepend(str(processes.ROOT / 'scripts'))
  import decode as script          # scripts/decode.py
  with pytest.raises(ValueError, match=what):
    script.main([*map(str, command[1:]), *flags])
  assert capsys.readouterr().out == ''
