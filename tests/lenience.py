"""How much longer than on an idle machine things may take: `SHOAL_TEST_LENIENCE`, 1 unless set."""

import os

LENIENCE = float(os.environ.get("SHOAL_TEST_LENIENCE", "1"))
TEST_S = 120 * LENIENCE
"""A test that takes longer hangs; pyproject.toml has the same number, for an idle machine."""
PROGRAM_S = 100 * LENIENCE
"""A program that a test starts and waits for."""
