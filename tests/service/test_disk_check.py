"""Full disks, real ones: health names them, and what needs no room goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.service.harness import async_test, run_service
from tests.support import within

from comporta.database.urls import open_database
from comporta.service import disk_check
from comporta.service.disk_check import DiskCheck
from comporta.stores.shared.directory import directory_path
from comporta.testing import PostgresServer, ProcurementServer

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
MEGABYTES = 12
SEARCH = "/v1/search?date_from=2026-03-02&date_to=2026-03-02&ufs="


class SmallDisk:
    """A disk of a few megabytes, mounted at ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        with suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        self._filler.unlink()

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"


@pytest.fixture
def mount() -> Iterator[Callable[[Path], SmallDisk]]:
    """Return a function that mounts a small disk at a directory, until the test ends."""
    mounted = []

    def mount_at(folder: Path) -> SmallDisk:
        folder.mkdir(exist_ok=True)
        options = f"size={MEGABYTES}m,mode=755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
        mounted.append(folder)
        return SmallDisk(folder)

    yield mount_at
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def shared_name() -> Iterator[str]:
    """Yield a name for ``shared://`` that no other test uses."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    shutil.rmtree(directory_path(name), ignore_errors=True)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check whenever health is read."""
    monkeypatch.setattr(disk_check, "CHECK_SECONDS", 0.0)


@root_only
@pytest.mark.usefixtures("always")
@async_test
async def test_health__disk_of_sqlite_full__warns_and_searches_go_on(
    tmp_path: Path, mount: Callable[[Path], SmallDisk]
) -> None:
    disk = mount(tmp_path / "disk")
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals:
        async with run_service(
            tmp_path,
            DATABASE_URL=f"sqlite:///{disk.folder}/service.db",
            addresses_pncp=portals.pncp.url,
            addresses_pcp=portals.pcp.url,
            allow_private_addresses="true",
            batch_processor="tests.service.test_identity:echo",
        ) as service:
            assert (await service.client.get(SEARCH + "SP")).json()["complete"]
            assert (await service.client.get("/v1/health")).json()["disk"] == {"status": "ok", "reasons": []}
            disk.fill()
            reply = await service.client.get("/v1/health")
            cached, fetched = [await service.client.get(SEARCH + uf) for uf in ("SP", "RJ")]
            job = await service.client.post("/ultra-batch/jobs", json={"accounts": ["a"] * 50_000})
            missing = await service.client.get("/ultra-batch/jobs/none")
            disk.free()
            healed = await service.client.get("/v1/health")
    reason = "the disk of the database cannot be written: No space left on device"
    health = reply.json()
    assert (reply.status_code, health["status"]) == (200, "warn")
    assert health["disk"] == {"status": "warn", "reasons": [reason]}
    assert reason in health["reasons"]
    assert (cached.status_code, cached.json()["freshness"]) == (200, "fresh")
    assert (fetched.status_code, fetched.json()["complete"]) == (200, True)
    assert (job.status_code, missing.status_code) == (503, 404)
    assert healed.json()["disk"]["status"] == "ok"


@root_only
@pytest.mark.usefixtures("always")
@async_test
async def test_health__disk_of_postgresql_full__warns_and_searches_go_on(
    tmp_path: Path, mount: Callable[[Path], SmallDisk], postgres: PostgresServer
) -> None:
    folder = Path(postgres.command("SHOW data_directory")[0][0]).parent / "small"
    disk = mount(folder)
    (folder / "tables").mkdir()
    shutil.chown(folder / "tables", "nobody")
    postgres.command(f"CREATE TABLESPACE small LOCATION '{folder}/tables'")
    postgres.command("CREATE DATABASE small TABLESPACE small")
    try:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals:
            async with run_service(
                tmp_path,
                DATABASE_URL=postgres.url.removesuffix("postgres") + "small",
                addresses_pncp=portals.pncp.url,
                addresses_pcp=portals.pcp.url,
                allow_private_addresses="true",
            ) as service:
                assert (await service.client.get(SEARCH + "SP")).json()["complete"]
                assert (await service.client.get("/v1/health")).json()["disk"]["status"] == "ok"
                disk.fill()
                reply = await service.client.get("/v1/health")
                cached, fetched = [await service.client.get(SEARCH + uf) for uf in ("SP", "RJ")]
                disk.free()
                healed = await service.client.get("/v1/health")
    finally:
        postgres.command("DROP DATABASE small WITH (FORCE)")
        postgres.command("DROP TABLESPACE small")
    assert (reply.status_code, reply.json()["disk"]) == (
        200,
        {
            "status": "warn",
            "reasons": ["the disk of the database cannot be written: the server has no room left"],
        },
    )
    assert (cached.status_code, cached.json()["freshness"]) == (200, "fresh")
    assert (fetched.status_code, fetched.json()["complete"]) == (200, True)
    assert healed.json()["disk"]["status"] == "ok"


