"""Which sweeps join other processes that only the environment names."""
import sys

import gin
import pytest

import processes

sys.path.insert(0, str(processes.ROOT / 'scripts'))
import _cli  # noqa: E402
import sweep as script  # noqa: E402


@pytest.mark.parametrize('files,joined', [
    ([], True), (['gin/executors/mesh.gin'], True),
    (['gin/executors/ray.gin'], False)])
def test_a_driver_does_not_join_the_processes_of_its_slice(
    monkeypatch, files, joined):
  called = []
  monkeypatch.setattr(_cli, 'join', lambda flags, **how: called.append(how))
  monkeypatch.setattr(script, 'measure', lambda *job, profile: [])
  args = [f'--gin_file={x}' for x in ['gin/sweeps/quickstart.gin', *files]]
  try:
    script.main(args)
    assert bool(called) == joined
    called.clear()
    script.main([*args, '--coordinator=auto'])         # who asks for it gets it
    assert called
  finally:
    gin.clear_config()
