"""What the launcher refuses before anything costs money; states of slices."""
import pathlib
import shlex
import time

import pytest
from launching import calls
from launching import go
from launching import RUN
from launching import script
from launching import slices


def test_the_example_uses_all_chips(world, capsys):
  example, = (x for x in script.__doc__.split('\n\n') if '--gin_file' in x)
  _, _, action, *flags = shlex.split(example.replace('\\\n', ''))
  script.main([action, '--dry_run', *flags])
  assert not calls(world)
  mesh = '--gin_file=gin/executors/mesh.gin --gin.MODEL=4'
  told = [x for x in capsys.readouterr().out.splitlines() if mesh in x]
  assert len(told) == 4 == slices.Slice('s', 'p', 'z', 'v5litepod-16').hosts


@pytest.mark.parametrize('lines,want', [
    (['ACTIVE', 'WARNING: Python 3.9 reaches its END_OF_LIFE'], 'ACTIVE'),
    (['WARNING: a CLI that is ACTIVE', ' SUSPENDED '], 'SUSPENDED'),
    (['UPDATING'], None), ([], None)])
def test_a_state_is_one_that_there_is_on_its_own_line(lines, want):
  class Said(slices.Gcloud):
    __call__ = lambda self, args: slices.Ended('', 0, lines)
  one = slices.Slice('s', 'p', 'z', 'v4-8')
  if want:
    assert slices.state(Said(), one) == want
  else:
    with pytest.raises(ValueError, match='state of s is not known'):
      slices.state(Said(), one)


def test_no_command_outlives_an_error():
  def going():
    raise OSError('no room')
  began = time.monotonic()
  gcloud = slices.Gcloud()
  started = []
  start = gcloud._start
  gcloud._start = lambda *args: started.append(start(*args)) or started[-1]
  with pytest.raises(OSError, match='no room'):
    gcloud.together({'a': ['50'], 'b': ['50']}, 'sleep', going=going)
  for process, *_ in started:
    assert process.wait(20) < 0
  assert len(started) == 2 and time.monotonic() < began + 40


@pytest.mark.parametrize('kind,chips,hosts', [
    ('v2-8', 4, 1), ('v3-32', 16, 4), ('v4-8', 4, 1), ('v4-128', 64, 16),
    ('v5p-16', 8, 2), ('v5litepod-1', 1, 1), ('v5litepod-8', 8, 1),
    ('v5litepod-16', 16, 4), ('v6e-256', 256, 64), ('v5p-384', 192, 48)])
def test_chips_and_hosts_of_a_type(kind, chips, hosts):
  one = slices.Slice('s', 'p', 'z', kind)
  assert (one.chips, one.hosts) == (chips, hosts)


@pytest.mark.parametrize('flags,what', [
    (['run'], 'Nothing to run'), (['sweep', '--slices=0', *RUN], '1 or more'),
    (['launch'], 'invalid choice'),
    (['sweep', '--env=A', *RUN], "--env 'A'; allowed: NAME=VALUE"),
    (['sweep', '--project=', *RUN], "--project ''"),
    (['sweep', '--zone=', *RUN], "--zone ''"),
    (['sweep', '--poll=-1', *RUN], '--poll -1.0; allowed: seconds, more'),
    (['sweep', '--poll=0', *RUN], '--poll 0.0; allowed: seconds, more'),
    (['sweep', '--collect_every=nan', *RUN], '--collect_every nan; allowed'),
    (['sweep', '--collect_every=inf', *RUN], '--collect_every inf; allowed'),
    (['sweep', '--restarts=-3', *RUN], '--restarts -3; allowed: 0 or more'),
    (['sweep', '--output=/dev/null', *RUN], '/dev/null.*no directory'),
    (['sweep', '--output=/dev/null', '--dry_run', *RUN], 'no directory'),
    (['collect', '--output=/dev/null/x'], 'Not a directory'),
    (['sweep', '--', '--gin_file=nonexistent.gin'],
     'nonexistent.gin is not in HEAD.*does not exist'),
    (['run', '--', '--config', 'configs/none.py'],
     'configs/none.py is not in HEAD'),
    (['sweep', '--', '--gin_file=/etc/passwd'], '/etc/passwd is not in HEAD'),
    (['sweep', *RUN, '--what'], "Unknown argument '--what'"),
    (['sweep', *RUN, '--gin.OUTPUT_DIR=/tmp/else'],
     "OUTPUT_DIR '/tmp/else'; allowed: a folder under runs/"),
    (['sweep', *RUN, '--gin.OUTPUT_DIR="runs/../else"'], 'under runs/'),
    (['sweep', *RUN, '--gin.sweep.Sweep.output_dir=run'], 'under runs/'),
    (['sweep', '--slices=2', '--type=v4-8', '--env=DEVICES=4', *RUN],
     'slices 2 with DEVICES=4; allowed: one of the two'),
    (['sweep', '--slices=2', '--type=v5litepod-8', *RUN,
      '--gin_file=gin/executors/mesh.gin', '--gin.MODEL=4'],
     'several slices of v5litepod-8; allowed for a worker of Ray: 1, 2, 8 dev'),
    (['sweep', '--slices=2', *RUN, '--gin_file=gin/executors/mesh.gin',
      '--gin.MODEL=4'], 'of v5litepod-16; allowed for a worker of Ray: 1, 2, 16'
     ' devices'),
    (['sweep', '--slices=2', *RUN, '--gin_file=gin/executors/mesh.gin',
      '--gin.meshes.Mesh.model=4'], 'MODEL=4 on several slices of v5litepod'),
    (['sweep', '--slices=2', *RUN, '--gin_file=gin/executors/mesh.gin',
      '--gin.MODEL=%DATA'], 'The sizes of the mesh can not be read off'),
    (['sweep', '--slices=2', '--type=v3-8', *RUN, '--gin.DATA=3'],
     'of v3-8; allowed for a worker of Ray: 1, 2, 4, 8 devices'),
    (['sweep', '--type=v4-8', '--env=DEVICES=8', *RUN],
     'DEVICES=8 on a v4-8, whose hosts have 4 devices each; allowed: up to 4'),
    (['sweep', *RUN, '--gin_file=gin/executors/mesh.gin', '--gin.MODEL=4',
      '--gin.DATA=2'], 'DATA=2 and MODEL=4 on a v5litepod-16, whose hosts have '
     '4 devices each; allowed: up to 4, or 16, for a mesh of all'),
    (['sweep', *RUN, '--gin_file=gin/executors/mesh.gin', '--gin.MODEL=8'],
     'DATA=1 and MODEL=8 on a v5litepod-16, whose hosts have 4 devices each'),
    (['sweep', '--type=v3-32', '--env=DEVICES=16', *RUN],
     'whose hosts have 8 devices each; allowed: up to 8, or 32, for'),
    (['sweep', '--slices=2', '--type=v4-8', '--', '--config=configs/gammas.py'],
     'slices 2 with --config configs/gammas.py; allowed: one of the two'),
    (['sweep', '--slices=2', '--type=v4-8', *RUN, '--profile=trace'],
     'slices 2 with --profile; allowed: one of the two'),
    (['sweep', *RUN, '--profile=trace'],
     "profile 'trace'; allowed: a folder under runs/")])
