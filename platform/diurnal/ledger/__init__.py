"""The truth about who trains a model, which attempts there were, and which commits count; SQL."""
