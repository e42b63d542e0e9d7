"""`python -m wafer_triton`: the command line where no `wafer-triton` is on the path."""

import sys

from wafer_triton.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
