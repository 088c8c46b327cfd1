"""The launcher of TPU slices, against a gcloud that simulates them."""
import json
import pathlib
import shutil
import sys
import time
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'scripts' / 'tpu'))
import launch as script  # noqa: E402
import slices  # noqa: E402

FAKE = pathlib.Path(__file__).with_name('fakecloud.py')
READY = [['WAITING_FOR_RESOURCES', 'ACTIVE']]
RUN = ['--', '--gin_file=gin/sweeps/quickstart.gin', '--gin.A=(1, 2)']


@pytest.fixture
def world(tmp_path, monkeypatch):
  """Folder of a fake gcloud, the only one on the path."""
  place = tmp_path / 'world'
  (place / 'bin').mkdir(parents=True)
  program = place / 'bin' / 'gcloud'
  program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE} "$@"\n')
  program.chmod(0o755)
  (place / 'bin' / 'git').symlink_to(shutil.which('git'))
  monkeypatch.setenv('PATH', str(program.parent))
  monkeypatch.setenv('FAKECLOUD', str(place))
  monkeypatch.chdir(tmp_path)
  return place


def go(world, action, *rest, kind='v5litepod-16', **plan):
  (world / 'plan.json').write_text(json.dumps(dict(dict(states=READY), **plan)))
  script.main([action, '--name=s', '--project=p', '--zone=z', f'--type={kind}',
               '--output=out', '--poll=.25', '--collect_every=.2', *rest])


def calls(world):
  path = world / 'calls.jsonl'
  return [json.loads(x) for x in path.read_text().splitlines()] if (
      path.exists()) else []


def verbs(world):
  """Verb and host of each call, but what only looks."""
  short = [(x[3], *(y for y in x if y.startswith('--worker')))
           for x in calls(world)]
  return [x for x in short if x[0] != 'describe']


def commands(world, word):
  return [y.removeprefix('--command=') for x in calls(world) for y in x
          if y.startswith('--command=') and word in y]


def journal(folder):
  text = (folder / 'runs/x/examples.jsonl').read_text().splitlines()
  return [json.loads(x)['line'] for x in text]


def test_a_dry_run_prints_every_command_and_runs_none(world, capsys):
  go(world, 'sweep', '--spot', '--delete', '--dry_run', '--env=A=b c', *RUN)
  assert calls(world) == [] and not pathlib.Path('out').exists()
  lines = capsys.readouterr().out.splitlines()
  assert all(x.startswith(('gcloud compute tpus ', 'git -C ')) for x in lines)
  count = lambda *words: sum(all(w in x for w in words) for x in lines)
  assert count('queued-resources create s', '--node-id=s', '--spot',
               '--accelerator-type=v5litepod-16', '--project=p', '--zone=z',
               '--runtime-version=v2-alpha-tpuv5-lite') == 1
  for host in range(4):
    assert count('scp', f'--worker={host}') >= 1
    assert count('setup.sh requirements-tpu.txt', f'--worker={host}') == 1
    assert count('sweep.py', '--coordinator=auto', '--gin.A=(1, 2)', 'A=b c',
                 f'--worker={host}') == 1
  assert 'queued-resources delete s' in lines[-1]


def test_a_dry_run_of_many_slices_joins_them_by_ray(world, capsys):
  go(world, 'sweep', '--slices=3', '--dry_run', *RUN, kind='v5litepod-8')
  lines = capsys.readouterr().out.splitlines()
  count = lambda *words: sum(all(w in x for w in words) for x in lines)
  assert count('queued-resources create') == 3
  assert count('requirements-ray.txt') == 3
  assert count('ray start', '--head', 'ssh s-0') == 1
  assert count('ray start', '--address=') == 2
  sweeps = [x for x in lines if 'scripts/sweep.py --' in x]
  assert len(sweeps) == 1 and 'ssh s-0' in sweeps[0]
  assert '--gin.NUM_WORKERS=24' in sweeps[0] and 'ray.gin' in sweeps[0]
  assert '--coordinator' not in sweeps[0]


