"""A pair of random T5s, made once; a cloud that is played."""
import pathlib
import shutil
import subprocess
import sys

import pytest
import tinypair

FAKE = pathlib.Path(__file__).with_name('fakecloud.py')
ROOT = FAKE.parents[2]


@pytest.fixture(scope='session')
def pair_dir(tmp_path_factory):
  return tinypair.make(tmp_path_factory.mktemp('pair'))


@pytest.fixture(scope='session')
def checkout(tmp_path_factory):
  """A commit without the models, whose 116 MB take seconds to pack each time.

  It has what the launcher looks for before it asks for anything.
  """
  place = tmp_path_factory.mktemp('checkout')
  shutil.copytree(ROOT / 'gin', place / 'gin')
  shutil.copytree(ROOT / 'configs', place / 'configs')
  for args in (['init', '-q'], ['add', '.'], [
      '-c', 'user.name=a', '-c', 'user.email=a@b.c', 'commit', '-qm', 'All']):
    subprocess.run(['git', '-C', place, *args], check=True)
  return place


@pytest.fixture
def world(tmp_path, monkeypatch, checkout):
  """Folder of a fake gcloud, the only one on the path."""
  monkeypatch.setattr(sys.modules['_cli'], 'ROOT', checkout)
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
