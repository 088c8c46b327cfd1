"""Texts of a sweep, read by several processes: each its share, all get all."""
import json

import pytest

import processes
import publicdata
from spec_cascades.evaluation import examples
from spec_cascades.evaluation import sources

LINES = [dict(id=f'x{i}', en=f'word {i}', de=f'Wort {i}',
              near_duplicate=i % 3 == 0) for i in range(40)]
PUBLIC = 'web_questions'            # of whose records some have no answer


@pytest.fixture(scope='module')
def places(tmp_path_factory):
  root = tmp_path_factory.mktemp('texts')
  (root / 'test.jsonl').write_text('\n'.join(map(json.dumps, LINES)))
  (root / 'table.tsv').write_text('\n'.join(
      ['id\ten\tde', *('\t'.join((x['id'], x['en'], x['de'])) for x in LINES)]))
  publicdata.prepare(PUBLIC, root / 'tfds', files=3)
  return root


def sources_of(root):
  return {'table': sources.Table(str(root / 'table.tsv')),
          'corpus': sources.Corpus(str(root)),
          'public': sources.Public(PUBLIC, data_dir=str(root / 'tfds')),
          'train': sources.Public(PUBLIC, 'few_shot', split='train',
                                  data_dir=str(root / 'tfds'))}


# What a process reads itself: lines of files, and records.
READ = '''
import dataclasses, json, pathlib, sys
from spec_cascades import hosts
from spec_cascades.data import public
from spec_cascades.data import shares
from tests.evaluation import hosts_sources_test as here
hosts.start()
own = []
lines, between = shares.lines, public.Texts.between
def read(*given):
  own.extend(lines(*given))
  return lines(*given)
def bounded(self, start, stop):
  own.extend(range(start, stop))
  return between(self, start, stop)
shares.lines, public.Texts.between = read, bounded
for name, source in here.sources_of(pathlib.Path(sys.argv[1])).items():
  for limit in (None, 11, 2):
    own.clear()
    found = source.read(limit)
    print(json.dumps([name, limit, len(own),
                      [dataclasses.astuple(x) for x in found]]))
hosts.finish()
'''


@pytest.mark.slow
@pytest.mark.parametrize('count', [2, 3])
def test_each_process_reads_a_share_and_gets_all(places, count):
  said = processes.finish(processes.start(count, '-c', READ, places))
  read = {}
  for out, _ in said:
    for name, limit, own, found in map(json.loads, out.splitlines()):
      want = sources_of(places)[name].read(limit)
      assert [examples.Example(*x[:3], tuple(x[3])) for x in found] == want
      assert want
      read.setdefault((name, limit), []).append(own)
  assert len(read) == 12
  whole = {'table': 41, 'corpus': 40, 'public': publicdata.NUM_OTHERS,
           'train': publicdata.NUM_TRAIN}
  for (name, _), owns in read.items():
    assert sum(owns) == whole[name] and max(owns) < .7 * whole[name] + 1


DIFFER = '''
import os, sys
from spec_cascades import hosts
from spec_cascades.evaluation import sources
hosts.start()
own = int(os.environ['JAX_PROCESS_ID'])
try:
  sources.Table(sys.argv[1 + own]).read(None)
except ValueError as error:
  print(error, file=sys.stderr)
  hosts.leave(2)
'''


@pytest.mark.slow
@pytest.mark.parametrize('other,said', [
    ('x2\tzwei\n', 'Processes differ in'), (None, 'No evaluation set at')])
def test_files_that_differ_or_are_missing_are_said_by_all(other, said,
                                                          tmp_path):
  files = [tmp_path / f'{i}.tsv' for i in (0, 1)]
  files[0].write_text('id\ten\tde\nx1\tone\teins\n')
  if other:
    files[1].write_text('id\ten\tde\nx1\tone\tzwei\n')
  for err in processes.stopped(processes.start(2, '-c', DIFFER, *files)):
    assert said in err


def test_the_public_records_of_parts_are_those_of_the_whole(places):
  """Those of three files, so that a part may end in any of them."""
  from spec_cascades.data import public

  texts = public.Texts(PUBLIC, style='t5', split='train',
                       tfds_data_dir=places / 'tfds')
  assert len(list((places / 'tfds').rglob('*train.tfrecord*'))) == 3
  whole = list(texts)
  parts = [x for i in range(0, texts.records, 5)
           for x in texts.between(i, min(i + 5, texts.records))]
  assert parts == whole and len(whole) == publicdata.NUM_TRAIN - 1
  assert not list(texts.between(3, 3))


