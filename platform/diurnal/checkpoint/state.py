"""What is saved of a model in training, in three sections:

    model       tables/<table>/weight, dense/<parameter>
    optimizer   tables/<table>/moment, dense/<parameter>/<slot>
    random      <rank>/cpu, and <rank>/cuda on GPUs

Names of tensors that are trained say nothing of ranks or placements.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from diurnal.checkpoint.manifest import Contract
from diurnal.checkpoint.tensors import Folder, Named, Part
from diurnal.sharding.parallel import WEIGHT, Parallel

MODEL = "model"
OPTIMIZER = "optimizer"
RANDOM = "random"

Sections = dict[str, dict[str, Named]]
"""Section, then name."""


@dataclass
class TrainState:
    """A spread model, and how many steps have changed it."""

    parallel: Parallel
    global_step: int = 0
    """Over the whole lineage of versions: where the learning rate schedule stands."""
    group: dist.ProcessGroup | None = None
    """The ranks of the model; the world, when None."""

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def world_size(self) -> int:
        return dist.get_world_size(self.group)

    def sections(self) -> Sections:
        """All that this rank holds, as live memory."""
        held: Sections = {MODEL: {}, OPTIMIZER: {}, RANDOM: {}}
        for piece in self.parallel.pieces():
            section = held[MODEL if piece.slot == WEIGHT else OPTIMIZER]
            name = f"tables/{piece.table}/{piece.slot}"
            so_far = section[name].parts if name in section else []
            section[name] = Named(piece.shape, [*so_far, Part(piece.offsets, piece.tensor)], piece.is_replica)
        for name, parameter in self.parallel.dense_params.items():
            held[MODEL][f"dense/{name}"] = Named.whole(parameter)
            for slot, tensor in self.parallel.dense_optimizer.state[parameter].items():
                held[OPTIMIZER][f"dense/{name}/{slot}"] = Named.whole(tensor)
        held[RANDOM] = {
            f"{self.rank}/{device}": Named.whole(state, is_replica=False)
            for device, state in self._generators().items()
        }
        return held

    def wanted(self, saved: Contract) -> Sections:
        """What this rank continues from, of a version with this contract: all that it holds, but new tables."""
        new = {f"tables/{t.name}" for t in self.parallel.config.dataset.tables if t.name not in saved.tables}
        held = self.sections()
        return {
            section: {name: tensor for name, tensor in held[section].items() if name.rpartition("/")[0] not in new}
            for section in (MODEL, OPTIMIZER)
        }

    def read(self, folders: dict[str, Folder], saved: Contract) -> None:
        """Continues from what was written; a section without a folder stays as it is. The state has to be that of a
        new model: rows and columns that were not written start from it."""
        now = Contract.of(self.parallel.config)
        for section, wanted in self.wanted(saved).items():
            if section in folders:
                _read(folders[section], wanted, saved, now)
        if RANDOM in folders:
            self._continue_generators(folders[RANDOM])

    def _generators(self) -> dict[str, torch.Tensor]:
        device = self.parallel.module.device
        states = {"cpu": torch.get_rng_state()}
        return states | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states

    def _continue_generators(self, folder: Folder) -> None:
        """Each rank goes on with its own random numbers. At another world size there is no such thing: then each takes
        new ones, of (seed, step, rank)."""
        states = self._generators()
        names = {f"{self.rank}/{device}": state for device, state in states.items()}
        num_ranks = len({name.split("/")[0] for name in folder.shapes})
        if num_ranks != self.world_size or not names.keys() <= folder.shapes.keys():
            torch.manual_seed(hash((self.parallel.config.seed, self.global_step, self.rank)) % 2**63)
            return
        folder.read({name: Named.whole(state) for name, state in names.items()})
        torch.set_rng_state(states["cpu"])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], self.parallel.module.device)


def _read(folder: Folder, wanted: dict[str, Named], saved: Contract, now: Contract) -> None:
    """Where the inputs of a layer changed, the columns of those that stayed are taken, wherever they were; the columns
    of new inputs are zero, in the weight as in the optimizer's slots, so that no prediction changes at first."""
    moved: dict[str, tuple[list[str], list[str]]] = {}
    for layer, inputs in now.inputs().items():
        if inputs != saved.inputs()[layer]:
            names = [n for n in wanted if n.startswith(layer) and len(wanted[n].shape) == 2]
            moved |= {name: (saved.inputs()[layer], inputs) for name in names}
    as_saved = {name: torch.empty(wanted[name].shape[0], len(old)) for name, (old, _) in moved.items()}
    folder.read(wanted | {name: Named.whole(tensor) for name, tensor in as_saved.items()})
    for name, (old, new) in moved.items():
        position = {column: i for i, column in enumerate(new)}
        (target,) = wanted[name].parts
        target.tensor.zero_()
        target.tensor[:, [position[column] for column in old]] = as_saved[name].to(target.tensor.device)
