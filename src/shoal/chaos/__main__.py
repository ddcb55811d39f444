"""`python -m shoal.chaos` is `shoal chaos`."""

import sys

from shoal.chaos import main

sys.exit(main())
