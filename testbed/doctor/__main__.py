"""The child of `testbed doctor` that tries the kernel's features in scratch namespaces."""

from __future__ import annotations

import json
import sys

from testbed.doctor.kernel import network, probe

if __name__ == "__main__":
    # Outside a scratch namespace the attempts would change the machine itself.
    if len(sys.argv) != 2 or sys.argv[1] == network():
        sys.exit("this is the child of `testbed doctor`, and runs only in scratch namespaces")
    sys.stdout.write(json.dumps(probe()))
