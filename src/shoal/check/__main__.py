"""The process that shoal.check.child starts to run the checks."""

import json
import sys

from shoal.check.child import serve

if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
