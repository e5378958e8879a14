"""A proposal as two TOML files for a person to read and edit: one comment for each guess."""

from __future__ import annotations

import json
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

from diurnal.config.schema import Schema
from diurnal.data.guess.proposal import Entry, LeftOut, Proposal, printable

_WIDTH = 118


def schema_text(proposal: Proposal) -> str:
    """What goes into `schema.toml`."""
    looked = proposal.survey
    days = dict.fromkeys(folder.increment[:10] for folder in looked.folders)
    first, last = looked.increments[0], looked.increments[-1]
    head = (
        f"Written by `diurnal init`, to be edited. Looked at: {len(days)} days of {first} to {last}, "
        f"{looked.num_footers:,} files of {looked.rows_looked_at:,} rows, of which {looked.num_rows:,} were read. Each "
        "line is a guess, with what speaks for it. Inputs have to be known before the outcome: whether they are, you "
        "know best."
    )
    lines = [*_comment(head), ""]
    for key in proposal.keys:
        lines += [*_comment(key.why), f"{key.role} = {toml_value(key.column)}", ""]
    lines += ["[label]", *_comment(proposal.label.why), *_settings(proposal.label.settings), ""]
    lines += ["[readiness]", *_comment(proposal.readiness.why), *_settings(proposal.readiness.settings), ""]
    for entry in proposal.entries:
        lines += [*_entry(entry), ""]
    if proposal.ideas:
        lines += _comment(
            "Worth a try: what earlier days say of an id. Often the strongest inputs; see `past` of Dense."
        )
        lines += [f"# {line}" for entry in proposal.ideas for line in ("[[dense]]", *_settings(entry.settings))]
        lines.append("")
    dim = proposal.tables[0].settings["dim"]
    if proposal.left_out:
        lines += [*_comment("Left out. To use one all the same, take the `#` away from its lines."), ""]
        for out in proposal.left_out:
            lines += [*_left_out(out, dim), ""]
    text = "\n".join(lines).rstrip() + "\n"
    Schema.model_validate_json(json.dumps(tomllib.loads(text)))  # what is wrong with it is our fault
    return text


def run_text(proposal: Proposal, schema_file: str) -> str:
    """What goes into `run.toml`.

    Args:
        schema_file: where the schema is written, seen from the directory that commands are run in.
    """
    looked = proposal.survey
    head = (
        "Written by `diurnal init`, to be edited. What is not set has its default of diurnal/config/run.py and "
        "diurnal/config/daily.py. Paths start at the current directory."
    )
    unit = "hour" if len(looked.increments[0]) > len("YYYY-MM-DD") else "day"
    lines = [
        *_comment(head),
        f"name = {toml_value(proposal.name)}",
        *_comment("Where versions, ledger and runs go."),
        '# storage = "build/storage"',
        "",
        "[data]",
        f"path = {toml_value(looked.path)}",
        f"schema_file = {toml_value(schema_file)}",
        *_comment(
            f"Rows of a step: about a 200th of the {looked.median_rows:,} rows of a median {unit}, a power of two."
        ),
        f"batch_rows = {proposal.batch_rows}",
        "",
    ]
    for entry in (proposal.days, proposal.gate):
        if entry is not None:
            lines += [f"[{entry.section}]", *_comment(entry.why), *_settings(entry.settings), ""]
    lines += [
        *_comment(
            "To set next: how many workers (batch_rows is a multiple of workers.max), then the learning rates, by the "
            "NE that a run prints (below 1 beats the constant rate)."
        ),
        "# [workers]",
        "# max = 2",
        "# [optim.sparse]",
        "# lr = 0.05",
        "# [optim.dense]",
        "# lr = 0.01",
    ]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A string, bool, number, or list of them."""
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the one control character that JSON lets through.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)


def _settings(settings: dict[str, Any]) -> Iterator[str]:
    return (f"{key} = {toml_value(value)}" for key, value in settings.items())


def _entry(entry: Entry) -> Iterator[str]:
    yield f"[[{entry.section}]]"
    yield from _comment(entry.why)
    yield from _settings(entry.settings)


def _left_out(out: LeftOut, dim: int) -> Iterator[str]:
    yield from _comment(f"{out.column}: {out.types}; {out.reason}.")
    for entry in out.entries:
        settings = entry.settings | ({"dim": dim} if "dim" in entry.settings else {})
        yield f"# [[{entry.section}]]"
        yield from (f"# {line}" for line in _settings(settings))


def _comment(text: str) -> Iterable[str]:
    wide = textwrap.wrap(printable(text), _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [f"# {line}" for line in wide]
