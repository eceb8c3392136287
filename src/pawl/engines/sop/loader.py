"""From a directory to its procedures: one folder each, every folder on its own, nothing written."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pawl.config.load import not_utf8
from pawl.engines.sop import capability, manifest, steps, validate
from pawl.engines.sop.findings import MANIFEST, STEPS, Finding, Remark
from pawl.engines.sop.manifest import Manifest
from pawl.engines.sop.model import Place, Procedure, Step
from pawl.engines.sop.validate import Known, Source
from pawl.errors import SopDirUnreadable


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with a ``SOP.toml``. ``procedure`` None: it does not load, and ``findings`` say why.

    ``name``: the procedure's, or the folder's where that cannot be read.
    """

    name: str
    path: str
    procedure: Procedure | None
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, object]:
        """As ``sop list`` shows it."""
        return {
            "name": self.name,
            "path": self.path,
            "loaded": self.procedure is not None,
            "findings": [finding.as_json() for finding in self.findings],
        }


class Library(NamedTuple):
    """The folders of a directory, by name; and findings about folders that are not among them."""

    folders: tuple[Folder, ...]
    stray: tuple[Finding, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        return [*(finding for folder in self.folders for finding in folder.findings), *self.stray]

    def named(self, name: str) -> Folder | None:
        """The folder of a procedure: of several with that name the first that loads."""
        found = [folder for folder in self.folders if folder.name == name]
        return next((folder for folder in found if folder.procedure), found[0] if found else None)


def load(directory: str, *, default_mode: str = "supervised", known: Known | None = None) -> Library:
    """Every procedure in a directory; none where there is no such directory.

    Links are followed. Raises ``sop_dir_unreadable`` for a directory that cannot be listed.
    """
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return Library(())
    except OSError as error:
        raise SopDirUnreadable(
            f"cannot read the procedures in {directory}: {error.strerror}", path=directory
        ) from error
    places = [os.path.join(directory, name) for name in names]
    there = [place for place in places if os.path.exists(os.path.join(place, MANIFEST))]
    folders = [load_folder(place, default_mode, known or Known()) for place in there]
    folders.sort(key=lambda folder: folder.name)  # stable: folders of one name stay in their own order
    strays = [place for place in places if place not in there and os.path.lexists(os.path.join(place, STEPS))]
    return Library(tuple(_doubled(folders)), tuple(map(_stray, strays)))


def load_folder(path: str, default_mode: str, known: Known) -> Folder:
    """One procedure, whatever lies beside its folder. Raises nothing."""
    name = os.path.basename(path)
    text, remark = _read(path, MANIFEST)
    if remark is not None:
        return _refused(name, path, [remark])
    head = manifest.parse(text, default_mode=default_mode)
    body = _read(path, STEPS) if os.path.exists(os.path.join(path, STEPS)) else None
    name = head.name or name
    remarks = [*head.remarks, *([body[1]] if body and body[1] else [])]
    if head.procedure is None or (body and body[1]):
        return _refused(name, path, remarks)
    procedure, source, more = _assembled(head, head.procedure, body[0] if body else None)
    remarks += more
    faults = [
        source.step(code, place, "capability", words)
        for place, step in enumerate(procedure.steps)
        for code, words in capability.faults(step)
    ]
    remarks += [*faults, *validate.remarks(procedure, source, known)]
    findings = tuple(_finding(name, path, one) for one in sorted(remarks, key=_order))
    return Folder(name, path, None if faults else procedure, findings)


def _assembled(head: Manifest, procedure: Procedure, text: str | None) -> tuple[Procedure, Source, list[Remark]]:
    """The procedure with the steps that count and their places, where they stand, and what was noticed."""
    remarks: list[Remark] = []

    def manifest_line(*path: str | int) -> int | None:
        return head.lines.get(path)

    def step_line(place: int, key: str) -> int | None:
        return head.lines.get(("steps", place, *(key.split(".") if key else ())))

    source = Source(MANIFEST, step_line, manifest_line)
    if text is not None:
        parsed = steps.parse(text)
        remarks += parsed.remarks
        if procedure.steps:
            words = "the steps here are not used: those of SOP.md are"
            remarks.append(Remark("steps_replaced", words, head.lines.get(("steps",)), MANIFEST))
        procedure = replace(procedure, steps=parsed.steps)
        source = Source(STEPS, lambda place, key: parsed.lines.get((place, key)), manifest_line)
    return replace(procedure, steps=_placed(procedure.steps, head.positions)), source, remarks


def _placed(found: Sequence[Step], positions: Sequence[tuple[int, Place]]) -> tuple[Step, ...]:
    """The steps with the places that ``[[positions]]`` gives them: the first step of a number gets its."""
    made = list(found)
    for number, place in positions:
        index = next((index for index, step in enumerate(made) if step.number == number), None)
        if index is not None:
            made[index] = replace(made[index], pos=place)
    return tuple(made)


def _read(folder: str, name: str) -> tuple[str, Remark | None]:
    """A file's text, or why there is none."""
    path = os.path.join(folder, name)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return "", Remark("unreadable_file", f"{name} is not a file", None, name)  # a pipe would wait for ever
        with open(path, "rb") as file:
            return file.read().decode(), None
    except UnicodeDecodeError as error:
        fault = not_utf8(error)
        return "", Remark("unreadable_file", f"{name} {fault.message}", fault.line, name)
    except OSError as error:
        return "", Remark("unreadable_file", f"{name} cannot be read: {error.strerror}", None, name)


def _refused(name: str, path: str, remarks: list[Remark]) -> Folder:
    return Folder(name, path, None, tuple(_finding(name, path, one) for one in sorted(remarks, key=_order)))


def _doubled(folders: list[Folder]) -> Iterator[Folder]:
    """The folders, with a finding on each that has the name of one that loads before it."""
    first: dict[str, Folder] = {}
    for folder in folders:
        other = first.get(folder.name)
        if folder.procedure is not None and other is not None:
            words = f"{other.path} has a procedure of this name too, and that one is used"
            doubled = _finding(folder.name, folder.path, Remark("duplicate_name", words, None, MANIFEST))
            folder = replace(folder, findings=(*folder.findings, doubled))
        elif folder.procedure is not None:
            first[folder.name] = folder
        yield folder


def _stray(path: str) -> Finding:
    words = f"there is no {MANIFEST} beside it, so the folder is ignored"
    return _finding(os.path.basename(path), path, Remark("no_manifest", words, None, STEPS))


def _finding(name: str, path: str, remark: Remark) -> Finding:
    file = os.path.join(path, remark.file)
    return Finding(name, remark.severity, remark.code, file, remark.line, remark.message)


def _order(remark: Remark) -> tuple[bool, int]:
    """The manifest's first, each file's by line."""
    return remark.file != MANIFEST, remark.line or 0
