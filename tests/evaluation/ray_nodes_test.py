"""Which nodes of a Ray cluster a worker takes; on a made-up Ray."""
import types

import pytest

from spec_cascades.evaluation import crew
from spec_cascades.evaluation import executors
from spec_cascades.evaluation import ray_cluster


def node(name, slice_name=None, host=None, alive=True, **resources):
  labels = {} if slice_name is None else {
      ray_cluster.SLICE: slice_name, ray_cluster.HOST: str(host)}
  return dict(NodeID=name, Labels=labels, Alive=alive,
              Resources={'CPU': 2., 'node:1': 1., **resources})


class Actor:
  """One of its own, as Ray's are."""

  def __init__(self, where):
    self.where = where


def where(worker):
  return tuple(actor.where for actor in worker)


def cluster(monkeypatch, nodes, **settings):
  """A `Cluster` whose actors know the node that they are on."""
  def actor(cls):
    del cls
    at = lambda node: types.SimpleNamespace(remote=lambda: Actor(node))
    return types.SimpleNamespace(
        options=lambda scheduling_strategy: at(scheduling_strategy),
        remote=lambda: Actor(None))
  bound = lambda name, soft: name if not soft else None
  fake = types.SimpleNamespace(
      nodes=lambda: nodes, remote=lambda **how: actor, put=lambda job: job,
      kill=lambda actor: None, util=types.SimpleNamespace(
          scheduling_strategies=types.SimpleNamespace(
              NodeAffinitySchedulingStrategy=bound)))
  monkeypatch.setattr(ray_cluster, 'connect', lambda settings: fake)
  return ray_cluster.Cluster(executors.Ray(address='auto', **settings))


def test_workers_of_hosts_go_where_there_is_room(monkeypatch):
  nodes = [node('a1', 'a', 1, CPU=1.), node('a0', 'a', 0, CPU=9.),
           node('b0', 'b', 0, CPU=3.), node('b1', 'b', 1, CPU=3.),
           node('c0', 'c', 0), node('head'), node('d0', 'd', 0),
           node('d1', 'd', 1, alive=False)]
  found = cluster(monkeypatch, nodes, num_workers=4, hosts=2)
  assert found.room() == 4                   # one of a, three of b
  started = [where(found.start()) for _ in range(4)]
  assert sorted(started) == [('a0', 'a1')] + [('b0', 'b1')] * 3


def test_two_nodes_that_say_they_are_one_host_are_no_slice(monkeypatch):
  nodes = [node('a0', 'a', 0), node('a1', 'a', 1)]
  found = cluster(monkeypatch, nodes, hosts=2)
  assert where(worker := found.start()) == ('a0', 'a1')
  found.stop(worker)
  nodes.append(node('old', 'a', 1))
  assert found.room() == 0 and found.start() == ()
  with pytest.raises(crew.Lost, match='no slice has all of its hosts'):
    found.result(())
  found.stop(())
  found.stop(None)                           # it never came to be


def test_all_chips_of_one_host_of_several_are_refused(monkeypatch):
  nodes = [node(f'a{i}', 'a', i, TPU=4.) for i in range(2)]
  with pytest.raises(ValueError, match=r'take all its 4 chips, but nodes have '
                     r'CPU 2, TPU 4 \(host 0 of a\)'):
    cluster(monkeypatch, nodes, resources={'TPU': 4})
  assert cluster(monkeypatch, nodes, resources={'TPU': 1}).room() == 4
  assert cluster(monkeypatch, nodes, resources={'TPU': 4}, hosts=2).room() == 1
  alone = [node('a0', 'a', 0, TPU=4.), node('b0', 'b', 0, TPU=4.)]
  assert cluster(monkeypatch, alone, resources={'TPU': 4}).room() == 2
