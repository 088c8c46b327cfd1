"""A whole build from handwritten sources, and the command line."""

import bz2
import json
import pathlib
import subprocess
import sys

import polib
import pytest

from spec_cascades.data import corpus
from spec_cascades.data import debian
from spec_cascades.data import split

ROOT = pathlib.Path(__file__).resolve().parents[2]
HELP = 'packages/{}/usr/share/libreoffice/help/{}/text/swriter/{}.html'
WORDS = 'editor viewer player parser compiler server client game'.split()
KINDS = 'small large fast simple modular portable'.split()


def write_sources(cache):
  """Puts indices and help pages where a finished download leaves them."""
  stanzas = {'en': [], 'de': [], 'packages': []}
  for i in range(240):
    suffix = chr(97 + i % 26) + chr(97 + i // 26)
    name = f'{KINDS[i % 6]}-{WORDS[i % 8]}-{suffix}'
    head = f'Package: {name}\nDescription-md5: {i:032x}\n'
    en = f'{KINDS[i % 6]} {WORDS[i % 8]} named {name}'
    de = f'{WORDS[i % 8]} mit dem Namen {name}'
    body = f'This program is the {en} ' + 'and it is good ' * 6
    stanzas['en'].append(f'{head}Description-en: {en}\n {body}.\n')
    stanzas['de'].append(f'{head}Description-de: {de}\n Das ist gut.\n')
    stanzas['packages'].append(f'Package: {name}\n')
  lists = cache / 'apt' / 'lists'
  lists.mkdir(parents=True)
  for name, file in (
      ('en', 'a_Translation-en'),
      ('de', 'a_Translation-de'),
      ('packages', 'a_Packages'),
  ):
    (lists / file).write_text('\n'.join(stanzas[name]), encoding='utf-8')
  for i in range(40):
    for package, language, text in (
        ('libreoffice-help-en-us', 'en-US', f'Opens the window {i} now.'),
        ('libreoffice-help-de', 'de', f'Öffnet jetzt das Fenster {i}.'),
    ):
      path = cache / HELP.format(package, language, i)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(f'<p id="par_id{i}">{text}</p>', encoding='utf-8')
  for package in corpus.DEBIAN_DOCS.packages:
    (cache / 'packages' / package).mkdir(parents=True, exist_ok=True)
  write_messages(cache)
  keys = {'en': 'Press any key.', 'de': 'Eine Taste drücken.'}
  for language, text in keys.items():
    page = (
        cache / 'packages' / f'gimp-help-{language}' / 'usr' / 'share' / 'gimp'
        / '2.0' / 'help' / language / 'keys.html'
    )  # fmt: skip
    page.parent.mkdir(parents=True)
    page.write_text(f'<h1>GIMP</h1><p>{text}</p>', encoding='utf-8')
  handbook = {'en': 'Type the next word.', 'de': 'Das nächste Wort tippen.'}
  for language, text in handbook.items():
    folder = cache / 'packages/kturtle/usr/share/doc/HTML' / language / 'turtle'
    folder.mkdir(parents=True)
    page = f'<FILENAME filename="index.html"><p>{text}</p>'
    (folder / 'index.cache.bz2').write_bytes(bz2.compress(page.encode()))


def write_messages(cache):
  """A catalogue, with a text that the descriptions have, too."""
  catalogue = polib.POFile()
  texts = {'_Close all windows': 'Alle Fenster _schließen'}
  for i in range(240):
    text = f'This program is the editor named {chr(97 + i % 26)}'
    texts[text] = f'Das ist der Editor {chr(97 + i % 26)} hier'
  for en, de in texts.items():
    catalogue.append(polib.POEntry(msgid=en, msgstr=de))
  folder = cache / 'packages' / 'git' / 'usr' / 'share' / 'locale' / 'de'
  (folder / 'LC_MESSAGES').mkdir(parents=True)
  catalogue.save_as_mofile(str(folder / 'LC_MESSAGES' / 'git.mo'))


@pytest.fixture(name='cache')
def _cache(tmp_path):
  write_sources(tmp_path)
  return tmp_path


@pytest.mark.parametrize('name', list(corpus.CORPORA))
def test_build_writes_marked_rows(cache, name):
  summary = corpus.build(name, cache_dir=cache)
  chosen = corpus.find(name)
  for split_name, counts in summary['splits'].items():
    rows = list(corpus.read(name, split_name, cache))
    assert len(rows) == counts['rows'] > 0
    assert len({x['id'] for x in rows}) == len(rows)
    for row in rows:
      assert set(row) == {
          'id', 'origin', 'group', 'similarity', 'near_duplicate',
          chosen.source, chosen.target,
      }  # fmt: skip
    marked = sum(x['near_duplicate'] for x in rows)
    assert counts.get('near_duplicates', 0) == marked
  saved = (corpus.corpus_dir(name, cache) / 'summary.json').read_text()
  assert json.loads(saved) == summary


def test_more_text_is_for_training_and_far_from_validation_and_test(cache):
  corpus.build('debian_docs', cache_dir=cache)  # Builds debian_ende first.
  rows = list(corpus.read('debian_docs', 'train', cache))
  assert {x['group'] for x in rows} == {
      'gettext/git', 'gimp_help/keys', 'kde_handbooks/turtle/index',
  }  # fmt: skip
  texts = {x['en']: x['de'] for x in rows}
  assert texts['Close all windows'] == 'Alle Fenster schließen'
  assert texts['Press any key.'] == 'Eine Taste drücken.'
  assert texts['Type the next word.'] == 'Das nächste Wort tippen.'
  held = split.ShingleIndex([
      x['en']
      for name in ('validation', 'test')
      for x in corpus.read('debian_ende', name, cache)
  ])
  assert max(held.nearest(x)[0] for x in texts) < 0.5
  with pytest.raises(debian.SourceError, match='test.jsonl does not exist'):
    next(corpus.read('debian_docs', 'test', cache))


def test_build_is_deterministic(cache):
  def read():
    corpus.build('debian_ende', cache_dir=cache)
    files = corpus.corpus_dir('debian_ende', cache).glob('*')
    return {x.name: x.read_bytes() for x in files}

  assert read() == read()


def test_help_window_numbers_are_one_template(cache):
  """'Window 1' and 'window 2' have one fingerprint, so all stay in train."""
  corpus.build('debian_ende', cache_dir=cache)
  origins = {
      x['origin'] for x in corpus.read('debian_ende', 'test', cache)
  }
  assert origins == {'descriptions'}


def test_unbuilt_corpus_says_how_to_build(tmp_path):
  with pytest.raises(debian.SourceError, match='build_corpus.py'):
    next(corpus.read('debian_ende', 'train', tmp_path))


def _run(script, *args, path=None):
  env = None if path is None else {'PATH': str(path)}
  return subprocess.run(
      [sys.executable, ROOT / 'scripts' / script, *args],
      capture_output=True, text=True, check=False, env=env,
  )  # fmt: skip


@pytest.mark.parametrize(
    'script, args, reason',
    [
        ('build_corpus.py', ['--corpora', 'wmt'], "Unknown corpus 'wmt'"),
        ('build_corpus.py', [], 'apt-get and dpkg not found'),
        ('train_vocabulary.py', ['--corpora', 'wmt'], "Unknown corpus 'wmt'"),
        ('train_vocabulary.py', [], 'build the corpus first'),
    ],
)
def test_scripts_say_what_is_wrong_in_one_line(tmp_path, script, args, reason):
  done = _run(script, *args, f'--cache_dir={tmp_path}', path=tmp_path)
  assert done.returncode == 2
  assert reason in done.stderr and len(done.stderr.splitlines()) == 1


def test_scripts_build_and_train(cache):
  done = _run('build_corpus.py', '--skip_tfds', f'--cache_dir={cache}')
  assert done.returncode == 0, done.stderr
  done = _run(
      'train_vocabulary.py', '--vocab_size=350', f'--cache_dir={cache}'
  )
  assert done.returncode == 0, done.stderr
  assert (cache / 'vocab' / 'debian_ende_350.model').is_file()
  assert 'validation de:' in done.stdout
  small = _run('train_vocabulary.py', '--vocab_size=9', f'--cache_dir={cache}')
  assert small.returncode == 2 and 'Got vocab_size 9' in small.stderr
  large = _run(
      'train_vocabulary.py', '--vocab_size=90000', f'--cache_dir={cache}'
  )
  assert large.returncode == 2 and len(large.stderr.splitlines()) == 1
