"""Training by several processes is training by one, on the devices of all."""
import dataclasses
import json
import signal

import jax
import numpy as np
import pytest

import processes
from spec_cascades.training import loop
from spec_cascades.training import start
from training.interrupted_test import STUDENT
from training.interrupted_test import command_of
from training.runs import recipe, run_of

NEAR = 1e-5                   # sums over devices have another order
MESH = 'loop.Run.mesh = (2, 2)\n'


def apart(some, others):
  scale = max(np.abs(x).max() for x in jax.tree.leaves(some))
  return max(jax.tree.leaves(jax.tree.map(
      lambda a, b: np.abs(a - b).max() / scale, some, others)))


def trained(directory, corpus, numbers, count, more='', devices=2):
  directory.mkdir()
  texts = processes.finish(processes.start(
      count, *command_of(directory, corpus, numbers, more)[1:],
      devices=devices))
  return texts, start.restore(directory / 'run')


READ = '''
import json, sys
from spec_cascades import hosts
from spec_cascades.evaluation import text
from spec_cascades.training import data
hosts.start(training=True)
hosts.CHUNK = 1000
directory, words = sys.argv[1:]
corpus = data.ParallelText(directory, text.Vocabulary(words), buckets=(24, 48),
                           tokens_per_batch=192)
parts, parse = [], data.ParallelText.numbered
def numbered(self, split, part=data.ALL):
  found = parse(self, split, part)
  parts.append([number for number, _ in found])
  return found
data.ParallelText.numbered = numbered
try:
  batches = [{name: x.tolist() for name, x in corpus.batch(step).items()}
             for step in (0, corpus.steps_per_epoch + 1)]
except ValueError as error:
  batches = str(error)
print(json.dumps([parts, batches]), flush=True)
hosts.finish()
'''


def read(count, corpus):
  """What each process parsed, and what it got to train on."""
  return [json.loads(out) for out, _ in processes.finish(processes.start(
      count, '-c', READ, corpus.directory, corpus.vocabulary.path))]


def test_each_process_reads_its_part_and_has_all(corpus):
  alone, = read(1, corpus)
  each = read(3, corpus)
  assert [batches for _, batches in each] == 3 * [alone[1]]
  assert len(alone[1]) == 2
  (everything,), lines = alone[0], [part for (part,), _ in each]
  assert len(everything) == len(corpus.lines('train'))
  assert sum(lines, []) == everything and all(lines)


def test_what_one_process_can_not_read_all_say(corpus, tmp_path):
  """Line 3 is that of the third process."""
  lines = [json.dumps(x) for x in corpus.lines('train')]
  lines[2] = '{}'
  (tmp_path / 'train.jsonl').write_text('\n'.join(lines), encoding='utf-8')
  said = {line for _, line in read(3, dataclasses.replace(
      corpus, directory=str(tmp_path)))}
  assert len(said) == 1 and 'train.jsonl, line 3 has no text' in said.pop()


@pytest.mark.slow
@pytest.mark.parametrize('rules', ['tensor', 'fsdp', 'data'])
def test_two_processes_train_as_one(corpus, tmp_path, rules):
  """Scores, checkpoints and the last parameters; one process writes.

  Without a mesh they take all of their devices.
  """
  numbers = recipe(steps=4, warmup=2, cooldown=0, save_every=2, eval_every=4,
                   log_every=2, eval_sentences=1, eval_batch=1, max_length=3)
  texts, (got, step) = trained(tmp_path / 'two', corpus, numbers, 2,
                               MESH * (rules != 'data') +
                               f'loop.Run.rules = {rules!r}\n')
  want = loop.train(run_of(corpus, tmp_path / 'one', **vars(numbers)),
                    log=lambda line: None).params
  assert step == 4 and apart(want, got) < NEAR
  assert 'step 4/4' in texts[0][0] and 'validation_loss' in texts[0][0]
  assert texts[1][0] == ''
  lines = [json.loads(x) for x in (
      tmp_path / 'two/run/metrics.jsonl').read_text().splitlines()]
  assert [x['step'] for x in lines] == [2, 4, 4]


