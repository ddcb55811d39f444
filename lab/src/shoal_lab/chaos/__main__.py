"""`python -m shoal_lab.chaos` is `shoal chaos`."""

import sys

from shoal_lab.chaos.command import main

sys.exit(main())
