"""Drafters: what proposes the tokens that a verifier judges."""
