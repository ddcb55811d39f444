"""The process that runs the checks, for shoal.check.child."""

import json
import sys

from shoal.check.child import serve

if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
