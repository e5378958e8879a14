"""A day of Parquet becomes batches: partitions, streams, encode, reader; only `batch` imports torch."""
