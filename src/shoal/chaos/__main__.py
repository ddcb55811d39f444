"""`python -m shoal.chaos` is `shoal chaos`."""

import sys

from shoal.chaos.command import main

sys.exit(main())
