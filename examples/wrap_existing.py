"""Protecting an app that exists already, without touching it.

Run it:

    pip install . uvicorn
    AUTOGLM_THROTTLE_USER_LIMIT=5/minute uvicorn examples.wrap_existing:app

and ask six times: curl -i localhost:8000/
"""

from autoglm_throttle import ThrottleMiddleware
from examples.existing_service import app as existing

app = ThrottleMiddleware(existing)
