"""Rows, content keys and the journal survive what happens to files."""
import ast
import contextlib
import dataclasses
import importlib
import json
import pathlib
import resource
import shutil

import fakesweep
import pytest

from spec_cascades import targets
from spec_cascades.evaluation import journal as journal_lib
from spec_cascades.evaluation import measured
from spec_cascades.evaluation import points
from spec_cascades.evaluation import results

POINT = points.Point('TokenV3', 'TokenV3', .3, 1., 0, 1., 5, 'chain')
CONFIGURATION = dict(schema=results.SCHEMA, seed=0, data='d' * 64,
                     points=[dataclasses.asdict(POINT)])
GOLDEN = '2b0ab426d4ef3690c906218362c76cc946e7aa001a36bf4a5d5ce2c053544047'
RECORD = results.Record('k', 3, .25, [5, 1], 0, dict(rounds=1, deferred=.5))


@pytest.fixture(scope='module')
def rows():
  return fakesweep.make(limit=10).rows


def open_journal(path, configuration=CONFIGURATION):
  return journal_lib.Journal(path, configuration)


def test_rows_survive_a_file(tmp_path, rows):
  path = tmp_path / 'results.jsonl'
  results.write_rows(path, rows)
  assert results.read_rows(path) == rows
  assert [p.name for p in tmp_path.iterdir()] == ['results.jsonl']


def test_every_column_is_documented():
  for field in dataclasses.fields(results.Row):
    assert field.metadata['doc'], field.name


def test_rows_of_another_schema_are_refused(tmp_path, rows):
  path = tmp_path / 'results.jsonl'
  fields = json.loads(results.to_json(rows[0]))
  for bad, what in ((dict(fields, schema=99), 'schema 99'),
                    (dict(fields, extra=1), 'extra'), (3, 'schema None')):
    path.write_text(json.dumps(bad) + '\n')
    with pytest.raises(ValueError, match=what):
      results.read_rows(path)


@pytest.mark.parametrize('name, changes', [
    ('evaluation/kinds.py', True), ('evaluation/qualities.py', True),
    ('drafters/chain.py', True), ('decode.py', True), ('fatal.py', False),
    ('evaluation/sandbox.py', True), ('data/templates.py', True),
    ('evaluation/report/plot.py', False)])
def test_the_digest_is_of_the_code_that_decides(tmp_path, monkeypatch, name,
                                                changes):
  sources = tmp_path / 'spec_cascades'
  shutil.copytree(results.ROOT, sources, ignore=shutil.ignore_patterns(
      'assets', '__pycache__'))
  monkeypatch.setattr(results, 'ROOT', sources)
  before = results.code_digest.__wrapped__()
  path = sources / name
  path.write_text(path.read_text() + '# another line\n')
  assert (results.code_digest.__wrapped__() != before) == changes


def test_the_digest_is_of_all_that_makes_drafters():
  tree = ast.parse((results.ROOT / 'evaluation/kinds.py').read_text())
  names = {x.name for node in tree.body if isinstance(node, ast.ImportFrom)
           and node.module == 'spec_cascades.evaluation' for x in node.names}
  names -= {'estimated'}               # says what drafts would cost elsewhere
  assert names and {f'evaluation/{x}.py' for x in names} <= set(results.ENGINE)


def test_content_key_is_pinned():
  key = results.content_key(dict(schema=1, point=dataclasses.asdict(POINT)))
  assert key == GOLDEN


def test_content_key_ignores_order_and_sees_every_field():
  assert results.content_key(dict(a=1, b=2)) == results.content_key(
      dict(b=2, a=1))
  base = results.content_key(dataclasses.asdict(POINT))
  changes = dict(method='x', rule='x', alpha=.31, temperature=.5, top_k=3,
                 top_p=.9, gamma=4, drafter='ngram', model='drafter')
  assert set(changes) == {f.name for f in dataclasses.fields(POINT)}
  keys = {results.content_key(dataclasses.asdict(
      dataclasses.replace(POINT, **{name: value})))
          for name, value in changes.items()}
  assert len(keys | {base}) == len(changes) + 1


def test_a_journal_keeps_what_was_added(tmp_path):
  path = tmp_path / 'journal.jsonl'
  journal = open_journal(path)
  journal.add(RECORD)
  journal.note('compiled', seconds=1.5)
  journal.close()
  again = open_journal(path)
  assert again.records == {('k', 3, 0): RECORD}
  note, = again.notes
  assert note == dict(kind='compiled', seconds=1.5, at=note['at'])
  assert again.counts == {'k': 1}
  again.close()


def test_a_line_cut_short_is_dropped_at_every_offset(tmp_path):
  path = tmp_path / 'journal.jsonl'
  journal = open_journal(path)
  journal.add(RECORD)
  other = dataclasses.replace(RECORD, example=4)
  whole = path.read_bytes()
  journal.add(other)
  journal.close()
  content = path.read_bytes()
  for cut in [*range(0, 40), *range(len(whole), len(content), 17)]:
    path.write_bytes(content[:cut])
    journal = open_journal(path)
    assert set(journal.records) == (
        {('k', 3, 0)} if cut >= len(whole) else set())
    journal.add(other)
    journal.close()
    last = path.read_bytes().split(b'\n')[-2]
    assert results.Record(**json.loads(last)) == other


