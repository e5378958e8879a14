"""What is saved of a model in training, in three sections:

    model       tables/<table>/weight, dense/<parameter>
    optimizer   tables/<table>/moment, dense/<parameter>/<slot>
    random      <rank>/cpu, and <rank>/cuda on GPUs

Names of tensors that are trained say nothing of ranks or placements. Of one tensor the shape does: row-wise AdaGrad,

    m += mean(g * g);   w -= lr * g / (sqrt(m) + eps)

keeps one moment per row, (rows,), where a row is on one rank. Where columns are cut into k equal ranges, each is
updated as a table of its own, and its moment is the mean over its own columns: (rows, k). A version is continued under
another cut as follows. Let a saved range have the columns A_j and the moment m_j; the moment of a range with the
columns B becomes the mean of squares over the columns that it covers, each of which stands with that of its range:

    m = sum over j of |B & A_j| * m_j / |B|

Ranges that are put together get what they would have had as one, had the gradients been the same. A range that is
divided hands its moment to each of its parts: how the squares were spread over its columns is not known.
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
        """What this rank continues from, of a version with this contract: all that it holds, but new tables and new
        tasks."""
        schema = self.parallel.config.dataset
        new = (
            *(f"tables/{table.name}/" for table in schema.tables if table.name not in saved.tables),
            *(f"dense/tasks.{task.name}." for task in schema.tasks if task.name not in saved.tasks),
        )
        held = self.sections()
        return {
            section: {name: tensor for name, tensor in held[section].items() if not name.startswith(new)}
            for section in (MODEL, OPTIMIZER)
        }

    def read(self, folders: dict[str, Folder], saved: Contract) -> None:
        """Continues from what was written; a section without a folder stays as it is. The state has to be that of a
        new model: rows and columns that were not written start from it."""
        now = Contract.of(self.parallel.config)
        for section, wanted in self.wanted(saved).items():
            if section in folders:
                folder = folders[section]
                tables = {name for name in wanted if name.startswith("tables/")}
                cut_otherwise = {name for name in tables if wanted[name].shape[1:] != folder.shapes[name][1:]}
                _read(folder, {name: wanted[name] for name in wanted.keys() - cut_otherwise}, saved, now)
                for name in cut_otherwise:
                    _read_moment(folder, name, wanted[name], saved.tables[name.split("/")[1]].dim)
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
    inputs_then = saved.inputs()
    for layer, inputs in now.inputs().items():
        if layer in inputs_then and inputs != inputs_then[layer]:
            names = [n for n in wanted if n.startswith(layer) and len(wanted[n].shape) == 2]
            moved |= dict.fromkeys(names, (inputs_then[layer], inputs))
    as_saved = {name: torch.empty(wanted[name].shape[0], len(old)) for name, (old, _) in moved.items()}
    folder.read(wanted | {name: Named.whole(tensor) for name, tensor in as_saved.items()})
    for name, (old, new) in moved.items():
        position = {column: i for i, column in enumerate(new)}
        (target,) = wanted[name].parts
        target.tensor.zero_()
        target.tensor[:, [position[column] for column in old]] = as_saved[name].to(target.tensor.device)


def _read_moment(folder: Folder, name: str, moment: Named, dim: int) -> None:
    """Fills moments of a table that was cut into other ranges of columns, by the formula at the top of this file."""
    saved_shape = folder.shapes[name]
    num_saved, is_cut = saved_shape[0], len(saved_shape) > 1
    saved_width, width = _columns_of_a_moment(saved_shape, dim), _columns_of_a_moment(moment.shape, dim)
    for part in moment.parts:
        first, start = part.offsets[0], width * sum(part.offsets[1:])
        stop = start + width
        target = part.tensor.view(-1)[: max(0, num_saved - first)]
        mean, saved = torch.zeros_like(target), torch.empty_like(target)
        for j in range(start // saved_width, -(-stop // saved_width)):
            where = Part((first, j), saved.view(-1, 1)) if is_cut else Part((first,), saved)
            folder.read({name: Named(saved_shape, [where])})
            num_shared = min(stop, (j + 1) * saved_width) - max(start, j * saved_width)
            mean += saved * (num_shared / width)
        target.copy_(mean)


def _columns_of_a_moment(shape: tuple[int, ...], dim: int) -> int:
    return dim // shape[1] if len(shape) > 1 else dim
