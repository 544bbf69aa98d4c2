"""``comporta demo``: the real service with simulated portals and users, and scenarios that break things.

Only the portals and the users are simulated. Workers, state, database, limits and breakers are the same as
in ``comporta serve``.

- ``scenarios``: the scenarios as data
- ``config``: limits, timings and the settings file of the workers
- ``runner``: runs the scenarios and checks what they promise
- ``narrator``: prints the steps and publishes them to the dashboard
- ``poller``, ``snapshot``: read the state of the demo over HTTP, and answer questions about it
- ``processes``: starts and stops the child processes
- ``child_process``: the entry point of each child process; ``parent_pipe``: how it talks to its parent
- ``app``: the application that the workers serve
- ``simulated_users``: the load
- ``crowd``: people who search at once, for one of the scenarios
"""
