"""The live page: one JSON document per step of the history, drawn by a script or by the server."""
