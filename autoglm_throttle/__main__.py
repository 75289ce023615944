"""``python -m autoglm_throttle``."""

import sys

from autoglm_throttle.cli import main

if __name__ == "__main__":
    sys.exit(main())
