"""Certificates to throw away, for servers that speak TLS in tests.

The standard library can check certificates but not make them, so the program ``openssl`` does.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from comporta.testing.folders import Folder

_DAYS = "2"

# Our own settings, so that those of the machine do not matter. The extensions are what Python 3.13 and newer
# insist on when they verify strictly.
_CONFIGURATION = """
[req]
distinguished_name = name
prompt = no
[name]
commonName = comporta tests
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
subjectAltName = IP:127.0.0.1, DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


class Certificate:
    """A certificate for 127.0.0.1 and localhost, and the authority that signed it and nothing else."""

    def __init__(self) -> None:
        program = shutil.which("openssl")
        if program is None:
            raise RuntimeError("tls=True needs the program openssl to make a certificate")
        self._program = program
        self._folder = Folder()
        self.ca_file = self._path("ca.crt")
        self.cert_file = self._path("server.crt")
        self.key_file = self._path("server.key")
        self._make()

    def _make(self) -> None:
        settings, authority_key, request = map(self._path, ("openssl.cnf", "ca.key", "server.csr"))
        Path(settings).write_text(_CONFIGURATION, encoding="utf-8")
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-config", settings]
        signed = ["-x509", "-extensions", "authority", "-days", _DAYS, "-out", self.ca_file]
        self._run("req", *new_key, "-keyout", authority_key, *signed)
        self._run("req", *new_key, "-keyout", self.key_file, "-subj", "/CN=localhost", "-out", request)
        signer = ["-CA", self.ca_file, "-CAkey", authority_key, "-set_serial", "2", "-days", _DAYS]
        extensions = ["-extfile", settings, "-extensions", "server"]
        self._run("x509", "-req", "-in", request, *signer, *extensions, "-out", self.cert_file)

    def _run(self, *arguments: str) -> None:
        ran = subprocess.run(  # noqa: S603 - a program of this machine, with arguments from above
            [self._program, *arguments], capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise RuntimeError(f"openssl {arguments[0]} failed: {ran.stderr.strip()}")

    def _path(self, name: str) -> str:
        return str(self._folder.path / name)
