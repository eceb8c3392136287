"""From the file to a ``Config``, or to every fault that it has."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from typing import Any

from pydantic import ValidationError

from pawl.config.faults import Fault, faults_of
from pawl.config.lines import Origin, locate
from pawl.config.model import Config
from pawl.config.wording import dotted
from pawl.errors import InvalidConfig

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_TUPLE = re.compile(r"\(((?:'[^']*',? ?)+)\)")  # tomllib names keys as Python tuples


def load(path: str | os.PathLike[str]) -> Config:
    """The configuration of this file; an absent or empty file means the defaults.

    Raises ``config_invalid``: the message has the first fault, ``details.faults`` all of them.
    """
    file = os.fspath(path)
    config, faults = _judge(file)
    if config is None:
        raise _invalid(file, faults)
    return config


def check(path: str | os.PathLike[str]) -> list[Fault]:
    """Every fault of this file, in its order; an empty list where ``load`` would succeed. Raises nothing."""
    return _judge(os.fspath(path))[1]


def _invalid(file: str, faults: list[Fault]) -> InvalidConfig:
    rest = len(faults) - 1
    more = f" (and {rest} more {'fault' if rest == 1 else 'faults'})" if rest else ""
    return InvalidConfig(f"{faults[0].text(file)}{more}", file=file, faults=[fault.as_json() for fault in faults])


def _judge(file: str) -> tuple[Config | None, list[Fault]]:
    """The configuration, or its faults: exactly one of the two."""
    try:
        data = _read(file)
        if data is None:
            return Config(), []
        # With a line feed at its end, a fault in the last line is told with its place.
        text = data.decode("utf-8-sig") + "\n"
        raw = tomllib.loads(text)
    except OSError as error:
        return None, [Fault("", None, f"cannot be read: {error.strerror or error}")]
    except UnicodeDecodeError as error:
        return None, [not_utf8(error)]
    except RecursionError:
        return None, [Fault("", None, "is not usable: its lists or tables are nested too deeply")]
    except ValueError as error:
        return None, [not_toml(error)]
    return _validated(raw, Origin(file, locate(text)))


def _validated(raw: dict[str, Any], origin: Origin) -> tuple[Config | None, list[Fault]]:
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        return None, faults_of(error, origin)
    config._origin = origin
    return config, []


def _read(file: str) -> bytes | None:
    """The bytes of the file, None where there is none."""
    try:
        mode = os.stat(file).st_mode
    except FileNotFoundError:
        # A link into the void is a slip, not the wish for defaults.
        if os.path.islink(file):
            raise OSError(f"it is a link to {os.readlink(file)}, which does not exist") from None
        return None
    except ValueError as error:  # a NUL byte in the path
        raise OSError(str(error)) from None
    if stat.S_ISDIR(mode):
        raise OSError("it is a directory")
    if not stat.S_ISREG(mode):
        raise OSError("it is not a regular file")  # opening a named pipe would wait for ever
    with open(file, "rb") as stream:
        return stream.read()


def not_utf8(error: UnicodeDecodeError) -> Fault:
    """The place of the first byte that is no text."""
    line = error.object.count(b"\n", 0, error.start) + 1
    return Fault("", line, f"is not UTF-8 text: byte 0x{error.object[error.start]:02x} does not belong there")


def not_toml(error: ValueError) -> Fault:
    """A syntax error; tomllib tells the place at the end of its message, or that the document ended early."""
    place = _PLACE.search(str(error))
    if place is None:  # not tomllib's own error: Python refuses to read numbers of thousands of digits
        return Fault("", None, "is not usable: a number in it has too many digits")
    words = _plain(str(error)[: place.start()])
    if place[1] is None:
        return Fault("", None, f"is not TOML: {words}, up to the end of the file")
    return Fault("", int(place[1]), f"is not TOML: {words} (column {place[2]})")


def _plain(words: str) -> str:
    """tomllib's words in ours, or its own where they are plain enough; it shows keys as Python tuples."""
    if words in _PLAINER:
        return _PLAINER[words]
    words = _TUPLE.sub(lambda match: dotted(re.findall(r"'([^']*)'", match[1])), words)
    words = re.sub(r"^Cannot declare (.*) twice$", r"the table \1 is written twice", words)
    words = re.sub(r"^Cannot (?:mutate|redefine) .*namespace (.*)$", r"\1 cannot be added to once it is written", words)
    return words[:1].lower() + words[1:]


_PLAINER = {
    "Cannot overwrite a value": "this key is written twice",
    "Expected '=' after a key in a key/value pair": "a key without the = that has to follow it",
    "Expected newline or end of document after a statement": "something follows the end of the value",
    "Illegal character '\\n'": "a text in quotes that does not end on its line",
    "Invalid initial character for a key part": "neither a key = value nor a [table]",
    "Invalid statement": "neither a key = value nor a [table]",
    "Invalid value": "no value that TOML knows; text needs quotes",
    "Unclosed array": "a list without its closing ]",
    "Unclosed inline table": "a { table } without its closing }",
    "Unterminated string": "a text in quotes that does not end",
}
