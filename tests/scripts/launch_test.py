"""The launcher of TPU slices, against a gcloud that simulates them."""
import pathlib
import shlex
import shutil
import tarfile
import time
import types

import pytest
from launching import calls
from launching import commands
from launching import go
from launching import journal
from launching import RUN
from launching import READY
from launching import script
from launching import slices
from launching import verbs

from spec_cascades.evaluation import ray_cluster


def test_a_dry_run_prints_every_command_and_runs_none(world, capsys):
  go(world, 'sweep', '--spot', '--delete', '--dry_run', '--env=A=b c', *RUN)
  assert calls(world) == [] and not pathlib.Path('out').exists()
  shown = capsys.readouterr().out.splitlines()
  lines = [x for x in shown if not x.startswith('# ')]
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
  # And what a loss takes.
  told, gone, again, _, back = [x for x in shown if x.startswith('# ')][-5:]
  assert 'taken away' in told and gone == f'# {lines[-1]}'
  assert again == next(f'# {x}' for x in lines if 'resources create' in x)
  assert 'scp out/runs s:. ' in back and '--worker=0' in back


def test_a_dry_run_of_many_slices_joins_them_by_ray(world, capsys):
  go(world, 'sweep', '--slices=3', '--dry_run', *RUN, kind='v5litepod-8')
  shown = capsys.readouterr().out.splitlines()
  lines = [x for x in shown if not x.startswith('# ')]
  count = lambda *words: sum(all(w in x for w in words) for x in lines)
  assert count('queued-resources create') == 3
  assert count('requirements-ray.txt') == 3
  assert count('ray start', '--head', 'ssh s-0') == 1
  assert count('ray start', '--address=') == 2
  sweeps = [x for x in lines if 'scripts/sweep.py --' in x]
  assert len(sweeps) == 1 and 'ssh s-0' in sweeps[0]
  assert '--gin.NUM_WORKERS=24' in sweeps[0] and 'ray.gin' in sweeps[0]
  assert "--gin.RESOURCES={'TPU': 1}" in unquoted(sweeps[0])
  assert '--gin.HOSTS=1' in sweeps[0]
  # All have the token, which no command shows.
  assert count('scp .spec_cascades_ray ') == 3
  assert count('RAY_AUTH_TOKEN_PATH=$HOME/.spec_cascades_ray') == 4
  assert '--coordinator' not in sweeps[0]
  assert sum(x.startswith('# gcloud') for x in shown) == 7


@pytest.mark.parametrize('kind,model,said', [
    ('v5litepod-16', 1, (32, 1, 1)), ('v5litepod-16', 16, (2, 4, 4)),
    ('v4-8', 4, (2, 1, 4)), ('v4-8', 2, (4, 1, 2)), ('v3-32', 32, (2, 4, 4)),
    ('v3-8', 2, (8, 1, 1)), ('v4-128', 64, (2, 16, 4))])
def test_a_worker_takes_a_chip_or_what_its_mesh_takes(
    world, capsys, kind, model, said):
  go(world, 'sweep', '--slices=2', '--dry_run', *RUN,
     '--gin_file=gin/executors/mesh.gin', f'--gin.MODEL={model}', kind=kind)
  lines = [x for x in capsys.readouterr().out.splitlines() if x[0] != '#']
  sweep, = (unquoted(x) for x in lines if 'scripts/sweep.py --' in x)
  workers, hosts, chips = said
  assert (f'--gin.NUM_WORKERS={workers} --gin.HOSTS={hosts} '
          f"--gin.RESOURCES={{'TPU': {chips}}}") in sweep
  starts = [x for x in lines if 'ray start' in x]
  assert (script.SLICE, script.HOST) == (ray_cluster.SLICE, ray_cluster.HOST)
  places = [(name, i) for name in ('s-0', 's-1')
            for i in range(slices.Slice('s', 'p', 'z', kind).hosts)]
  assert len(starts) == len(places)
  for (name, i), x in zip(places, starts):
    assert f'ssh {name} ' in x and f'--worker={i} ' in x
    assert (f'--labels=ray.io/tpu-slice-name={name},ray.io/tpu-worker-id={i} '
            in x)
    assert ('--head' in x) == ((name, i) == ('s-0', 0))


