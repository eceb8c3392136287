"""The entry point: strict parser first, Typer where it declines, and one place where errors become exit
statuses.

Whatever this module, the strict parser and the commands about tasks import is paid for by every call of
``pawl``: nothing but the interpreter's own C modules and small modules of ours (a test reads ``-X
importtime``). What a rare command needs is imported inside its function.
"""

from __future__ import annotations

import os
import sys

from pawl.cli import output
from pawl.errors import InternalError, PawlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from pawl.cli.parse import Invocation

_BROKEN_PIPE = 128 + 13  # what a shell reports of a program that SIGPIPE ended


def main() -> NoReturn:
    """The command ``pawl``."""
    output.open_standard_files()
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run the words of a command line; the exit status."""
    json = "--json" in words
    try:
        return _run(words)
    except PawlError as error:
        output.error(error, json=json)
        return error.exit_code
    except KeyboardInterrupt:
        return _interrupted(json=json)
    except BrokenPipeError:
        _let_go_of_stdout()
        return _BROKEN_PIPE
    except OSError as error:
        output.error(_system_error(error), json=json)
        return 1
    except Exception as error:
        output.error(_bug(error, json=json), json=json)
        return 1


def execute(invocation: Invocation) -> int:
    """Run the function of a command; the exit status."""
    from pawl.cli.call import Call
    from pawl.home import Home

    call = Call(Home(invocation.home), json=invocation.json)
    return load(invocation.command.run)(call, **invocation.values)


def load(run: str) -> Callable[..., int]:
    """The function that the table names, like ``wait:wait``."""
    module, _, name = run.partition(":")
    loaded: Any = __import__(f"pawl.cli.commands.{module}", fromlist=[name])
    function: Callable[..., int] = getattr(loaded, name)
    return function


def _run(words: Sequence[str]) -> int:
    if "_PAWL_COMPLETE" not in os.environ:
        from pawl.cli.parse import parse

        invocation = parse(words)
        if invocation is not None:
            return execute(invocation)
    from pawl.cli.app import run_words

    return run_words(words, execute)


def _interrupted(*, json: bool) -> int:
    from pawl.cli.call import Interrupted

    error = Interrupted("interrupted; what the daemon had accepted goes on")
    output.error(error, json=json)
    return error.exit_code


def _let_go_of_stdout() -> None:
    """Whoever read our output has gone; nothing may complain about that when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)


def _system_error(error: OSError) -> PawlError:
    from pawl.errors import DiskFull, StorageError

    where = f" {os.fsdecode(error.filename)}" if isinstance(error.filename, (str, bytes)) else ""
    kind = DiskFull if error.errno == 28 else StorageError
    return kind(f"cannot go on:{where} {error.strerror or error}", errno=error.errno)


def _bug(error: Exception, *, json: bool) -> PawlError:
    import traceback

    trace = "".join(traceback.format_exception(error))
    if not json:
        output.note(trace.rstrip())
    details = {"traceback": trace} if json else {}
    return InternalError(
        f"a bug, sorry: {type(error).__name__}: {error}; please report it with the lines above", **details
    )