REDUCED = """
from spec_cascades.models import reduced
loop.Run.lm = @reduced.Reduced()
reduced.Reduced.lm = @t5.T5()
reduced.Reduced.size = 200
"""


@pytest.mark.slow
@pytest.mark.parametrize('rules,own', [
    ('tensor', ''), ('fsdp', ''), ('tensor', REDUCED)],
                         ids=['tensor', 'fsdp', 'reduced'])
def test_two_processes_write_and_measure_as_one(corpus, teacher, tmp_path,
                                                rules, own):
  """A student's own texts and its figures, by models that no device holds."""
  numbers = recipe(steps=4, warmup=2, cooldown=0, save_every=4, eval_every=2,
                   log_every=4, eval_sentences=3, eval_batch=2, gamma=2)
  more = STUDENT.format(teacher=str(teacher)).replace('0.5', '0.75')
  for name, count, mesh in (('two', 2, MESH), ('one', 1, '')):
    trained(tmp_path / name, corpus, numbers, count,
            f'{more}{own}{mesh}loop.Run.rules = {rules!r}\n')
  found = [[json.loads(x) for x in (
      tmp_path / name / 'run/metrics.jsonl').read_text().splitlines()]
           for name in ('two', 'one')]
  both = [{(row['step'], key): x for row in rows for key, x in row.items()
           if key not in ('time', 'tokens_per_second')} for rows in found]
  assert (2, 'tokens_per_call_T1') in both[0] and (4, 'bleu') in both[0]
  assert both[0] == pytest.approx(both[1], rel=1e-4)


@pytest.mark.slow
def test_four_processes_die_with_one_and_go_on(corpus, teacher, tmp_path):
  """A student that writes its own texts; killed behind a checkpoint."""
  more = f"""
loop.Run.teacher = {str(teacher)!r}
loop.Run.on_policy = @policies.OnPolicy()
policies.OnPolicy.share = 0.5
loop.Run.mesh = (4, 1)
"""
  numbers = recipe(steps=60, save_every=3, eval_every=60)
  _, (want, _) = trained(tmp_path / 'whole', corpus, numbers, 4, more, 1)
  place = tmp_path / 'killed'
  place.mkdir()
  command = command_of(place, corpus, numbers, more)[1:]
  several = processes.start(4, *command)
  processes.wait_for((place / 'run/checkpoints/6').exists, *several)
  several[2].send_signal(signal.SIGKILL)
  for err in processes.stopped([*several[:2], several[3]]):
    said = [x for x in err.splitlines() if x.startswith('train.py: ')]
    assert len(said) == 1, err
    assert 'ommand goes on' in said[0] or 'checkpoint of step' in said[0], err
  several[2].communicate()
  texts = processes.finish(processes.start(4, *command))
  assert 'resuming at step' in texts[0][0]
  got, step = start.restore(place / 'run')
  assert step == 60
  jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.slow
def test_a_notice_to_one_process_saves_and_ends_all(corpus, tmp_path):
  command = command_of(tmp_path, corpus, recipe(steps=5000, save_every=5000),
                       MESH)[1:]
  both = processes.start(2, *command, devices=2)
  processes.wait_for(lambda: (tmp_path / 'run/metrics.jsonl').exists(), *both)
  both[1].send_signal(signal.SIGTERM)
  processes.finish(both, timeout=120)
  assert 0 < start.restore(tmp_path / 'run')[1] < 5000


@pytest.mark.slow
def test_a_mesh_of_fewer_devices_is_refused_in_one_line(corpus, tmp_path):
  both = processes.start(2, *command_of(
      tmp_path, corpus, recipe(), 'loop.Run.mesh = (1, 1)\n')[1:])
  for err in processes.stopped(both):
    line, = [x for x in err.splitlines() if x.startswith('train.py: ')]
    assert 'mesh=(1, 1) and 2 processes that have 2 devices' in line, err
