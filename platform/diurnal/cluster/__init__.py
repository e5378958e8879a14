"""The same commands as Ray jobs: submit, stop, watch."""
