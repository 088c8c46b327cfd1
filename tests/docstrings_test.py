"""Examples in docstrings give what they show."""
import doctest
import importlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODULES = sorted(
    '.'.join(path.relative_to(ROOT).with_suffix('').parts)
    for path in (ROOT / 'spec_cascades').rglob('*.py')
    if '>>> ' in path.read_text(encoding='utf-8'))


@pytest.mark.parametrize('name', MODULES)
def test_examples_hold(name):
  failed, tried = doctest.testmod(importlib.import_module(name))
  assert tried and not failed


def test_there_are_examples():
  assert MODULES
