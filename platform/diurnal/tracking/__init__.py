"""A mirror in MLflow of what happened: names, the background tracker, plots, and the user interface's server."""
