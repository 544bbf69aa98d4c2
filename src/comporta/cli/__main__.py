"""Lets ``python -m comporta.cli`` run the same command line as ``comporta``."""

from comporta.cli import main

if __name__ == "__main__":
    main()