@contextlib.contextmanager
def room(size):
  """No file grows beyond it: a longer write is cut short, the next refused."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize('more', [0, 9], ids=['none', 'too_little'])
def test_a_line_for_which_there_is_no_room_is_an_error(tmp_path, more):
  """As where a disk is full, or nearly; what was there is not touched."""
  path = tmp_path / 'journal.jsonl'
  journal = open_journal(path)
  journal.add(RECORD)
  whole, other = path.read_bytes(), dataclasses.replace(RECORD, example=4)
  for write in (lambda: journal.add(other), lambda: journal.note('started')):
    with room(len(whole) + more), pytest.raises(
        OSError, match="journal.jsonl can't be written, .* whole: ") as error:
      write()
    assert '\n' not in str(error.value)
  assert list(journal.records) == [('k', 3, 0)] and not journal.notes
  journal.add(other)
  journal.close()
  content = path.read_bytes()
  assert content.startswith(whole) and content.count(b'\n') == 3
  with room(9), pytest.raises(OSError, match="new.jsonl can't be written"):
    open_journal(tmp_path / 'new.jsonl')


def test_a_foreign_journal_is_refused_and_left_alone(tmp_path):
  path = tmp_path / 'journal.jsonl'
  journal = open_journal(path)
  journal.close()
  content = path.read_bytes()
  with pytest.raises(ValueError, match='seed is 0 there and 1 here'):
    open_journal(path, dict(CONFIGURATION, seed=1))
  with pytest.raises(ValueError, match='data differs'):
    journal_lib.check(path, dict(CONFIGURATION, data='e' * 64))
  assert path.read_bytes() == content
  for other in (b'not json\n', b'{"kind": "sweep"}\n', b'a' * 50):
    path.write_bytes(other)
    with pytest.raises(ValueError, match='does not belong'):
      open_journal(path)
    assert path.read_bytes() == other


def test_a_damaged_line_is_named(tmp_path):
  path = tmp_path / 'journal.jsonl'
  journal = open_journal(path)
  journal.add(RECORD)
  journal.close()
  path.write_bytes(path.read_bytes()[:-9] + b'\n')
  with pytest.raises(ValueError, match='line 2 is damaged'):
    open_journal(path)


def test_two_may_write_one_journal(tmp_path):
  """Each sees what the other has added; a cut line of a dead one goes."""
  path = tmp_path / 'journal.jsonl'
  one, two = open_journal(path), open_journal(path)
  one.add(RECORD, dataclasses.replace(RECORD, trial=1))
  two.note('started')
  assert len(two.records) == 2 and not one.notes
  with path.open('ab') as file:
    file.write(b'{"kind": "exam')                  # as a kill leaves it
  with one.locked():
    assert one.notes == two.notes
  two.add(dataclasses.replace(RECORD, example=4))
  one.close()
  two.close()
  again = open_journal(path)
  assert again.records == two.records and len(again.records) == 3
  assert again.counts == two.counts == {'k': 3}
  again.close()


def test_rows_of_another_sweep_are_refused(tmp_path, rows):
  path = tmp_path / 'results.jsonl'
  journal_lib.check_rows(path, CONFIGURATION)
  results.write_rows(path, rows)
  with pytest.raises(ValueError, match='another configuration'):
    journal_lib.check_rows(path, CONFIGURATION)
  ours = dataclasses.replace(
      rows[0], sweep=results.content_key(CONFIGURATION))
  results.write_rows(path, [ours])
  journal_lib.check_rows(path, CONFIGURATION)


def test_scores_of_another_sweep_are_refused(tmp_path):
  path = tmp_path / 'scores.jsonl'
  fakesweep.leave(tmp_path)
  measured.check(path, dict(made='up'))
  with pytest.raises(ValueError, match='scores.jsonl belongs to another conf'):
    measured.check(path, CONFIGURATION)
  for other in ('', 'no JSON', '[1]\n'):     # none of a sweep's
    path.write_text(other)
    measured.check(path, CONFIGURATION)
  measured.check(tmp_path / 'absent', CONFIGURATION)


def test_the_documentation_lists_every_column():
  path = pathlib.Path(__file__).resolve().parents[2] / 'docs' / 'sweep.md'
  table = path.read_text(encoding='utf-8').split('## Columns')[1]
  for field in dataclasses.fields(results.Row):
    mark = 'm' if field.metadata['measured'] else ''
    want = (f'| `{field.name}` | {mark} | {field.metadata["unit"]} | '
            f'{field.metadata["doc"]} |')
    assert want in table, want


def test_a_rule_of_ones_own_is_known_by_its_file(tmp_path, monkeypatch):
  path = tmp_path / 'own_rules.py'
  path.write_text('class Own:\n  pass\n')
  monkeypatch.syspath_prepend(str(tmp_path))
  own = importlib.import_module('own_rules').Own
  typed = type('Typed', (), {'__module__': '__main__.notebook'})
  before = results.rules_digest([targets.Chow, own, typed])
  assert list(before) == ['own_rules']
  path.write_text('class Own:\n  threshold = 1\n')
  assert results.rules_digest([own]) != before
  assert results.rules_digest([targets.Chow]) == {}
