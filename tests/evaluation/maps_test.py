"""A process that runs out of memory maps says so, rather than to crash."""
import pathlib

import pytest

from spec_cascades.evaluation import maps, programs


def proc(folder, used, most):
  for name, text in (('self/maps', 'a map\n' * used),
                     ('sys/vm/max_map_count', f'{most}\n')):
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(text)
  return folder


def test_there_is_room_up_to_a_tenth_below_the_limit(tmp_path):
  maps.check(proc(tmp_path, 90, 100))


def test_beyond_it_one_line_says_what_to_do(tmp_path):
  with pytest.raises(RuntimeError, match=(
      'No room for one more program: 91 of the 100 memory maps .* '
      'sysctl -w vm.max_map_count=400$')) as found:
    maps.check(proc(tmp_path, 91, 100))
  assert '\n' not in str(found.value)


def test_elsewhere_nothing_is_asked(tmp_path):
  maps.check(tmp_path)


@pytest.mark.skipif(not pathlib.Path('/proc/self/maps').is_file(),
                    reason='needs Linux')
def test_this_process_has_some_left():
  maps.check()


def test_it_comes_before_compilation(monkeypatch):
  def full():
    raise RuntimeError('No room')
  made = programs.Programs(None, ())
  monkeypatch.setattr(maps, 'check', full)
  monkeypatch.setattr(made, '_args', lambda *args: pytest.fail('compiles'))
  with pytest.raises(RuntimeError, match='No room'):
    made.ahead(None, None, None, None)
