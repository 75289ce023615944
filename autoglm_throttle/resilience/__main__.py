"""``python -m autoglm_throttle.resilience``: print the page on the states of a breaker."""

import sys

from autoglm_throttle.resilience.states_page import states_page

if __name__ == "__main__":
    sys.stdout.write(states_page())
