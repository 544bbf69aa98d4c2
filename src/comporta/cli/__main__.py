"""So that ``python -m comporta.cli`` is the same as ``comporta``."""

from comporta.cli import main

if __name__ == "__main__":
    main()
