"""A pair of random T5s, made once; a cloud that is played."""
import pathlib
import shutil
import sys

import pytest
import tinypair

FAKE = pathlib.Path(__file__).with_name('fakecloud.py')


@pytest.fixture(scope='session')
def pair_dir(tmp_path_factory):
  return tinypair.make(tmp_path_factory.mktemp('pair'))


@pytest.fixture
def world(tmp_path, monkeypatch):
  """Folder of a fake gcloud, the only one on the path."""
  place = tmp_path / 'world'
  (place / 'bin').mkdir(parents=True)
  program = place / 'bin' / 'gcloud'
  program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE} "$@"\n')
  program.chmod(0o755)
  (place / 'bin' / 'git').symlink_to(shutil.which('git'))
  monkeypatch.setenv('PATH', str(program.parent))
  monkeypatch.setenv('FAKECLOUD', str(place))
  monkeypatch.chdir(tmp_path)
  return place
