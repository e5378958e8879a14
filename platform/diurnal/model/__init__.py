"""Torch modules and optimizers of a DLRM that know nothing of ranks."""
