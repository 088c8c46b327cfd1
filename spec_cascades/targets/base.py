"""What rules with a threshold share."""
from __future__ import annotations

from typing import ClassVar

from spec_cascades import check


class Ruled:
  """For rules with an alpha: says what is allowed."""
  uses_q: ClassVar[bool] = True
  domain: ClassVar[tuple[float, float]]

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for an alpha outside the rule's domain; host only."""
    name = type(self).__name__
    if isinstance(self.alpha, (list, tuple)):      # a pytree of its own
      raise ValueError(f'alpha of {name} is a {type(self.alpha).__name__}; '
                       'allowed: a number or an array.')
    check.interval(f'alpha of {name}', self.alpha, *self.domain, batch=batch,
                   hint=f'{name}: {type(self).__doc__.splitlines()[0]}')
