"""TOML in, a frozen `Config` out; or one error that lists every fault with its file, path, value, rule and fix."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from diurnal.config.run import Config
from diurnal.config.schema import Schema
from diurnal.errors import ConfigError, Fault

Path_ = tuple[str | int, ...]


def load_config(files: Iterable[str | Path], overrides: Iterable[str] = ()) -> Config:
    """Merges TOML files (later ones win) and `key=value` overrides, reads the schema that they name, checks it all.

    Paths inside are taken from the current directory and made absolute, since Ray's workers run elsewhere. A single
    `.json` file is a resolved configuration, as it is sent with a job: nothing is merged into it.

    Raises:
        ConfigError: with every fault of every file at once.
    """
    files = list(files)
    if [Path(file).suffix for file in files] == [".json"]:
        return _read_resolved(files[0], list(overrides))
    faults: list[Fault] = []
    merged: dict[str, Any] = {}
    origins: dict[Path_, str] = {}
    if not files:
        faults.append(Fault("--config", "nothing", "a run is described by one TOML file or more", "add --config FILE"))
    for file in files:
        _merge(merged, _read_toml(file, "--config", faults), str(file), origins)
    for text in overrides:
        _merge(merged, _read_override(text, faults), "--set", origins)
    if faults:
        raise ConfigError(faults)
    if "dataset" in merged:
        fix = "put it into the file that data.schema_file names"
        faults.append(Fault(f"{origins['dataset',]}: dataset", "a table", "the schema has a file of its own", fix))
    data = merged.get("data")
    schema_file = data.get("schema_file") if isinstance(data, dict) else None
    if isinstance(schema_file, str):
        num_before = len(faults)
        merged["dataset"] = _read_toml(schema_file, _where(("data", "schema_file"), origins), faults)
        _note_origins(merged["dataset"], ("dataset",), schema_file, origins)
        is_read = len(faults) == num_before
    else:
        is_read = False
    checked = _check(Config, merged, origins)
    faults += [fault for path, fault in checked.items() if is_read or path[0] != "dataset"]
    if faults:
        raise ConfigError(faults)
    return _with_absolute_paths(Config.model_validate_json(json.dumps(merged)))


def load_schema(file: str | Path) -> Schema:
    """Reads a dataset's `schema.toml` by itself.

    Raises:
        ConfigError: with every fault of the file.
    """
    faults: list[Fault] = []
    raw = _read_toml(file, "schema", faults)
    origins: dict[Path_, str] = {}
    _note_origins(raw, (), str(file), origins)
    if not faults:
        faults = list(_check(Schema, raw, origins).values())
    if faults:
        raise ConfigError(faults)
    return Schema.model_validate_json(json.dumps(raw))


def resolved_json(config: Config) -> str:
    """The whole configuration, defaults included, as JSON; `from_resolved` reads it back."""
    return config.model_dump_json(indent=2)


def from_resolved(text: str) -> Config:
    return Config.model_validate_json(text)


def _read_resolved(file: str | Path, overrides: list[str]) -> Config:
    faults: list[Fault] = []
    if overrides:
        faults.append(Fault("--set", overrides[0], "nothing: a resolved configuration is whole", "use TOML files"))
    try:
        if not faults:
            return from_resolved(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        found = str(error).partition("\n")[0]
        faults.append(Fault(str(file), found, "a resolved configuration of this version", "resolve it anew"))
    raise ConfigError(faults)


def _read_toml(file: str | Path, where: str, faults: list[Fault]) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        faults.append(Fault(where, str(file), "the file exists (paths start at the current directory)", "correct it"))
    except (OSError, UnicodeDecodeError) as error:
        faults.append(Fault(where, str(file), "a readable UTF-8 file", str(error)))
    except tomllib.TOMLDecodeError as error:
        faults.append(Fault(str(file), str(error), "valid TOML", "correct the line"))
    return {}


def _read_override(text: str, faults: list[Fault]) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        faults.append(Fault("--set", text, "key=value, with dots between sections", "--set data.batch_rows=512"))
        return {}
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    for part in reversed(parts):
        parsed = {part: parsed}
    return parsed


def _merge(into: dict[str, Any], new: Mapping[str, Any], origin: str, origins: dict[Path_, str]) -> None:
    _note_origins(new, (), origin, origins)
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge_below(into[key], value)
        else:
            into[key] = value


def merge_below(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Lays `new` over a nested dictionary, key by key."""
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge_below(into[key], value)
        else:
            into[key] = value