def test_a_sweep_is_queued_set_up_run_and_collected(world, capsys):
  states = ['WAITING_FOR_RESOURCES', 'WAITING_FOR_RESOURCES', 'PROVISIONING',
            'ACTIVE']
  go(world, 'sweep', *RUN, states=[states])
  assert journal(pathlib.Path('out')) == list(range(20))
  shown = capsys.readouterr().out
  assert all(f'# s: {x}' in shown for x in set(states))
  found = verbs(world)
  assert found[0] == ('create',) and ('delete',) not in found
  for host in range(4):
    # Is it set up, set-up, and sweep.
    assert found.count(('ssh', f'--worker={host}')) == 3
  assert all('--coordinator=auto' in x and "'--gin.A=(1, 2)'" in x
             for x in commands(world, 'scripts/sweep.py --'))
  go(world, 'delete')
  assert verbs(world)[-1] == ('delete',) and not (world / 's').exists()


def test_a_slice_that_was_taken_away_is_made_again_and_the_sweep_goes_on(
    world, capsys):
  go(world, 'sweep', '--spot', '--setup=fetch weights', *RUN,
     states=[*READY, ['ACTIVE']], sweep={'0.1': 'preempt', '1.1': 'preempt'})
  assert 's was taken away; the sweep goes on' in capsys.readouterr().out
  assert journal(pathlib.Path('out')) == list(range(20))
  found = verbs(world)
  assert found.count(('create',)) == 2 and found.count(('delete',)) == 1
  assert len(commands(world, 'fetch weights')) == 8        # on every new host
  # What was collected was there before the sweep went on.
  pushed = [i for i, x in enumerate(calls(world)) if 'scp' in x
            and x[4].endswith('out/runs')]
  again = [i for i, x in enumerate(calls(world))
           if any('scripts/sweep.py --' in y for y in x)]
  assert len(pushed) == 1 and again[3] < pushed[0] < again[4]


def test_stopped_in_the_queue_the_same_command_sets_up(world, monkeypatch):
  def stopped(seconds):
    raise KeyboardInterrupt
  states = [['WAITING_FOR_RESOURCES', 'WAITING_FOR_RESOURCES', 'ACTIVE']]
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(script, 'time', types.SimpleNamespace(
        sleep=stopped, monotonic=time.monotonic))
    go(world, 'sweep', *RUN, states=states)
  assert verbs(world) == [('create',)]
  go(world, 'sweep', *RUN, states=states)
  assert verbs(world).count(('create',)) == 1
  assert len(commands(world, 'setup.sh')) == 4
  assert journal(pathlib.Path('out')) == list(range(20))


def test_a_set_up_that_failed_is_made_again_by_the_same_command(world):
  go(world, 'create')
  with pytest.raises(ValueError, match='Set-up failed on 1 of 4 hosts'):
    go(world, 'sweep', *RUN, setup={'3.1': 7})
  assert not commands(world, 'scripts/sweep.py --')
  go(world, 'sweep', *RUN)
  assert len(commands(world, 'setup.sh')) == 8
  assert journal(pathlib.Path('out')) == list(range(20))
  go(world, 'sweep', *RUN)
  assert len(commands(world, 'setup.sh')) == 8               # it is set up


def test_newer_journals_of_a_host_are_kept(world):
  go(world, 'sweep', *RUN)
  here = pathlib.Path('out/runs/x/examples.jsonl')
  here.write_text(here.read_text()[:40])
  with pytest.raises(ValueError, match='Set-up failed'):
    go(world, 'setup', setup={'0.1': 7})
  assert not (world / 's/0/spec_cascades/.ready').exists()
  go(world, 'setup')
  assert (world / 's/0/spec_cascades/.ready').exists()
  assert journal(world / 's/0/spec_cascades') == list(range(20))


def test_a_slice_that_is_lost_in_its_set_up_is_made_again(world, capsys):
  go(world, 'sweep', *RUN, states=[*READY, ['ACTIVE']],
     setup={'2.1': 'preempt'})
  assert 's was taken away; the sweep goes on' in capsys.readouterr().out
  assert verbs(world).count(('create',)) == 2
  assert journal(pathlib.Path('out')) == list(range(20))