@pytest.mark.usefixtures("always")
@async_test
async def test_check__postgresql_read_only_or_gone__says_the_first_only(postgres: PostgresServer) -> None:
    writable = open_database(postgres.url)
    read_only = open_database(f"{postgres.url}?options=-cdefault_transaction_read_only%3Don")
    gone = open_database(f"postgresql://postgres@127.0.0.1:{postgres.port + 1}/nothing?timeout=1")
    reasons = []
    for database in (writable, read_only, gone):
        check = DiskCheck({}, database)
        reasons.append(await check.run())
        check.close()
        database.close()
    expected = "the disk of the database cannot be written: the server is read-only"
    assert reasons == [[], [expected], []]


@root_only
@async_test
async def test_health__disk_of_the_shared_state_full__warns_and_limits_hold(
    tmp_path: Path, shared_name: str, mount: Callable[[Path], SmallDisk]
) -> None:
    async with run_service(tmp_path, COMPORTA_STATE=f"shared://{shared_name}?memory=4") as service:
        limiter = service.container.upstreams["pncp"].limiter
        assert await limiter.acquire("pncp")  # opens the table
        disk = mount(Path(directory_path(shared_name)))  # over it: the open table stays where it is
        disk.fill()
        reply = await service.client.get("/v1/health")
        assert await limiter.acquire("pncp")
    reason = "the disk of the shared state cannot be written: No space left on device"
    assert reason in reply.json()["disk"]["reasons"]


@async_test
async def test_check__disk_hangs__is_reported_within_the_deadline_and_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, started = threading.Event(), []

    def hang(directory: Path) -> None:
        started.append(directory)
        ended.wait()

    monkeypatch.setattr(disk_check, "TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(disk_check, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(disk_check, "_write_file", hang)
    check = DiskCheck({"the database": tmp_path, "the sheets": tmp_path})
    for _ in range(3):
        with within(1.0):
            assert await check.run() == [
                "the disk of the database did not respond within 0.05 s",
                "the disk of the sheets did not respond within 0.05 s",
            ]
    ended.set()
    check.close()
    assert len(started) == 2


@async_test
async def test_check__run_often__writes_once_in_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    monkeypatch.setattr(disk_check, "_write_file", written.append)
    check = DiskCheck({"the sheets": tmp_path})
    for _ in range(3):
        assert await check.run() == []
    assert written == [tmp_path]
    monkeypatch.setattr(disk_check, "CHECK_SECONDS", 0.0)
    assert await check.run() == []
    assert written == [tmp_path] * 2
    check.close()


@async_test
async def test_check__nothing_to_check_or_no_directory_yet__is_fine(tmp_path: Path) -> None:
    nothing, missing = DiskCheck({}), DiskCheck({"the sheets": tmp_path / "missing"})
    assert (await nothing.run(), await missing.run()) == ([], [])
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - names only
    missing.close()
    async with run_service(tmp_path, batch_sheets="files", sheets_folder=str(tmp_path / "s")) as service:
        assert (await service.client.get("/v1/health")).json()["disk"]["status"] == "ok"
