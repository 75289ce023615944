"""Measurements that print the figures quoted elsewhere, each beside a control or a peer in the same run."""