def test_slices_that_are_lost_as_ray_starts_are_made_again(world, capsys):
  go(world, 'sweep', '--slices=2', *RUN, kind='v5litepod-8',
     states=[['ACTIVE']], ray={'0.1': 'preempt'})
  shown = capsys.readouterr().out
  assert shown.index('s-0 was taken away') < shown.index('s-1 was taken away')
  assert verbs(world).count(('create',)) == 4
  assert len(commands(world, 'setup.sh')) == 4               # once when new
  assert journal(pathlib.Path('out')) == list(range(20))


def test_start_up_failures_are_told_by_host(world):
  with pytest.raises(ValueError) as error:
    go(world, 'sweep', *RUN, sweep={'0.1': 2, '2.1': 1})
  assert 'The sweep failed on 2 of 4 hosts' in str(error.value)
  assert 's host 2: exit 1: sweep.py: no room on host 2' in str(error.value)
  with pytest.raises(ValueError, match=(
      'Set-up failed on 1 of 4 hosts: s host 3: exit 7: pip: no space left on '
      'device 3')):
    go(world, 'setup', setup={'3.1': 7})


def test_a_host_that_dies_is_no_end_unless_it_always_does(world, capsys):
  with pytest.raises(ValueError, match='s host 1: exit 134'):
    go(world, 'sweep', *RUN, sweep={'1.1': 134})
  assert len(commands(world, 'scripts/sweep.py --')) == 4 * (
      script.RETRIED + 1)
  assert 'host 1: exit 134' in capsys.readouterr().out
  assert verbs(world).count(('create',)) == 1


def test_a_request_that_fails_is_made_again_so_often(world):
  with pytest.raises(ValueError, match='s is FAILED after 2 restarts'):
    go(world, 'create', '--restarts=2', states=[['PROVISIONING', 'FAILED']])
  assert verbs(world).count(('create',)) == 3
  go(world, 'create', states=[['FAILED'], ['FAILED'], ['FAILED'], ['ACTIVE']])
  assert verbs(world)[-2:] == [('delete',), ('create',)]


@pytest.mark.parametrize('kind,chips,hosts', [
    ('v2-8', 4, 1), ('v3-32', 16, 4), ('v4-8', 4, 1), ('v4-128', 64, 16),
    ('v5p-16', 8, 2), ('v5litepod-1', 1, 1), ('v5litepod-8', 8, 1),
    ('v5litepod-16', 16, 4), ('v6e-256', 256, 64)])
def test_chips_and_hosts_of_a_type(kind, chips, hosts):
  one = slices.Slice('s', 'p', 'z', kind)
  assert (one.chips, one.hosts) == (chips, hosts)


@pytest.mark.parametrize('flags,what', [
    (['run'], 'Nothing to run'), (['sweep', '--slices=0', *RUN], '1 or more'),
    (['sweep', '--slices=2', *RUN], 'which has 4 hosts'),
    (['launch'], 'invalid choice'),
    (['sweep', '--env=A', *RUN], "--env 'A'; allowed: NAME=VALUE")])
def test_what_can_not_be_is_refused(world, flags, what):
  with pytest.raises(ValueError, match=what):
    go(world, *flags)
  assert calls(world) == []


@pytest.mark.parametrize('name,kind,what', [
    ('S', 'v4-8', "--name 'S'"), ('s', 'v9-8', "--type 'v9-8'"),
    ('s', 'v4', "--type 'v4'")])
def test_slices_that_can_not_be(name, kind, what):
  with pytest.raises(ValueError, match=what):
    slices.Slice(name, 'p', 'z', kind)


def test_without_gcloud_it_says_so(world, monkeypatch):
  (world / 'bin' / 'gcloud').unlink()
  with pytest.raises(ValueError, match='gcloud is not on the path'):
    go(world, 'create')
