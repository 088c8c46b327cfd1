"""Bad input to scripts: one line, exit code 2, nothing compiled or written."""
import errno
import io
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'scripts'))
import _cli  # noqa: E402
import decode as decode_script  # noqa: E402

GEMMA = ROOT / 'spec_cascades/assets/debian_gemma/drafter'
QUICKSTART = 'gin/sweeps/quickstart.gin'
# Many command lines in one process, since starting one takes seconds.
DRIVER = """
import contextlib, io, json, sys
sys.path.insert(0, 'scripts')
import _cli
import SCRIPT as script
from spec_cascades.evaluation import timing
found = []
for args in json.load(sys.stdin):
  sys.argv = ['SCRIPT.py', *args]
  out, err, code = io.StringIO(), io.StringIO(), 0
  with timing.CompileLog() as log, contextlib.redirect_stderr(err):
    with contextlib.redirect_stdout(out):
      try:
        _cli.run(script.main)
      except SystemExit as stop:
        code = stop.code
  found.append([code, err.getvalue(), out.getvalue(), log.programs])
print(json.dumps(found))
"""


def drive(script, commands):
  done = subprocess.run(
      [sys.executable, '-c', DRIVER.replace('SCRIPT', script)], cwd=ROOT,
      input=json.dumps(commands), capture_output=True, text=True, check=True)
  return json.loads(done.stdout.splitlines()[-1])


def check(script, cases):
  results = drive(script, [args for args, _ in cases])
  for (args, what), (code, err, out, programs) in zip(cases, results):
    assert code == 2, (args, err, out)
    assert err.startswith(f'{script}.py: '), (args, err)
    assert err.count('\n') == 1, (args, err)
    assert what in err, (args, err)
    assert 'In call to' not in err, (args, err)       # gin's
    assert out == '' and programs == 0, (args, out)


@pytest.fixture(scope='module')
def broken(pair_dir, tmp_path_factory):
  """A verifier whose weights were cut off."""
  copy = tmp_path_factory.mktemp('broken')
  for path in (pair_dir / 'verifier').iterdir():
    content = path.read_bytes()
    short = path.name == 'model.safetensors'
    (copy / path.name).write_bytes(content[:-100] if short else content)
  return copy


