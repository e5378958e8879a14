"""Fits: a sequence of increments on Ray Train workers, each scored, learned and committed."""
