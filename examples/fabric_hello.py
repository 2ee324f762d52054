"""Ask every site of a testbed who it is, over SSH, all at once.

python examples/fabric_hello.py /run/stormbed/NAME/ssh_config
"""

import sys

from fabric import Config, ThreadingGroup
from paramiko import SSHConfig

ssh_config = sys.argv[1]
sites = sorted(SSHConfig.from_path(ssh_config).get_hostnames() - {"*"})

with ThreadingGroup(*sites, config=Config(runtime_ssh_path=ssh_config)) as group:
    results = group.run("hostname && uname -sr && hostname --all-ip-addresses", hide=True)

for connection in sorted(results, key=lambda connection: connection.original_host):
    name, kernel, addresses = results[connection].stdout.splitlines()
    print(f"{connection.original_host}: I am {name} on {kernel}, at {addresses.strip()}")
