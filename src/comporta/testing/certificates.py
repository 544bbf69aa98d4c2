"""Short-lived TLS certificates for servers in tests.

The standard library can verify certificates but cannot create them, so this uses the program ``openssl``.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from comporta.testing.temp_directory import TempDirectory

_DAYS = "2"

# A configuration of our own, so that the machine's does not matter. Python 3.13 and newer require these
# extensions, because they verify certificates strictly.
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
    """A certificate for 127.0.0.1 and localhost, and the certificate authority (CA) that signed it.

    ``cert_file``, ``key_file`` and ``ca_file`` are paths of PEM files.
    """

    def __init__(self) -> None:
        program = shutil.which("openssl")
        if program is None:
            raise RuntimeError("tls=True needs the program openssl to create a certificate: install openssl")
        self._program = program
        self._directory = TempDirectory()
        self.ca_file = self._path("ca.crt")
        self.cert_file = self._path("server.crt")
        self.key_file = self._path("server.key")
        self._create()

    def _create(self) -> None:
        settings, authority_key, request = map(self._path, ("openssl.cnf", "ca.key", "server.csr"))
        Path(settings).write_text(_CONFIGURATION, encoding="utf-8")
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-config", settings]
        self_signed = ["-x509", "-extensions", "authority", "-days", _DAYS, "-out", self.ca_file]
        self._run("req", *new_key, "-keyout", authority_key, *self_signed)
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
        return str(self._directory.path / name)
