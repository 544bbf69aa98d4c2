"""Mutation testing of the modules that decide: ``make mutants``.

- ``targets``: the modules, in groups
- ``mutants``: a module with one change, and how to put it into a process that runs
- ``generation``: makes every mutant of a module, with the operators of mutmut
- ``in_process``: runs tests in this process, without servers and other processes
- ``line_coverage``: records once which tests execute which line
- ``runner``: tries each mutant in a fork, with the tests that execute its line
- ``results``: what is known already, so that a run can be resumed
- ``accepted``: the survivors that are accepted, each with a reason (``accepted.toml``)
- ``report``: the table, the survivors as diffs, and whether the run passes

mutmut itself works on a copy of the tree, replaces each function by one that selects a mutant at run time,
leaves out functions with decorators, and chooses tests by function. cosmic-ray starts all tests again for
each mutant. Here a fork replaces the code of one function, so that nothing is copied and no server is
started, and only the tests run that execute the changed statement.

``test_generation.py`` needs mutmut, so ``make mutants`` runs it, before everything else; the other tests are
in ``tests/mutation``.
"""
