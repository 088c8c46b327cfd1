"""The list of slow tests names tests that there are."""
import pathlib

from tests.conftest import LONG

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_each_is_there():
  assert LONG
  for line in LONG:
    path, *_, name = line.split('[')[0].split('::')
    assert f'def {name}(' in (ROOT / path).read_text(encoding='utf-8'), line
