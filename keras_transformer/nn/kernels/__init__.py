"""Code special to one backend, each beside the general version it replaces."""
