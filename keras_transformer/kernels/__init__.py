"""What is special to one backend, each beside the general line it replaces."""
