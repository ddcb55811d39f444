"""The fleet against real Ray; `make test-cluster` installs it."""