def test_sweep_refuses(pair_dir, broken, tmp_path):
  foreign = tmp_path / 'foreign'
  foreign.mkdir()
  latin = str(tmp_path / 'latin.tsv')
  pathlib.Path(latin).write_bytes(b'id\ten\tde\ncaf\xe9')
  (foreign / 'results.jsonl').write_text('{"schema": 1}\n')
  out = tmp_path / 'out'

  def sweep(*extra, verifier='verifier', drafter='drafter', out=out):
    return [f'--gin_file={QUICKSTART}', f'--gin.OUTPUT_DIR={out}',
            f'--gin.sweep.Sweep.verifier={pair_dir / verifier}',
            f'--gin.sweep.Sweep.drafter={pair_dir / drafter}',
            '--gin.EXAMPLES=2', '--gin.BUCKETS=((80, 20),)', *extra]

  check('sweep', [
      ([], '--gin_file'), (['--gin_file=gin/nope.gin'], 'No gin file gin/nope'),
      (sweep('--gin.OUTPT_DIR=x'), "Unknown gin name 'OUTPT_DIR'"),
      (sweep('--gin.sweep.Sweep.gama=3'), "'gama'"),
      (sweep('--gin.sweeps.Sweep.gamma=3'), "'sweeps.Sweep'"),
      (sweep('--gin.chow/points.Curve.rule=@targets.Nope'), '@targets.Nope'),
      (sweep('--gamma=3'), "'--gamma=3'"),
      (sweep('--gin.GAMMA=0'), 'allowed: 1 to 1024'),
      (sweep('--gin.GAMMA=100000'), 'allowed: 1 to 1024'),
      (sweep('--gin.chwo/points.Curve.alphas=(.3,)'),
       "Unknown scope 'chwo'; the files have: chow, diff"),
      (sweep('--gin.sweep.Sweep.curves=[@lossles/points.Curve()]'),
       "Unknown scope 'lossles'"),
      (sweep(f'--gin.sweep.Sweep.data={latin}'), 'latin.tsv is not UTF-8'),
      (['--gin_file', latin], 'latin.tsv is no gin file: it is not UTF-8'),
      (sweep('--gin.lossless/points.Curve.drafter=counts:' + latin),
       'a table of counts: it is no archive'),
      (sweep('--gin.GAMMA=many'), "gamma='many'"),
      (sweep('--gin.chow/points.Curve.alphas=0.3'), 'alphas=0.3; allowed'),
      (sweep('--gin.sweep.Sweep.top_k=2.5'), 'top_k=2.5'),
      (sweep('--gin.EXAMPLES=2.5'), 'examples=2.5'),
      (sweep('--gin.OUTPUT_DIR=5'), 'output_dir=5'),
      (sweep('--gin.OUTPUT_DIR=gs://b/x'), 'allowed: a path. Mount the bucket'),
      (sweep('--gin.chow/points.Curve.alphas=(7.0,)'), 'alpha of Chow is 7.0'),
      (sweep('--gin.TOP_P=0.0'), 'top_p'),
      (sweep('--gin.SEED=-1'), 'seed is -1'),
      (sweep(f'--gin.SEED={2**63}'), f'seed is {2**63}; allowed'),
      (sweep('--gin.EXAMPLES=0'), 'Got examples=0'),
      (sweep('--gin.sweep.Sweep.curves=@lossless/points.Curve()'),
       'allowed: a list of curves'),
      (sweep('--gin.lossless/points.Curve.rule=@points.Curve'),
       'Curve, which has no uses_q'),
      (sweep('--gin.BUCKETS=((6, 20),)'), 'add one to BUCKETS'),
      (sweep('--gin.BUCKETS=7'), 'Got the bucket 7; allowed: one or more'),
      (sweep('--gin.BUCKETS=()'), 'Got the bucket (); allowed: one or more'),
      (sweep('--gin.BUCKETS=(48, 72)'), 'Got the bucket 48; allowed'),
      (sweep('--gin.TOP_P=most'), "top_p='most'; allowed: a number"),
      (sweep('--gin.sweep.Sweep.verifier=5'), 'verifier=5; allowed: a path'),
      (sweep(verifier='nowhere'), 'No checkpoint at'),
      (sweep(verifier=broken), 'cut off'),
      (['--gin_file=gin/sweeps/decoder_only.gin'], 'VERIFIER must be set'),
      (sweep('--gin_file=gin/executors/ray.gin', f'--profile={foreign}',
             verifier='nowhere'), 'Got --profile and workers of Ray'),
      (sweep(f'--profile={foreign}/results.jsonl', verifier='nowhere'),
       'No trace can be written to'),
      (sweep(out=foreign), 'results.jsonl, line 1'),
      (sweep(out=foreign / 'results.jsonl'), 'results.jsonl is no directory')])
  assert not out.exists()
  assert [p.name for p in foreign.iterdir()] == ['results.jsonl']
  assert (foreign / 'results.jsonl').read_text() == '{"schema": 1}\n'


def test_decode_refuses(pair_dir, broken, tmp_path):
  empty = tmp_path / 'empty.txt'
  empty.write_text('\n  \n')
  (tmp_path / 'latin.txt').write_bytes(b'caf\xe9')

  def decode(*extra, text='Hello.', verifier='verifier'):
    return [text, '--verifier', str(pair_dir / verifier), '--drafter_dir',
            str(pair_dir / 'drafter'), *extra]

  check('decode', [
      (decode(text=' '), 'The input is empty'),
      (['Hello.', '--drafter_dir', str(GEMMA)], 'a decoder alone, which'),
      (['--file', os.devnull], 'The input is empty'),
      (['--file', str(empty)], 'The input is empty'),
      (['--file', str(tmp_path / 'none')], 'none; give one with a text on'),
      (['--file', str(tmp_path)], 'No file at'),
      (['--file', str(tmp_path / 'latin.txt')], 'latin.txt is not UTF-8; give'),
      (decode('--file', str(empty)), 'give one of them'),
      (decode('--rule', 'Magic'), "'Magic'; allowed: Lossless"),
      (decode('--rule', 'Chow', '--alpha', '4'), 'alpha of Chow is 4.0'),
      (decode('--alpha', '0.1'), 'Lossless takes no alpha'),
      (decode('--gamma', '0'), 'allowed: 1 to 1024'),
      (decode('--gamma', '100000'), 'allowed: 1 to 1024'),
      (decode('--max_length', '1000000'), 'max_length is 1000000; allowed'),
      (decode('--drafter', 'eagle'), 'assets/debian_ende/parts'),
      (decode('--drafter', 'typical:x', '--rule', 'TokenV3'),
       'TokenV3 would change nothing'),
      (decode('--gamma', 'x'), "'x'"), (decode('--colour'), '--colour'),
      (decode('--drafter', 'oracle'), "'oracle'; allowed: null"),
      (decode('--drafter', 'ngram', '--rule', 'OPT'), 'OPT reads'),
      (decode('--temperature', '-1'), 'temperature'),
      (decode('--seed', str(2**63)), f'seed is {2**63}; allowed'),
      (decode('--top_p', '0'), 'top_p'), (decode('--top_k', '-2'), 'top_k'),
      (decode(text='many words ' * 99), 'takes at most 128'),
      (decode('--max_input_length', '2'), 'takes at most 2'),
      (decode('--dtype', 'float16'), "'float16'; allowed: float32, bfloat16"),
      (decode(verifier='nowhere'), 'No checkpoint at'),
      (decode(verifier=broken), 'cut off'),
      (decode('--profile', str(empty), verifier='nowhere'), 'No trace can be'),
      (decode('--profile', str(empty / 'in')), 'No trace can be written to')])