def _note_origins(value: Any, path: Path_, origin: str, origins: dict[Path_, str]) -> None:
    origins[path] = origin
    children = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        _note_origins(child, (*path, key), origin, origins)


def _check(model: type[BaseModel], raw: dict[str, Any], origins: Mapping[Path_, str]) -> dict[Path_, Fault]:
    """All faults, by path. Rules between sections run on sound sections alone, so what is faulty is taken out, and the
    rest looked at again."""
    not_json = _not_json(raw)
    if not_json:
        return {path: Fault(_where(path, origins), repr(value), "not a date", "quote it") for path, value in not_json}
    found: dict[Path_, Fault] = {}
    remaining = json.loads(json.dumps(raw))
    sections: set[str | int] = set()
    while True:
        try:
            model.model_validate_json(json.dumps(remaining))
            break
        except ValidationError as error:
            details = error.errors(include_url=False)
        new = {path: fault for d in details for path, fault in _faults(model, d, origins)}
        new = {path: fault for path, fault in new.items() if path not in found and path[0] not in sections}
        found |= new
        removed = [path for path in new if _remove(remaining, path)]
        sections |= {path[0] for path in new}
        if not removed:
            break
    return found


def _remove(raw: Any, path: Path_) -> bool:
    for part in path[:-1]:
        try:
            raw = raw[part]
        except (KeyError, IndexError, TypeError):
            return False
    return isinstance(raw, dict) and raw.pop(path[-1], None) is not None


def _not_json(value: Any, path: Path_ = ()) -> list[tuple[Path_, Any]]:
    if isinstance(value, dict):
        return [hit for key, child in value.items() for hit in _not_json(child, (*path, key))]
    if isinstance(value, list):
        return [hit for index, child in enumerate(value) for hit in _not_json(child, (*path, index))]
    return [] if isinstance(value, bool | int | float | str) else [(path, value)]


def _where(path: Path_, origins: Mapping[Path_, str]) -> str:
    """`file: section.key[2].key`; a key that is not there is said to lack in the file that has its section."""
    known = path
    while known and known not in origins:
        known = known[:-1]
    shown = path[1:] if path[:1] == ("dataset",) else path
    text = ""
    for part in shown:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    origin = origins.get(known, "")
    return f"{origin}: {text}" if origin and text else text or origin


def _faults(model: type[BaseModel], error: ErrorDetails, origins: Mapping[Path_, str]) -> list[tuple[Path_, Fault]]:
    path: Path_ = error["loc"]
    kind, context = error["type"], error.get("ctx", {})
    if kind == "broken_rules":
        return [
            ((*path, *b.where), Fault(_where((*path, *b.where), origins), _short(b.found), b.rule, b.fix))
            for b in context["broken"]
        ]
    return [(path, _field_fault(model, error, origins))]


def _field_fault(model: type[BaseModel], error: ErrorDetails, origins: Mapping[Path_, str]) -> Fault:
    path: Path_ = error["loc"]
    kind, where = error["type"], _where(path, origins)
    if kind == "missing":
        return Fault(where, "nothing", "required", f"add {path[-1]} = ...")
    if kind == "extra_forbidden":
        names = _siblings(model, path)
        close = difflib.get_close_matches(str(path[-1]), names, n=1)
        fix = f"did you mean {close[0]}?" if close else "remove it"
        return Fault(where, _short(error["input"]), f"one of: {', '.join(names)}", fix)
    must = error["msg"].removeprefix("Input should be ").replace("an object", "a table")
    fixes = {"int_type": "write a whole number", "float_type": "write a number", "string_type": "put it in quotes"}
    fix = fixes.get(kind) or ("choose one of them" if kind == "literal_error" else "change the value")
    return Fault(where, _short(error["input"]), must, fix)


def _siblings(model: type[BaseModel], path: Path_) -> list[str]:
    """The keys that are allowed where the unknown one stands."""
    for part in path[:-1]:
        if isinstance(part, int) or part not in model.model_fields:
            continue
        inner = model.model_fields[part].annotation
        for candidate in (inner, *getattr(inner, "__args__", ())):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
                break
    return list(model.model_fields)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _with_absolute_paths(config: Config) -> Config:
    data = config.data.model_copy(update={key: _absolute(getattr(config.data, key)) for key in ("path", "schema_file")})
    return config.model_copy(update={"data": data, "storage": _absolute(config.storage)})


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())
