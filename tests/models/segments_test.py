"""Positions and masks of texts that share a row, by hand."""
import jax.numpy as jnp
import numpy as np

from spec_cascades.models import segments

INPUTS = jnp.array([[5, 6, 7, 8, 9, 0], [3, 0, 0, 0, 0, 0]])
SOURCES = jnp.array([[1, 1, 1, 2, 2, 0], [1, 0, 0, 0, 0, 0]])
TARGETS = jnp.array([[11, 12, 13, 14, 15], [16, 17, 0, 0, 0]])
OWNERS = jnp.array([[1, 1, 2, 2, 2], [1, 1, 0, 0, 0]])


def test_positions_begin_anew_in_each_text():
  np.testing.assert_array_equal(segments.positions(OWNERS)[0], [0, 1, 0, 1, 2])
  np.testing.assert_array_equal(segments.positions(SOURCES)[:, :5],
                                [[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]])


def test_each_text_is_moved_right_by_itself():
  np.testing.assert_array_equal(segments.shifted(TARGETS, OWNERS),
                                [[0, 11, 0, 13, 14], [0, 16, 0, 0, 0]])


def test_a_query_sees_its_own_text():
  seen = segments.same(OWNERS, SOURCES)
  np.testing.assert_array_equal(seen[0, 0], [1, 1, 1, 0, 0, 0])
  np.testing.assert_array_equal(seen[0, 3], [0, 0, 0, 1, 1, 0])
  np.testing.assert_array_equal(seen[1, 1], [1, 0, 0, 0, 0, 0])


def test_targets_go_on_from_their_own_input():
  tokens, owner, position, at = segments.joined(
      INPUTS, SOURCES, TARGETS, OWNERS)
  np.testing.assert_array_equal(
      tokens[0], [5, 6, 7, 8, 9, 0, 11, 12, 13, 14, 15])
  np.testing.assert_array_equal(owner[0], [1, 1, 1, 2, 2, 0, 1, 1, 2, 2, 2])
  np.testing.assert_array_equal(
      position[0], [0, 1, 2, 0, 1, 0, 3, 4, 2, 3, 4])
  np.testing.assert_array_equal(at[0], [2, 6, 4, 8, 9])
  np.testing.assert_array_equal(at[1, :2], [0, 6])
