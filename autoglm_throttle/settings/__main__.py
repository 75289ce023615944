"""``python -m autoglm_throttle.settings``: print the settings page."""

import sys

from autoglm_throttle.settings.page import settings_page

if __name__ == "__main__":
    sys.stdout.write(settings_page())
