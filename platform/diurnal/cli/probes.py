"""What doctor tries for real, each in its own process: `python -m diurnal.cli.probes NAME` prints a line of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from diurnal.errors import DiurnalError


def lookup() -> dict[str, Any]:
    """Two ids through torchrec's jagged tensor and fbgemm's kernels, there and back, on a GPU if one is there."""
    from diurnal.stack import load_operators

    load_operators()
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    use_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if use_gpu else "cpu")
    spec = (
        (2, 4, EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        if use_gpu
        else (2, 4, EmbeddingLocation.HOST, ComputeDevice.CPU)
    )
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [spec], optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=0.5, device=device
    )
    weights = table.split_embedding_weights()[0]
    weights.copy_(torch.arange(8.0).reshape(2, 4))
    ids = KeyedJaggedTensor(keys=["id"], values=torch.tensor([1, 0]), lengths=torch.tensor([2, 0])).to(device)
    pooled = table(ids.values(), ids.offsets())
    assert pooled.tolist() == [[4.0, 6.0, 8.0, 10.0], [0.0] * 4], f"a bag of both rows came out as {pooled.tolist()}"
    pooled.sum().backward()
    assert weights[0, 0].item() < 0.0, "backward did not update the table"
    return {
        "device": device.type,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if use_gpu else [],
        "cuda": torch.version.cuda,
    }


def collective(file: str, rank: str) -> dict[str, Any]:
    """One gloo all-reduce between two processes that meet in `file`."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=int(rank), world_size=2, timeout=timedelta(seconds=60)
    )
    value = torch.tensor([1.0 + int(rank)])
    dist.all_reduce(value)
    dist.destroy_process_group()
    assert value.item() == 3.0, f"1 + 2 over two processes came out as {value.item()}"
    return {"sum": value.item()}


PROBES: dict[str, Callable[..., dict[str, Any]]] = {"lookup": lookup, "collective": collective}


def main(arguments: list[str]) -> int:
    try:
        answer = PROBES[arguments[0]](*arguments[1:])
    except DiurnalError as error:
        answer = {"faults": [vars(fault) for fault in error.faults]}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
