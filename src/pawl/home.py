"""The home: one directory that holds everything, and where each thing in it lies.

Owns the names of the files, and the rule for the socket where the path is too long.
On the command line's fast path: ``os`` only; ``hashlib`` and ``tempfile`` load when the socket has to move.
"""

from __future__ import annotations

import os
import stat

from pawl.errors import HomeRefused, SocketPathTooLong

# sun_path holds 108 bytes on Linux and 104 on macOS and the BSDs, the closing zero among them.
SOCKET_PATH_BYTES_MAX = 100


def default_home() -> str:
    """``$PAWL_HOME``, else ``~/.pawl``."""
    return os.environ.get("PAWL_HOME") or os.path.join(os.path.expanduser("~"), ".pawl")


class Home:
    """The paths of one home. Making the object touches nothing."""

    def __init__(self, path: str | None = None) -> None:
        self.path = os.path.abspath(os.path.expanduser(path or default_home()))

    def __repr__(self) -> str:
        return f"Home({self.path!r})"

    def _at(self, *parts: str) -> str:
        return os.path.join(self.path, *parts)

    @property
    def config(self) -> str:
        return self._at("config.toml")

    @property
    def data(self) -> str:
        return self._at("data")

    @property
    def database(self) -> str:
        return self._at("data", "pawl.db")

    @property
    def artifacts(self) -> str:
        return self._at("data", "artifacts")

    @property
    def spool(self) -> str:
        return self._at("data", "spool")

    @property
    def run(self) -> str:
        return self._at("run")

    @property
    def lock(self) -> str:
        return self._at("run", "daemon.lock")

    @property
    def logs(self) -> str:
        return self._at("logs")

    @property
    def log(self) -> str:
        return self._at("logs", "daemon.log")

    @property
    def keeper_log(self) -> str:
        return self._at("logs", "keeper.log")

    @property
    def test_clock(self) -> str:
        """Marks a home made with ``pawl init --test-clock``."""
        return self._at("test-clock")

    @property
    def clock_offset(self) -> str:
        return self._at("run", "clock-offset")

    @property
    def wall_offset(self) -> str:
        return self._at("run", "wall-offset")

    @property
    def socket(self) -> str:
        """The socket's path: in ``run/``, or, where that is too long, in a private directory of this user."""
        path = self._at("run", "daemon.sock")
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            return path
        return self._short_socket()

    @property
    def socket_pointer(self) -> str:
        """Where the daemon notes the path of a socket that had to move, for whoever has another environment."""
        return self._at("run", "daemon.sock.path")

    def _short_socket(self) -> str:
        import hashlib
        import tempfile

        noted = _read_line(self.socket_pointer)
        if noted and os.path.isdir(os.path.dirname(os.path.dirname(noted))):
            return noted
        name = "pawl-" + hashlib.sha256(os.fsencode(os.path.realpath(self.path))).hexdigest()[:16]
        for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
            if not base or not os.path.isdir(base):
                continue
            path = os.path.join(base, f"{name}-{os.getuid()}", "daemon.sock")
            if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
                return path
        raise SocketPathTooLong(
            f"cannot find a socket path of at most {SOCKET_PATH_BYTES_MAX} bytes for {self.path}: use a shorter --home",
            home=self.path,
        )

    def prepare(self) -> None:
        """Make what is missing, private to the owner. Raises ``home_refused`` for a home of somebody else."""
        make_private_directory(self.path)
        for path in (
            self.data,
            self.artifacts,
            self.spool,
            self.run,
            self.logs,
            os.path.dirname(self.socket),
        ):
            make_private_directory(path)
        if os.path.dirname(self.socket) != self.run:
            with open(self.socket_pointer, "w") as file:
                file.write(self.socket + "\n")


def _read_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


def make_private_directory(path: str) -> None:
    """Make a directory of mode 0700, or check that what is there is one of ours. Raises ``home_refused``."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.stat(path)
    except FileExistsError:
        raise HomeRefused(f"cannot use {path}: it is not a directory", path=path) from None
    except OSError as error:
        raise HomeRefused(f"cannot make {path}: {error.strerror}", path=path) from error
    if not stat.S_ISDIR(found.st_mode):
        raise HomeRefused(f"cannot use {path}: it is not a directory", path=path)
    if found.st_uid != os.geteuid():
        raise HomeRefused(
            f"cannot use {path}: it belongs to uid {found.st_uid}, and you are uid {os.geteuid()}",
            path=path, owner=found.st_uid, uid=os.geteuid(),
        )  # fmt: skip
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(path, 0o700)
