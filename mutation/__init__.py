"""Mutation testing of the modules that decide: ``make mutants``.

- ``targets``: the modules, in groups
- ``mutants``: a module with one change, and how to apply it to a running process
- ``generation``: makes every mutant of a module, with the operators of mutmut
- ``in_process``: runs tests in this process, without servers and other processes
- ``line_coverage``: records once which tests execute which line
- ``runner``: tries each mutant in a fork, with the tests that execute its line
- ``results``: known results, so that a run can be resumed
- ``accepted``: the survivors that are accepted, each with a reason (``accepted.toml``)
- ``report``: the table, the survivors as diffs, and whether the run passes

mutmut itself works on a copy of the tree, replaces each function by one that selects a mutant at run time,
skips functions with decorators, and chooses tests by function. cosmic-ray starts all tests again for each
mutant. Here a fork replaces the code of one function, so nothing is copied, no server is started, and only
the tests that execute the changed statement run.

``test_generation.py`` needs mutmut, so ``make mutants`` runs it, before everything else; the other tests are
in ``tests/mutation``.
"""
