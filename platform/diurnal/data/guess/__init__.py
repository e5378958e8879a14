"""From a folder of Parquet that nobody has described to a schema and a run that train: guesses, with their evidence."""
