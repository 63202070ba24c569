"""TOML files into frozen, typed settings, with errors that name file, section, key and the nearest valid one.

`${name}` in a text stands for an entry of the recipe's [variables]. A relative path in the file starts at the
file's folder; one that was given with `--set` starts at the current folder, where the person who typed it is.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo

from assay.pipelines.errors import RecipeError
from assay.pipelines.hints import did_you_mean, nearby_files

__all__ = ["LocalPath", "ModelName", "Section", "load", "recipe_hash", "resolved_json"]

UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")  # of a model, of a dataclass
VARIABLE = re.compile(r"\$\{(\w+)\}")


class Section(BaseModel):
    """Base of every recipe model: frozen, unknown keys are errors, the line under a field documents it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def prepare(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The file's data, overrides and variables filled in, as it is to be checked; raises ValueError."""
        return data


def _local_path(path: Path, info: ValidationInfo) -> Path:
    context = info.context or {}
    if unknown := [name for name in VARIABLE.findall(str(path)) if context]:
        names = context["variables"]
        hint = did_you_mean(unknown[0], names)
        raise ValueError(f"no variable '{unknown[0]}'{hint} Variables: {', '.join(names)}")
    if not context or path.expanduser().is_absolute():
        return path.expanduser()
    return ((Path.cwd() if path in context["typed"] else context["folder"]) / path).resolve()


def _model_name(name: str, info: ValidationInfo) -> str:
    path = _local_path(Path(name), info)
    return str(path) if name.startswith((".", "/", "~")) or path.exists() else name


LocalPath = Annotated[Path, AfterValidator(_local_path)]
"""A file or folder; a relative one starts at the recipe's folder."""

ModelName = Annotated[str, AfterValidator(_model_name)]
"""A model's folder (when there is one of that path) or its name on the Hub."""

Recipe = TypeVar("Recipe", bound=Section)


def load(path: str | Path, model: type[Recipe], overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in the TOML file `path` as a `model`.

    Args:
        path: the file.
        model: a `Section`; values must have its types, nothing is converted (8 is no text, "8" no number).
        overrides: `section.key=value` or `variable=value`; the value is TOML (`8`, `[0.2, 0.8]`, `true`), and
            text when it is not. An entry of a list of sections goes by its `name` or its place from 0.

    Raises:
        RecipeError: no such file, no valid TOML; unknown keys, missing keys, wrong values: all, one a line.
    """
    path = Path(path)
    data = _read(path)
    typed = [_override(data, text) for text in overrides]
    table = data.get("variables")
    variables = {k: v for k, v in table.items() if isinstance(v, str)} if isinstance(table, dict) else {}
    texts: set[Path] = set()
    data = {k: v if k == "variables" else _expand(v, variables, typed, texts) for k, v in data.items()}
    context = {"folder": path.resolve().parent, "typed": texts, "variables": variables}
    try:
        data = model.prepare(data)
    except ValueError as error:
        raise RecipeError(f"{path}: {error}") from None
    try:
        return model.model_validate_json(json.dumps(data, default=str), strict=True, context=context)
    except ValidationError as error:
        found = [_explain(e["loc"], e["type"], e["msg"], e.get("ctx", {}), model, data) for e in error.errors()]
        raise RecipeError("\n".join(f"{path}: {line}" for line in found)) from None


def resolved_json(recipe: BaseModel) -> str:
    """The recipe with every default and path filled in, as canonical JSON."""
    return json.dumps(recipe.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)


def recipe_hash(recipe: BaseModel) -> str:
    """SHA-256 of `resolved_json`, in hexadecimal."""
    return hashlib.sha256(resolved_json(recipe).encode()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
        return tomllib.loads(text)
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe; {nearby_files(path)}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read as UTF-8 text: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        shown = text.splitlines()[int(line[1]) - 1].strip() if line else text[-80:].strip()
        raise RecipeError(f"{path}: not valid TOML: {error}: {shown!r}.") from None


def _override(data: dict[str, Any], text: str) -> str:
    """Sets one `a.b=value` in `data`; returns `${variable}` for a variable, else the value as typed."""
    name, equals, raw = text.partition("=")
    *folders, last = name.strip().split(".")
    if not equals or not last:
        raise RecipeError(f"--set {text}: expected section.key=value, such as difficulty.samples=16.")
    variables = data.get("variables")
    if folders in ([], ["variables"]) and isinstance(variables, dict) and last in variables:
        variables[last] = raw
        return f"${{{last}}}"
    target: Any = data
    for folder in folders:
        target = _entry(target, folder, text)
    if not isinstance(target, dict):
        raise RecipeError(f"--set {text}: {'.'.join(folders)} is {target!r}, which has no keys.")
    target[last] = _value(raw)
    return raw


def _entry(target: Any, key: str, text: str) -> Any:
    if isinstance(target, dict):
        return target.setdefault(key, {})
    entries = [e for e in target if isinstance(e, dict)] if isinstance(target, list) else []
    names = {str(e.get("name")): e for e in entries}
    if key.isdecimal() and int(key) < len(entries):
        return entries[int(key)]
    if key not in names:
        hint = did_you_mean(key, names)
        raise RecipeError(f"--set {text}: no entry '{key}'{hint} Entries: {', '.join(names)}.")
    return names[key]


def _value(raw: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    return parsed["value"] if len(parsed) == 1 else raw


def _expand(value: Any, variables: Mapping[str, str], typed: list[str], texts: set[Path]) -> Any:
    """`value` with its variables filled in; `texts` collects those whose beginning was typed by a person."""
    if isinstance(value, dict):
        return {k: _expand(v, variables, typed, texts) for k, v in value.items()}
    if isinstance(value, list):
        return [_expand(v, variables, typed, texts) for v in value]
    if not isinstance(value, str):
        return value
    text = VARIABLE.sub(lambda match: variables.get(match[1], match[0]), value)
    if any(value == t or (t.startswith("${") and value.startswith(t)) for t in typed):
        texts.add(Path(text))
    return text


Loc = tuple[int | str, ...]


def _explain(loc: Loc, kind: str, message: str, context: dict[str, Any], model: type[BaseModel], data: Any) -> str:
    """One pydantic error in words: section, key, what was found, and what would be right."""
    section, key, found = _locate(loc[:-1] if kind in UNKNOWN_KEY else loc, data)
    if kind in UNKNOWN_KEY:
        keys = _keys(model, loc[:-1])
        hint = did_you_mean(str(loc[-1]), keys)
        return f"{section} has no key '{loc[-1]}'{hint} Keys: {', '.join(keys)}."
    if kind == "missing" and isinstance(loc[-1], str):
        return f"{section} lacks '{loc[-1]}', which has no default."
    if kind == "literal_error":
        valid = re.findall(r"'([^']*)'", context["expected"])
        hint = did_you_mean(str(found), valid)
        return f"{section} {key} is {_show(found)}{hint} One of: {', '.join(valid)}."
    message = message.removeprefix("Value error, ").replace("Input should", "should")
    message = message.replace("Field required", "has too few entries")  # of a tuple
    return f"{section} {key} is {_show(found)}: {message}." if key else f"{section}: {message}."


def _locate(loc: Loc, data: Any) -> tuple[str, str, Any]:
    """Where an error is: `[difficulty]` or `[[sources]] 'svamp'`, the key in it, and the value there."""
    section, key = "the recipe", ""
    path = ""
    for step in loc:
        if isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
            name = data.get("name", step) if isinstance(data, dict) else step
            section, key = (f"[[{path}]] {name!r}", "") if isinstance(data, dict) else (section, f"{key}[{step}]")
        elif isinstance(data, dict) and step in data:
            data, path = data[step], f"{path}.{step}".strip(".")
            section, key = (f"[{path}]", "") if isinstance(data, dict) else (section, str(step))
    return section, key, data


def _keys(model: type[BaseModel], loc: Loc) -> list[str]:
    """The valid keys at `loc`: of every model of a union; list places and union tags are passed over."""
    models = [model]
    for step in loc:
        fields = [m.model_fields[str(step)].annotation for m in models if step in m.model_fields]
        models = [found for annotation in fields for found in _models_in(annotation)] if fields else models
    return list(dict.fromkeys(name for m in models for name in getattr(m, "model_fields", m.__annotations__)))


def _models_in(annotation: Any) -> Iterator[type[Any]]:
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