def unquoted(line):
  """A command as its host has it, without the quotes that carry it there."""
  command, = (x for x in shlex.split(line) if x.startswith('--command='))
  return ' '.join(shlex.split(command.removeprefix('--command=')))


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
  go(world, 'sweep', '--spot', '--setup=echo fetch weights', *RUN,
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
    patch.setattr(script.asked, 'time', types.SimpleNamespace(
        sleep=stopped, monotonic=time.monotonic))
    go(world, 'sweep', *RUN, states=states)
  assert verbs(world) == [('create',)]
  go(world, 'sweep', *RUN, states=states)
  assert verbs(world).count(('create',)) == 1
  assert len(commands(world, 'setup.sh')) == 4
  assert journal(pathlib.Path('out')) == list(range(20))


def test_a_set_up_that_failed_is_made_again_by_the_same_command(
    world, monkeypatch):
  go(world, 'create')
  with monkeypatch.context() as patch, pytest.raises(
      ValueError, match='^Set-up failed on 1 of 4 hosts'):
    patch.setattr(slices, 'RETRIED', 2)
    go(world, 'sweep', *RUN, setup={'3.1': 7})
  assert not commands(world, 'scripts/sweep.py --')
  assert len(commands(world, 'setup.sh')) == 8               # and once more
  go(world, 'sweep', *RUN)
  assert len(commands(world, 'setup.sh')) == 12
  assert journal(pathlib.Path('out')) == list(range(20))
  go(world, 'sweep', *RUN)
  assert len(commands(world, 'setup.sh')) == 12              # it is set up


def test_a_set_up_that_fails_once_is_no_end(world, capsys):
  go(world, 'sweep', *RUN, kind='v4-8', setup={'0.1': [100, 0]})
  assert 'Set-up failed on 1 of 1 hosts' in capsys.readouterr().out
  assert len(commands(world, 'setup.sh')) == 2
  assert len(commands(world, 'scripts/sweep.py --')) == 1
  assert journal(pathlib.Path('out')) == list(range(20))


def test_a_host_that_can_not_be_asked_yet_is_not_set_up(world):
  go(world, 'sweep', *RUN, kind='v4-8', ask={'0.1': [255, 0]})
  assert len(commands(world, 'setup.sh')) == 1
  assert len(commands(world, 'scripts/sweep.py --')) == 1


def test_a_command_of_set_up_fails_with_any_of_its_parts(world):
  go(world, 'create', kind='v4-8')
  ready = world / 's/0/spec_cascades/.ready'
  with pytest.raises(ValueError, match='Set-up failed on 1 of 1 hosts'):
    go(world, 'setup', '--setup=false && true', kind='v4-8')
  assert not ready.exists()
  go(world, 'setup', '--setup=true && echo "a b" > it', kind='v4-8')
  assert ready.exists() and ready.with_name('it').read_text() == 'a b\n'
  assert f'{script.APT} install' in commands(world, 'setup.sh')[-1]
  assert 'DPkg::Lock::Timeout=600' in script.APT


def test_hosts_that_do_not_come_together_start_again(world):
  go(world, 'sweep', *RUN, kind='v5litepod-16',
     sweep={f'{i}.1': [3, 0] for i in range(4)})
  assert len(commands(world, 'scripts/sweep.py --')) == 8
  assert journal(pathlib.Path('out')) == list(range(20))


def test_a_state_that_is_not_known_for_a_while_is_no_end(world, capsys):
  go(world, 'create', kind='v4-8', states=[
      ['WAITING_FOR_RESOURCES', '!503 UNAVAILABLE', 'WARNING: odd', 'ACTIVE']])
  shown = capsys.readouterr().out
  assert 'not known: !503 UNAVAILABLE' in shown
  assert 'not known: WARNING: odd' in shown
  assert verbs(world) == [('create',)]


def test_failing_it_says_how_to_stop_paying(world, capsys, monkeypatch):
  with pytest.raises(ValueError, match='exit 2: sweep.py: no room'):
    go(world, 'sweep', *RUN, kind='v4-8', sweep={'0.1': 2})
  told = 'gcloud compute tpus queued-resources delete s --project=p --zone=z '
  assert 'costs money' in (shown := capsys.readouterr().out)
  assert shown.splitlines()[-1].startswith(told)

  def interrupted(seconds):
    raise KeyboardInterrupt
  monkeypatch.setattr(script.asked, 'time', types.SimpleNamespace(
      sleep=interrupted, monotonic=time.monotonic))
  with pytest.raises(KeyboardInterrupt):
    go(world, 'create', '--name=t', kind='v4-8')
  assert told.replace(' s ', ' t ') in capsys.readouterr().out
  go(world, 'delete')
  assert 'money' not in capsys.readouterr().out


def test_slices_are_given_back_though_one_can_not_be(world, capsys):
  go(world, 'create', '--slices=2', kind='v5litepod-8')
  shutil.rmtree(world / 's-0')
  with pytest.raises(ValueError, match='^Not given back: s-0: exit 1: .*FOUND'):
    go(world, 'delete', '--slices=2', kind='v5litepod-8')
  assert not (world / 's-1').exists()
  assert 'costs money' in capsys.readouterr().out


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


def test_bad_input_on_any_host_is_the_end(world):
  with pytest.raises(ValueError, match=(
      'The sweep failed on 4 of 4 hosts: s host 2: exit 2: sweep.py: no room '
      'on host 2; s host 0: exit 3: ')):
    go(world, 'sweep', *RUN, sweep={'0.1': 3, '1.1': 3, '2.1': 2, '3.1': 3})
  assert len(commands(world, 'scripts/sweep.py --')) == 4
  assert len(commands(world, 'setup.sh')) == 4


def test_a_host_that_dies_is_no_end_unless_it_always_does(world, capsys):
  with pytest.raises(ValueError, match='s host 1: exit 134'):
    go(world, 'sweep', *RUN, sweep={'1.1': 134})
  assert len(commands(world, 'scripts/sweep.py --')) == 4 * (
      slices.RETRIED + 1)
  assert 'host 1: exit 134' in capsys.readouterr().out
  assert verbs(world).count(('create',)) == 1


def test_of_exit_codes_the_hosts_own_counts():
  """gcloud also tells of a lost connection before it tries again."""
  lost = 'SSH command error: [/usr/bin/ssh] exited with return code [255].'
  told = 'ERROR: [/usr/bin/ssh] exited with return code [134].'
  ended = slices.Ended.of
  assert ended('h', 2, [lost, 'sweep.py: no room']).code == 2
  assert ended('h', 1, [lost, told]).code == 134
  assert ended('h', 1, ['no host']).code == 1 and not ended('h', 0, [lost]).code


def test_a_request_that_can_not_be_made_is_no_end_of_a_sweep(world, capsys):
  lost = dict(states=[*READY, ['ACTIVE']], sweep={'0.1': 'preempt'})
  go(world, 'sweep', '--restarts=1', *RUN, kind='v4-8', **lost,
     queue=dict(delete=[1], create=[0, 1, 1]))
  assert journal(pathlib.Path('out')) == list(range(20))
  found = verbs(world)
  assert found.count(('create',)) == 4 and found.count(('delete',)) == 2
  shown = capsys.readouterr().out
  assert shown.count('UNAVAILABLE: create') == 2
  go(world, 'delete')
  # The first time it is: what was asked for may be wrong.
  with pytest.raises(ValueError, match='UNAVAILABLE: create'):
    go(world, 'sweep', *RUN, kind='v4-8', states=[['ACTIVE']],
       queue=dict(create=[1] * 9))


def test_a_slice_that_is_being_taken_away_is_waited_for(world):
  states = ['SUSPENDING', 'SUSPENDING', 'SUSPENDED']
  go(world, 'create', states=[states, ['ACTIVE']])
  assert verbs(world) == [('create',), ('delete',), ('create',)]
  asked = [x[3] for x in calls(world)]
  assert asked == ['describe', 'create', *['describe'] * 3, 'delete', 'create',
                   'describe']


def test_all_slices_are_in_the_queue_before_one_is_waited_for(world):
  go(world, 'create', '--slices=3', kind='v5litepod-8',
     states=[['WAITING_FOR_RESOURCES', 'ACTIVE']])
  asked = [x[3] for x in calls(world)]
  assert asked == [*['describe'] * 3, *['create'] * 3, *['describe'] * 6]


def test_a_request_that_fails_is_made_again_so_often(world):
  with pytest.raises(ValueError, match='s is FAILED after 2 restarts'):
    go(world, 'create', '--restarts=2', states=[['PROVISIONING', 'FAILED']])
  assert verbs(world).count(('create',)) == 3
  go(world, 'create', states=[['FAILED'], ['FAILED'], ['FAILED'], ['ACTIVE']])
  assert verbs(world)[-2:] == [('delete',), ('create',)]


@pytest.mark.parametrize('dry', [(), ('--dry_run',)])
def test_to_ask_for_many_slices_is_no_restart(world, dry, capsys):
  go(world, 'create', '--slices=3', '--restarts=0', *dry, kind='v5litepod-8',
     states=[['ACTIVE']])
  asked = (capsys.readouterr().out.count('queued-resources create') if dry
           else verbs(world).count(('create',)))
  assert asked == 3


def test_a_slice_is_asked_for_again_no_more_often_than_is_said(world):
  with pytest.raises(ValueError, match='^s was taken away, and --restarts 0 '):
    go(world, 'sweep', '--restarts=0', *RUN, kind='v4-8',
       states=[*READY, ['ACTIVE']], sweep={'0.1': 'preempt'})
  assert verbs(world).count(('create',)) == 1
  go(world, 'sweep', '--restarts=1', *RUN, kind='v4-8', states=[['ACTIVE']])
  assert journal(pathlib.Path('out')) == list(range(20))


def test_all_hosts_of_a_launch_get_the_commit_that_it_began_with(
    world, monkeypatch):
  root = world / 'checkout'
  (root / 'gin').mkdir(parents=True)
  git = lambda *args: slices.Gcloud().done(['-C', str(root), *args], 'git')

  def commit(word):
    (root / 'gin/a.gin').write_text(f'A = {word!r}\n')
    git('add', '.')
    git('-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '-qm', word)
  git('init', '--quiet')
  commit('first')
  monkeypatch.setattr(script._cli, 'ROOT', root)
  head = script.checks.head
  monkeypatch.setattr(script.checks, 'head',
                      lambda flags: (head(flags), commit('then'))[0])
  go(world, 'sweep', '--', '--gin_file=gin/a.gin', kind='v4-8',
     states=[*READY, ['ACTIVE']], sweep={'0.1': 'preempt'})
  assert verbs(world).count(('create',)) == 2
  with tarfile.open(world / 's/0' / script.ARCHIVE) as sources:
    assert sources.extractfile('gin/a.gin').read() == b"A = 'first'\n"


def test_one_sweep_at_a_time_is_collected_in_a_place(world):
  pathlib.Path('out').mkdir()
  with script.collected.held(pathlib.Path('out')):
    with pytest.raises(ValueError, match='Another sweep is being collected in '
                       '.*/out; give this one another --output'):
      go(world, 'sweep', *RUN, kind='v4-8')
    assert not calls(world)
    go(world, 'create', kind='v4-8')
  go(world, 'sweep', *RUN, kind='v4-8')


def test_an_address_is_one_whatever_else_is_said(world):
  go(world, 'sweep', '--slices=2', *RUN, kind='v5litepod-8',
     address='WARNING: Python 3.9 is old.\n10.0.0.8;10.0.0.9')
  assert len(commands(world, '--head --port=6379 --node-ip-address=10.0.0.8'
                      )) == 1
  with pytest.raises(ValueError, match='The address of s-0 is not known: odd'):
    go(world, 'run', '--slices=2', *RUN, kind='v5litepod-8', address='odd')


def test_slices_are_given_back_from_sources_that_are_no_checkout(
    world, monkeypatch, tmp_path):
  monkeypatch.setattr(script._cli, 'ROOT', tmp_path)
  go(world, 'create', kind='v4-8')
  with pytest.raises(ValueError, match='not a git repository'):
    go(world, 'setup', kind='v4-8')
  go(world, 'delete', kind='v4-8')
  assert not (world / 's').exists()
