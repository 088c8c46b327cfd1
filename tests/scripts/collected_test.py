"""Results of a slice are copied here whole, and what is here is not lost."""
import pathlib
import threading

from launching import calls
from launching import commands
from launching import go
from launching import journal
from launching import READY
from launching import RUN
from launching import script
from launching import slices
from launching import verbs
import pytest

collected = script.collected
OUT = pathlib.Path('out')


@pytest.mark.parametrize('what', [1, 'preempt'])
def test_a_copy_that_is_cut_off_leaves_the_one_before(world, monkeypatch, what):
  before, create = [], script.asked.create

  def creating(launch, some, **options):
    if options['patient']:
      before.append(journal(OUT))
    create(launch, some, **options)
  monkeypatch.setattr(script.asked, 'create', creating)
  go(world, 'sweep', *RUN, kind='v4-8', states=[*READY, ['ACTIVE']],
     sweep={'0.1': 'preempt'}, scp={'0.1': [0, what]})
  assert int((world / 's.0.1.scp').read_text()) > 1          # one was cut off
  assert before == [list(range(10))]
  assert verbs(world).count(('create',)) == 2
  assert journal(OUT) == list(range(20))
  assert left(OUT) == ['runs']


def test_a_sweep_whose_results_are_not_here_is_not_done(world, monkeypatch):
  ask = ['sweep', '--delete', '--collect_every=99', *RUN]
  monkeypatch.setattr(slices, 'RETRIED', 2)
  with pytest.raises(ValueError, match='s host 0, runs/: exit 1: scp: conn'):
    go(world, *ask, kind='v4-8', scp={'0.1': 1})
  assert len(commands(world, 'scripts/sweep.py --')) == 2
  assert ('delete',) not in verbs(world) and left(OUT) == []
  go(world, *ask, kind='v4-8', scp={'0.1': [1, 0]})
  assert len(commands(world, 'scripts/sweep.py --')) == 4
  assert verbs(world)[-1] == ('delete',) and journal(OUT) == list(range(20))


def test_nothing_is_given_back_that_was_to_be_collected(world):
  go(world, 'sweep', *RUN, kind='v4-8')
  with pytest.raises(ValueError, match='Collecting failed on 1 of 1 hosts'):
    go(world, 'collect', '--delete', kind='v4-8', scp={'0.1': 1})
  assert ('delete',) not in verbs(world)
  assert journal(OUT) == list(range(20))
  go(world, 'collect', '--delete', kind='v4-8')
  assert verbs(world)[-1] == ('delete',)


def test_a_dry_run_collects_nothing(world, capsys):
  go(world, 'collect', '--dry_run', kind='v4-8')
  assert 'scp s:spec_cascades/runs out/' in capsys.readouterr().out
  assert calls(world) == [] and not OUT.exists()


def left(folder):
  """What is there besides locks."""
  return sorted(x.name for x in folder.iterdir() if x.name not in (
      collected.LOCK, collected.HELD))


def write(path, content):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(content)


@pytest.mark.parametrize('renames', range(4))
def test_killed_at_any_time_it_has_all_of_one_copy(tmp_path, monkeypatch,
                                                   renames):
  write(tmp_path / 'runs/x/a.jsonl', 'old')
  write(tmp_path / 'runs/x/b.jsonl', 'old')
  write(tmp_path / 'runs/y/a.jsonl', 'of another sweep')
  rename, done = pathlib.Path.rename, []

  def killed(path, target):
    if len(done) == renames:
      raise KeyboardInterrupt
    done.append(path)
    return rename(path, target)
  with monkeypatch.context() as patch:
    patch.setattr(pathlib.Path, 'rename', killed)
    try:
      with collected.fresh(tmp_path) as folder:
        write(folder / 'runs/x/a.jsonl', 'new')
        write(folder / 'runs/x/b.jsonl', 'new')
        collected.take(folder, tmp_path)
    except KeyboardInterrupt:
      pass
  assert len(done) == renames
  collected.settle(tmp_path)
  found = {(tmp_path / 'runs/x' / x).read_text() for x in ('a.jsonl',
                                                           'b.jsonl')}
  assert found == {'old' if renames < 2 else 'new'}
  assert (tmp_path / 'runs/y/a.jsonl').read_text() == 'of another sweep'
  assert left(tmp_path) == ['runs']


def test_what_a_kill_left_of_a_copy_is_removed(tmp_path):
  write(tmp_path / f'{collected.FRESH}x' / 'runs/x/a.jsonl', 'cut of')
  with collected.fresh(tmp_path) as folder:
    assert not list(folder.iterdir()) and left(tmp_path) == [folder.name]
  assert left(tmp_path) == []


def test_two_do_not_collect_at_a_time(tmp_path):
  entered = threading.Event()

  def second():
    with collected.fresh(tmp_path):
      entered.set()
  thread = threading.Thread(target=second)
  with collected.fresh(tmp_path) as folder:
    thread.start()
    assert not entered.wait(.3) and folder.is_dir()
  assert entered.wait(20)
  thread.join()


def test_results_may_lie_on_another_disk(tmp_path):
  write(tmp_path / 'disk/there/a.jsonl', 'old')
  out = tmp_path / 'out'
  out.mkdir()
  (out / 'runs').symlink_to(tmp_path / 'disk/there')
  with collected.fresh(out) as folder:
    assert folder.parent == tmp_path / 'disk'
    write(folder / 'runs/a.jsonl', 'new')
    collected.take(folder, out)
  assert (out / 'runs').is_symlink()
  assert (out / 'runs/a.jsonl').read_text() == 'new'
