"""Examples have any number of references; digests cover them all."""
import hashlib
import json

from spec_cascades.evaluation import examples

PINNED = 'd20721ad275e2e4d'


def test_the_digest_of_single_references_is_as_ever():
  found = examples.read(limit=3)
  texts = [[x.id, x.source, x.reference] for x in found]
  want = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
  assert examples.digest(found) == want
  assert examples.digest(examples.read()).startswith(PINNED)


def test_the_digest_covers_every_reference_and_their_order():
  make = lambda *references: examples.digest([
      examples.Example(0, 'a', 'b', references)])
  found = {make(), make(''), make('c'), make('c', 'd'), make('d', 'c')}
  assert len(found) == 5


def test_the_first_reference_stands_for_all():
  assert examples.Example(0, 'a', 'b', ('c', 'd')).reference == 'c'
  assert examples.Example(0, 'a', 'b', ()).reference == ''


def test_a_table_may_begin_with_the_mark_that_windows_writes(tmp_path):
  path = tmp_path / 'own.tsv'
  path.write_text('id\ten\tde\na\tOpen.\tAuf.\n', encoding='utf-8-sig')
  found, = examples.read(path)
  assert (found.id, found.source, found.references) == (
      'a', 'Open.', ('Auf.',))
