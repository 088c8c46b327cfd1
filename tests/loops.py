"""Sequential baselines as plain Python loops, one row, greedy: references.

Each takes (rule, q, p, start, eos, limit), q and p being functions from tokens
to the next logits, and returns tokens and counters; those left out are 0.
"""
import collections

import numpy as np


def softmax(logits):
  weight = np.exp(logits - logits.max())
  return weight / weight.sum()


def over(tokens, eos, limit):
  return tokens[-1] == eos or len(tokens) >= limit


def alone(model, start, eos, limit):
  """Greedy tokens and their log-probability."""
  tokens, logs = list(start), 0.
  while not over(tokens, eos, limit) or len(tokens) == len(start):
    logits = model(tokens)
    tokens.append(int(logits.argmax()))
    logs += np.log(softmax(logits)[tokens[-1]])
  return tokens, logs


def seq(rule, q, p, start, eos, limit):
  tokens, logs = alone(q, start, eos, limit)
  n = len(tokens) - len(start)
  if np.exp(logs / n if rule.normalised else logs) >= 1 - rule.alpha:
    return tokens, dict(rounds=n, drafted=n, accepted=n, drafter_calls=n)
  tokens, _ = alone(p, start, eos, limit)
  new = len(tokens) - len(start)
  return tokens, dict(rounds=n + new, drafted=n, corrected=new, deferred=new,
                      drafter_calls=n, verifier_calls=new)


def token(rule, q, p, start, eos, limit):
  tokens, read, calls, own = list(start), len(start) - 1, 0, 0
  while not over(tokens, eos, limit) or len(tokens) == len(start):
    logits = q(tokens)
    if softmax(logits).max() >= 1 - rule.alpha:
      own += 1
    else:
      while read < len(tokens):
        read, calls = min(read + rule.block, len(tokens)), calls + 1
      logits = p(tokens)
    tokens.append(int(logits.argmax()))
  n = len(tokens) - len(start)
  return tokens, dict(rounds=n, drafted=own, accepted=own, bonus=n - own,
                      deferred=n - own, drafter_calls=n, verifier_calls=calls)


def oracle(rule, q, p, start, eos, limit):
  tokens, deferred = list(start), 0
  while not over(tokens, eos, limit) or len(tokens) == len(start):
    small, large = q(tokens), p(tokens)
    defers = softmax(small).max() < softmax(large).max() - rule.alpha
    deferred += defers
    tokens.append(int((large if defers else small).argmax()))
  n = len(tokens) - len(start)
  return tokens, dict(rounds=n, bonus=n, deferred=deferred, drafter_calls=n,
                      verifier_calls=n)


def bild(rule, q, p, start, eos, limit):
  tokens, n = list(start), collections.Counter()
  while not over(tokens, eos, limit) or not n['rounds']:
    drafts, fresh = [], []
    while n['rounds'] and len(drafts) < rule.length and eos not in drafts:
      logits = q(tokens + drafts)
      if softmax(logits).max() < rule.fallback:
        break
      drafts.append(int(logits.argmax()))
    for i, x in enumerate(drafts + [None]):
      logits = p(tokens + drafts[:i])
      stands = x is not None and -np.log(softmax(logits)[x]) <= rule.alpha
      fresh.append(x if stands else int(logits.argmax()))
      if not stands:
        break
    end = min(fresh.index(eos) + 1 if eos in fresh else 99,
              limit - len(tokens))
    kind = 'bonus' if len(fresh) > len(drafts) else 'corrected'
    n[kind] += end >= len(fresh)
    n['accepted'] += min(len(fresh) - 1, end)
    n['rounds'] += 1
    n['verifier_calls'] += 1
    n['drafted'] += len(drafts)
    n['drafter_calls'] += min(len(drafts) + (eos not in drafts), rule.length)
    tokens += fresh[:end]
  return tokens, dict(n, deferred=n['bonus'] + n['corrected'])
