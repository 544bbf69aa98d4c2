"""What the simulated processes of one machine share: files.

The code that counts the workers of a machine (``stores/failover/machine_workers.py``) is the real one. The
files behave as those of a kernel: the lock of a process that was killed is gone, that of a paused one is not.
"""

from __future__ import annotations

from itertools import count

from comporta.simulation.worker import SimulatedWorker
from comporta.stores.failover.lock_files import LockDirectory, LockFiles


class SimulatedCountFiles:
    """The worker counts that the processes of one machine leave for those that start later."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def load(self, address: str) -> int:
        """Return the count saved last, or 1."""
        return self._counts.get(address, 1)

    def save(self, address: str, workers: int) -> None:
        """Save a count."""
        self._counts[address] = workers


class SimulatedFile:
    """One file and its locks: for each process and descriptor, whether the lock is shared."""

    def __init__(self) -> None:
        self.locks: dict[tuple[SimulatedWorker, int], bool] = {}

    def lock(self, fd: int, worker: SimulatedWorker, *, shared: bool) -> None:
        """Lock the file; ``BlockingIOError`` if another descriptor of a live process has locked it."""
        for other, is_shared in self.locks.items():
            if other != (worker, fd) and not other[0].is_dead and not (shared and is_shared):
                raise BlockingIOError("Resource temporarily unavailable")
        self.locks[worker, fd] = shared


class SimulatedMachine:
    """One machine: its files, by name."""

    def __init__(self) -> None:
        self.count_files = SimulatedCountFiles()
        self.files: dict[str, SimulatedFile] = {}

    def lock_files(self, worker: SimulatedWorker) -> LockFiles:
        """Return the lock files as a process of this machine sees them."""
        return _ProcessFiles(self, worker)


class UnavailableLockFiles(LockFiles):
    """The lock files of a machine whose processes see none of each other, as in containers.

    A fleet must keep its limits without them.
    """

    def open_directory(self) -> LockDirectory:
        """Raise ``OSError``: there is no directory."""
        raise FileNotFoundError("No such file or directory")

    def lock(self, fd: int, *, shared: bool = False) -> None:
        """Do nothing: no file can be opened."""

    def close(self, fd: int) -> None:
        """Do nothing."""

    def unlink(self, name: str) -> None:
        """Do nothing."""


class _ProcessFiles(LockFiles):
    """The open files of one process."""

    def __init__(self, machine: SimulatedMachine, worker: SimulatedWorker) -> None:
        self.files = machine.files
        self.opened: dict[int, SimulatedFile] = {}
        self.new_descriptor = count(3)
        self._worker = worker

    def open_directory(self) -> LockDirectory:
        self._check_alive()
        return _ProcessDirectory(self)

    def lock(self, fd: int, *, shared: bool = False) -> None:
        self._check_alive()
        self.opened[fd].lock(fd, self._worker, shared=shared)

    def close(self, fd: int) -> None:
        self.opened.pop(fd).locks.pop((self._worker, fd), None)

    def unlink(self, name: str) -> None:
        self._check_alive()
        if self.files.pop(name, None) is None:
            raise FileNotFoundError(name)

    def _check_alive(self) -> None:
        """Raise ``OSError`` in a process that was killed: a destructor runs later than its end."""
        if self._worker.is_dead:
            raise OSError("the simulated process has ended")


class _ProcessDirectory(LockDirectory):
    """The directory as one process has it open."""

    def __init__(self, process: _ProcessFiles) -> None:
        self._process = process

    def close(self) -> None:
        pass

    def names(self) -> list[str]:
        return list(self._process.files)

    def create(self, name: str) -> int:
        if name in self._process.files:
            raise FileExistsError(name)
        self._process.files[name] = SimulatedFile()
        return self.open(name)

    def open(self, name: str) -> int:
        file = self._process.files.get(name)
        if file is None:
            raise FileNotFoundError(name)
        fd = next(self._process.new_descriptor)
        self._process.opened[fd] = file
        return fd

    def has(self, name: str) -> bool:
        return name in self._process.files

    def remove(self, name: str) -> None:
        self._process.files.pop(name, None)