def test_build_corpus_refuses_a_name_before_it_builds_another(tmp_path):
  check('build_corpus', [
      (['--corpora=debian_docs,typo', f'--cache_dir={tmp_path / "cache"}'],
       "Unknown corpus 'typo'; choose")])
  assert not (tmp_path / 'cache').exists()


def test_a_drafter_that_is_not_needed_is_not_read(pair_dir):
  """The shipped one has another vocabulary."""
  own = ['Hi.', '--verifier', str(pair_dir / 'verifier'), '--max_length', '4']
  null, ngram = drive('decode', [
      [*own, '--drafter', 'null'], [*own, '--drafter', 'ngram']])
  assert null[0] == ngram[0] == 0, (null, ngram)
  assert null[2] == ngram[2] != '\n'
  check('decode', [(own, 'vocabularies of')])


def test_a_script_exits_with_two():
  done = subprocess.run(
      [sys.executable, 'scripts/sweep.py', '--gin_file=gin/nope.gin'], cwd=ROOT,
      capture_output=True, text=True)
  assert done.returncode == 2 and done.stdout == ''
  assert done.stderr.count('\n') == 1


@pytest.mark.parametrize('error,code', [
    (ValueError('x'), 2), (FileNotFoundError(errno.ENOENT, 'x'), 2),
    (FileExistsError(errno.EEXIST, 'File exists', 'a/b'), 2),
    (PermissionError(errno.EACCES, 'x'), 2), (OSError('x'), 2),
    (UnicodeDecodeError('utf-8', b'x', 0, 1, 'x'), 2),
    (OSError(errno.ENOSPC, 'x'), 3), (OSError(errno.EIO, 'x'), 3),
    (ConnectionError('x'), 3), (TimeoutError('x'), 3),
    (ChildProcessError('x'), 3)])
def test_what_may_pass_is_no_bad_input(error, code, monkeypatch, capsys):
  def main(args):
    raise error
  monkeypatch.setattr(sys, 'argv', ['a.py'])
  with pytest.raises(SystemExit) as stop:
    _cli.run(main)
  assert stop.value.code == code
  named = isinstance(error, FileExistsError)
  assert capsys.readouterr().err == 'a.py: {}\n'.format(
      'a/b: file exists; check the path.' if named else error)


@pytest.mark.parametrize('error', [
    MemoryError('Unable to allocate 9 TiB'),
    RuntimeError('RESOURCE_EXHAUSTED: Out of memory\nallocating 9 bytes')])
def test_what_does_not_fit_in_memory_is_one_line(error, monkeypatch, capsys):
  def main(args):
    raise error
  monkeypatch.setattr(sys, 'argv', ['a.py'])
  with pytest.raises(SystemExit) as stop:
    _cli.run(main)
  said = capsys.readouterr().err
  assert stop.value.code == 2 and said.count('\n') == 1
  assert said.startswith('a.py: out of memory: ') and 'take a smaller' in said


def test_a_gin_file_of_another_folder_logs_nothing(tmp_path):
  done = subprocess.run(
      [sys.executable, ROOT / 'scripts/sweep.py', f'--gin_file={QUICKSTART}',
       '--gin.GAMMA=0'], cwd=tmp_path, capture_output=True, text=True)
  assert done.returncode == 2 and done.stderr.count('\n') == 1, done.stderr


