"""A pair of random T5s, made once."""
import pytest
import tinypair


@pytest.fixture(scope='session')
def pair_dir(tmp_path_factory):
  return tinypair.make(tmp_path_factory.mktemp('pair'))
