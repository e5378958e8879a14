"""What a run is: frozen sections, TOML in, resolved JSON out. Imports none of torch, ray, mlflow, pyarrow."""

from diurnal.config.features import HASH_NAME, Dense, Label, Outcome, Sparse, Table, Task
from diurnal.config.load import from_resolved, load_config, load_schema, resolved_json
from diurnal.config.run import Config, DenseOptimizer, Model, Optim, Schedule, Sharding, SparseOptimizer
from diurnal.config.schema import Readiness, Schema

__all__ = [
    "HASH_NAME",
    "Config",
    "Dense",
    "DenseOptimizer",
    "Label",
    "Model",
    "Optim",
    "Outcome",
    "Readiness",
    "Schedule",
    "Schema",
    "Sharding",
    "Sparse",
    "SparseOptimizer",
    "Table",
    "Task",
    "from_resolved",
    "load_config",
    "load_schema",
    "resolved_json",
]
