"""IPv4 networks inside IPv6, as dual-stack servers report them, become networks of IPv4."""

from __future__ import annotations

import pytest

from autoglm_throttle.settings import ConfigError, Settings


@pytest.mark.parametrize(
    ("network", "proxies"),
    [
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::FFFF:a00:0/104", "10.0.0.0/8"),
        ("::ffff:192.168.1.0/120", "192.168.1.0/24"),
        ("::ffff:10.0.0.1/128", "10.0.0.1/32"),
        ("::ffff:0.0.0.0/96", "0.0.0.0/0"),
        ("::ffff:10.0.0.0/104,unix,10.0.0.0/8", "10.0.0.0/8,unix"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::/32", "2001:db8::/32"),
    ],
)
def test_mapped_network_becomes_ipv4_network(network: str, proxies: str) -> None:
    assert Settings(trusted_proxies=network).text_of("trusted_proxies") == proxies
    assert Settings(trusted_proxies=network.split(",")).text_of("trusted_proxies") == proxies


@pytest.mark.parametrize("network", ["::ffff:0:0/90", "::ffff:10.0.0.0/95", "::ffff:0:0/80"])
def test_mapped_network_of_short_prefix_is_a_problem(network: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(trusted_proxies=network)
    (problem,) = caught.value.problems
    assert problem.variable == "trusted_proxies"
    assert "IPv4" in str(problem)