def test_what_can_not_be_is_refused(world, capsys, flags, what):
  with pytest.raises(ValueError, match=what) as error:
    go(world, *flags)
  assert calls(world) == [] and '\n' not in str(error.value)
  assert 'money' not in capsys.readouterr().out


def test_what_can_be_is_not_refused(world):
  go(world, 'sweep', '--dry_run', '--env=DEVICES=4', *RUN,
     '--gin_file=./gin/executors/mesh.gin', '--gin.OUTPUT_DIR=runs/a/../b')
  assert not pathlib.Path('out').exists()
  go(world, 'sweep', '--dry_run', *RUN, '--gin_file=gin/executors/mesh.gin',
     '--gin.MODEL=8', '--gin.DATA=2')                 # one mesh of all hosts
  go(world, 'delete', '--dry_run', '--', '--gin_file=nonexistent.gin')


def test_files_are_those_of_head(world, capsys, monkeypatch):
  root = world / 'checkout'
  root.mkdir()
  git = lambda *args: slices.Gcloud().done(['-C', str(root), *args], 'git')
  git('init', '--quiet')
  (root / 'a.gin').write_text('A = 1\n')
  monkeypatch.setattr(script._cli, 'ROOT', root)
  ask = ['sweep', '--dry_run', '--', '--gin_file=a.gin']
  with pytest.raises(ValueError, match='a.gin is not in HEAD'):
    go(world, *ask)
  git('add', 'a.gin')
  git('-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '-qm', 'a')
  go(world, *ask)
  assert 'not committed' not in capsys.readouterr().out
  (root / 'a.gin').write_text('A = 2\n')
  go(world, *ask)
  assert '# a.gin has changes that are not committed; hosts get that of' in (
      capsys.readouterr().out)
  (root / 'a.gin').write_text("OUTPUT_DIR = 'results/x'\n")
  with pytest.raises(ValueError, match="OUTPUT_DIR 'results/x'; allowed: a fo"):
    go(world, *ask)
  go(world, *ask, '--gin.OUTPUT_DIR=runs/x')
  (root / 'b.gin').write_text("s.Sweep.output_dir = 'results'   # there\n")
  (root / 'a.gin').write_text("include 'b.gin'\nOUTPUT_DIR = 'runs/x'\n")
  with pytest.raises(ValueError, match="output_dir 'results'; allowed: a fold"):
    go(world, *ask)
  (root / 'b.gin').write_text("include 'a.gin'\n")           # and that it
  with pytest.raises(ValueError, match='b.gin is not in HEAD'):
    go(world, *ask)
  git('add', 'b.gin')
  git('-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '-qm', 'b')
  go(world, *ask)


@pytest.mark.parametrize('name,kind,what', [
    ('S', 'v4-8', "--name 'S'"), ('s', 'v9-8', "--type 'v9-8'"),
    ('s', 'v4', "--type 'v4'"), ('s', 'v4-7', "'v4-7'; allowed: v4-8, v4-16"),
    ('s', 'v4-08', 'allowed: v4-8'), ('s', 'v4-4', 'allowed: v4-8'),
    ('s', 'v5p-192', 'v5p-256, .* v5p-12288'),
    ('s', 'v5litepod-3', 'v5litepod-1, v5litepod-4'), ('s', 'v6e-', 'v6e-1,')])
def test_slices_that_can_not_be(name, kind, what):
  with pytest.raises(ValueError, match=what):
    slices.Slice(name, 'p', 'z', kind)


def test_without_gcloud_it_says_so(world, monkeypatch):
  (world / 'bin' / 'gcloud').unlink()
  with pytest.raises(ValueError, match='gcloud is not on the path'):
    go(world, 'create')
