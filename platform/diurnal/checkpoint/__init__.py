"""Everything that is needed to go on with a model: its state, what describes it, and where both lie."""
