"""Reads the YAML file into a tree: positions kept, duplicates refused, `${env.…}` replaced."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from treadle.settings.substitution import substitute
from treadle.settings.tree import Branch, Fault, Origin, Value, join

_NULL = "tag:yaml.org,2002:null"
_MAX_DEPTH = 50


def read_yaml(path: Path, environ: Mapping[str, str]) -> tuple[Branch, list[Fault]]:
    """The file as a tree, and what is wrong with it as YAML. Never raises for what the file holds."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}, [Fault("", f"there is no file {path}")]
    except (OSError, UnicodeDecodeError) as error:
        return {}, [Fault("", f"{path} cannot be read: {error}")]
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        reader = _Reader(loader, path.name, environ)
        if root is None or root.tag == _NULL:
            return {}, []
        tree = reader.node(root, "", 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        return {}, [Fault("", f"{path.name}{where}: not valid YAML: {error.problem or error.context}")]
    except (yaml.YAMLError, ValueError) as error:
        return {}, [Fault("", f"{path.name}: not valid YAML: {error}")]
    finally:
        loader.dispose()
    if not isinstance(tree, dict):
        return {}, [Fault("", f"{path.name}: the file must hold settings as `name: value`")]
    return tree, reader.faults


class _Reader:
    """Turns nodes into the tree; collects faults as it goes."""

    def __init__(self, loader: yaml.SafeLoader, file: str, environ: Mapping[str, str]) -> None:
        self.faults: list[Fault] = []
        self._loader = loader
        self._file = file
        self._environ = environ

    def node(self, node: yaml.Node, path: str, depth: int) -> Value | Branch:
        if depth > _MAX_DEPTH:
            # An anchor may contain itself.
            raise ValueError(f"nested too deeply at {path}")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            items = [self.node(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(node.value)]
            return Value([_data(item) for item in items], self._origin(node))
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> Branch:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                self.faults.append(Fault(join(path, key.value), "is given twice", self._origin(key)))
            elif isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        self._loader.flatten_mapping(node)
        branch: Branch = {}
        for key, below in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.faults.append(Fault(path, "a name must be plain text", self._origin(key)))
                continue
            branch[key.value] = self.node(below, join(path, key.value), depth + 1)
        return branch

    def _scalar(self, node: yaml.Node, path: str) -> Value:
        origin = self._origin(node)
        if node.tag == _NULL:
            return Value(None, origin)
        if "${" in node.value:
            done = substitute(node.value, self._environ)
            self.faults += [Fault(path, message, origin) for message in done.faults]
            return Value(done.text, origin, text=done.text, typed=not done.whole)
        data: object = self._loader.construct_object(node, deep=True)
        return Value(data, origin, text=node.value)

    def _origin(self, node: yaml.Node) -> Origin:
        return Origin("file", f"{self._file}:{node.start_mark.line + 1}")


def _data(node: Value | Branch) -> object:
    if isinstance(node, dict):
        return {key: _data(below) for key, below in node.items()}
    return node.data
