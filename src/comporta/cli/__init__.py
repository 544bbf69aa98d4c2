"""The command line, ``comporta``. It needs the extra ``cli``.

Each command is a module of the same name: ``top``, ``workers``, ``doctor``, ``upstream``, ``cache``, ``run``,
``runs``, ``sim``, ``serve``, ``demo``, ``config``, ``db``, ``tokens``, ``batch`` and ``completion``. The
others support them:

- ``root_command``: the list of commands, which it imports on demand, and the handling of errors
- ``console``: tables, JSON and the spinner
- ``state_option``: the argument STATE, and a store to inspect without becoming one of its workers
- ``database_option``: the options for the database, which it finds as ``serve`` does
- ``redis_connection``: a plain connection for commands that the store itself never sends
- ``doctor_checks``, ``doctor_redis``, ``doctor_shared``, ``doctor_portals``: the checks of ``doctor``
- ``run_files``, ``run_plan``, ``run_report``, ``run_step``, ``run_transport``,
  ``run_url_template``: the parts of ``run``
- ``sim_options``, ``sim_report``, ``sim_charts``: the parts of ``sim``
- ``top_source``, ``top_database``, ``top_render``, ``top_upstreams``, ``top_screen``: the parts of ``top``
- ``upstream_targets``, ``upstream_tables``: where ``upstream`` reads and changes upstreams (a store or a
  service), and what it prints
"""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line; if its extra is not installed, exit with one sentence that says so."""
    try:
        from comporta.cli.root_command import comporta  # noqa: PLC0415 - a missing extra is one sentence

        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # the terminal may lack our characters
        comporta(prog_name="comporta")
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"comporta: the command line needs {error.name}: pip install 'comporta[cli]'")
    except KeyboardInterrupt:  # before a command started
        sys.exit(EXIT_INTERRUPTED)