def test_a_type_error_is_gins_until_the_call_has_begun():
  gin = pytest.importorskip('gin')

  @gin.register(module='cli_test')
  def begun(needed):
    return needed + 'text'

  with gin.unlock_config(), pytest.raises(ValueError, match='^gin: .*needed'):
    _cli.call(begun)
  with gin.unlock_config():
    gin.parse_config('cli_test.begun.needed = 1')
  with pytest.raises(TypeError, match='unsupported operand'):
    _cli.call(begun)
  gin.clear_config()


def test_an_output_that_cannot_be_is_refused_before_any_work(tmp_path):
  file = tmp_path / 'file'
  file.write_text('')
  assert _cli.directory(tmp_path / 'a' / 'b') == tmp_path / 'a' / 'b'
  assert list(tmp_path.iterdir()) == [file]            # none is made yet
  check('build_datastore', [
      (['--file', str(file), '--output', str(file / 'in'),
        '--verifier=nowhere'], 'is no directory and can')])
  own = '--gin_file=gin/train/drafter.gin'
  check('count_table', [
      ([own, '--output', str(file / 'in')], 'is no directory and can'),
      ([own, '--output', str(tmp_path)], 'a directory; give a file')])


def test_a_text_ends_where_a_line_does_and_nowhere_else(tmp_path, monkeypatch):
  """Not at what Unicode counts as a line's end, too."""
  path = tmp_path / 'texts.txt'
  odd = 'a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i'
  read = lambda *args: decode_script._texts(decode_script._flags(args))
  for content, want in (
      (odd, [odd]), (f'{odd}\n', [odd]), (f'{odd}\n\n', [odd, '']),
      (f'\r\n{odd}\r\n{odd}', ['', odd, odd])):
    path.write_bytes(content.encode())
    assert read('--file', str(path)) == _cli.lines(str(path)) == want
    monkeypatch.setattr(sys, 'stdin', io.StringIO(content))
    assert read() == want
  path.write_bytes(b'')
  assert _cli.lines(str(path)) == []
  path.write_bytes('\ufeffOpen it.\n\ufeff'.encode())  # a mark is first or none
  assert _cli.lines(str(path)) == ['Open it.', '\ufeff']


def test_a_text_that_is_not_utf8_is_refused(monkeypatch):
  """Bytes reach Python as surrogates, or an error where it is strict."""
  read = lambda *args: decode_script._texts(decode_script._flags(args))
  strict = io.TextIOWrapper(io.BytesIO(b'caf\xe9\n'), 'utf-8')
  lenient = io.TextIOWrapper(io.BytesIO(b'caf\xe9\n'), 'utf-8',
                             errors='surrogateescape')
  for stdin in (strict, lenient):
    monkeypatch.setattr(sys, 'stdin', stdin)
    with pytest.raises(ValueError, match='a text that is not UTF-8; give one'):
      read()
  with pytest.raises(ValueError, match='a text that is not UTF-8; give one'):
    read('caf\udce9')
  assert read('caf\u00e9') == ['caf\u00e9']


def test_decode_prints_the_same_traced_or_not(pair_dir, tmp_path):
  path = tmp_path / 'texts.txt'
  path.write_text('Open the file.\n\nSave it.\n')
  models = ['--verifier', str(pair_dir / 'verifier'), '--drafter_dir',
            str(pair_dir / 'drafter'), '--max_length', '12', '--temperature',
            '1', '--rule', 'TokenV3', '--alpha', '0.4', '--gamma', '2']
  plain, traced, again = drive('decode', [
      ['--file', str(path), *models],
      ['Open the file.', '--trace', *models], ['Open the file.', *models]])
  assert plain[0] == traced[0] == again[0] == 0, (plain, traced)
  lines = plain[2].split('\n')
  assert [bool(line) for line in lines] == [True, False, True, False]
  legend, *rounds, text = traced[2].rstrip('\n').split('\n')
  assert text + '\n' == again[2] and text == lines[0]
  assert '+draft accepted' in legend and '\x1b' not in traced[2]
  assert [int(line.split()[0]) for line in rounds] == list(
      range(1, len(rounds) + 1))
  assert again[3] == 0                       # nothing is compiled twice
