"""``python -m autoglm_throttle.observe``: print the page of metrics."""

import sys

from autoglm_throttle.observe.page import metrics_page

if __name__ == "__main__":
    sys.stdout.write(metrics_page())
