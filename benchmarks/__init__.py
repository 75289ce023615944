"""Measurements of the documented figures, each with a control or a peer in the same run."""
