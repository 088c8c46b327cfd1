"""What the scripts that make trees and count tables refuse."""
import cli_test


def test_shape_tree_refuses(tmp_path):
  folder, costs = str(tmp_path), str(tmp_path / 'costs.json')
  good = [folder, costs, '--gin_file=gin/sweeps/quickstart.gin']
  cli_test.check('shape_tree', [
      ([], 'required'), ([folder, costs], '--gin_file'),
      ([*good, '--ranks', '0'], '--ranks 0'),
      ([*good, '--output', __file__], 'give a folder'),
      ([*good, '--max_nodes', '1'], '--max_nodes 1'), (good, 'costs.json')])


def test_count_table_refuses(tmp_path):
  path = str(tmp_path / 'table.npz')
  cli_test.check('count_table', [
      ([], 'required'), (['--gin_file=gin/train/drafter.gin'], '--output'),
      (['--gin_file=none.gin', '--output', path], 'No gin file none.gin'),
      (['--gin_file=gin/train/drafter.gin', '--output', path, '--order', '0'],
       '--order 0')])
