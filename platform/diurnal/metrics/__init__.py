"""Logits in, numbers that merge over ranks out; what is undefined is None, never a number."""
