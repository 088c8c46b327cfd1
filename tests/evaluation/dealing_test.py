"""Units dealt to real processes: each is decoded once, all get their share."""
import json

import pytest

import processes
from spec_cascades.evaluation import dealing
from spec_cascades.evaluation import decoding
from spec_cascades.evaluation import programs
from spec_cascades.evaluation import work

# A decoder that only sleeps, in place of one with models; the source is in
# order, and a unit is one decode.
RUN = '''
import dataclasses, json, sys, time
from spec_cascades import hosts
from spec_cascades.evaluation import dealing, decoding, results, work
COUNT = int(sys.argv[1])

class Decoder:
  def __init__(self, job):
    pass

  def prepare(self, decodes, say=lambda what: None):
    yield decoding.Outcome(compiled=dict(who=hosts.index(), needs=decodes))
    hosts.barrier('prepared')            # so that all begin together

  def decode(self, unit):
    time.sleep(.1)
    yield decoding.Outcome(records=[results.Record(
        *decode[:2], None, [], 0, dict(who=hosts.index()), decode[2])
                                    for decode in unit.decodes])

@dataclasses.dataclass
class Source:
  taken: int = 0
  finished: list = dataclasses.field(default_factory=list)
  unit = lambda self, i: work.Unit((('k', i, 1),), True)
  missing = lambda self: [('k', i, 1) for i in range(COUNT)]
  done = lambda self, index: self.finished.append(index)
  say = lambda self, what: None

  def take(self, wait=True):
    if self.taken == COUNT:
      return None
    self.taken += 1
    return self.taken - 1, self.unit(self.taken - 1)

@dataclasses.dataclass
class Job:
  spans = False
  rows = [[1]] * 1000
  plan = work.Plan(1000, 1000, 1, 1)

decoding.Decoder = Decoder
hosts.start()
found = []
for _ in range(2):                       # two sweeps, one behind the other
  if hosts.first():
    source = Source()
    outcomes = list(dealing.deal(Job(), source))
    found.append(dict(
        done=sorted(source.finished), late=sum(x.late for x in outcomes),
        compiled=[x.compiled for x in outcomes if x.compiled],
        records=[(x.stats['who'], x.example)
                 for one in outcomes for x in one.records]))
  else:
    found.append(dealing.help_out(Job))
if hosts.first():
  dealing.skip()
  try:
    dealing.agree(dict(a=1, versions={}))
  except ValueError as error:
    print(error, file=sys.stderr)
else:
  found.append(dealing.help_out(Job))
  try:
    dealing.agree(dict(a=2, versions={}))
  except ValueError as error:
    print(error, file=sys.stderr)
print(json.dumps(found))
hosts.finish()
'''


def check(count, units):
  texts = processes.finish(processes.start(count, '-c', RUN, units))
  first, *others = [json.loads(out) for out, _ in texts]
  assert [x[-1] for x in others] == [0] * (count - 1)       # skipped
  for sweep, found in enumerate(first):
    assert found['done'] == list(range(units)) and found['late'] == 0
    whose, decoded = zip(*found['records'])
    assert sorted(decoded) == list(range(units))
    shares = [whose.count(i) for i in range(count)]
    assert min(shares) > 0 and shares[1:] == [x[sweep] for x in others]
    assert [x['who'] for x in sorted(
        found['compiled'], key=lambda x: x['who'])] == list(range(count))
    # One decode tells the others all that they have to compile.
    assert all(len(x['needs']) == 1 for x in found['compiled'] if x['who'])
  for _, err in texts:
    assert 'Process 1 and process 0 are not alike: a is 2, not 1' in err


def test_two_processes_share_all_units():
  check(2, 20)


@pytest.mark.slow
def test_four_processes_share_all_units():
  check(4, 60)


def test_others_are_told_one_decode_for_each_program():
  plan = work.Plan(4, 2, 2, 3)
  job = decoding.Job(None, (), {}, [[1], [1, 2], [3], [1, 2]], (),
                     [programs.Bucket(8, 8)], plan, 0, 1)
  decodes = [*plan.decodes('a'), *plan.decodes('b')]
  found = dealing.needed(job, decodes)
  assert set(found) <= set(decodes) and len(found) == 8
  kinds = lambda some: {(key, len(job.rows[i]), trial in plan.clocked)
                        for key, i, trial in some}
  assert kinds(found) == kinds(decodes)


LATER = '''
import sys
from spec_cascades import hosts
from spec_cascades.evaluation import decoding

def fail(*who):
  if hosts.index() in who:
    raise TypeError('no program')
  return hosts.index()

hosts.start()
for who in ((), (0, 1), (1,)):
  try:
    print(decoding._Later(fail, *who).result())
  except Exception as error:
    print(f'{type(error).__name__} {error}')
'''


def test_all_processes_know_what_one_refuses():
  for i, (out, _) in enumerate(processes.finish(processes.start(
      2, '-c', LATER))):
    assert out.splitlines() == [
        str(i), '_Refused TypeError: no program',
        '_Refused process 1: TypeError: no program']
