"""Bring up two data centres, measure the distance between them, and move them apart.

python examples/testbed_hello.py
"""

from testbed import Testbed


def round_trip(testbed: Testbed) -> str:
    """The last line of ping's summary, from dc1 to dc2 over the shaped WAN."""
    ping = ["ping", "-q", "-c", "5", "-i", "0.2", testbed.sites["dc2"].wan_ip]
    return testbed.sites["dc1"].run(ping).stdout.splitlines()[-1]


with Testbed.up("pair", name="hello", calibrate=False, on_progress=print) as testbed:
    print("10 ms apart:", round_trip(testbed))
    testbed.link("dc1", "dc2").set(delay="40ms", rate="20mbit")
    print("40 ms apart:", round_trip(testbed))
    for link in testbed.links():
        rate, delay = link["rate_bps"] / 1e6, link["delay_s"] * 1e3
        print(f"{link['src']} to {link['dst']}: {rate:g} Mbit/s, {delay:g} ms")
