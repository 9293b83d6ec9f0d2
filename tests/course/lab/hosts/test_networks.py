"""Hosts with networks of their own, and what is left of them: nothing."""

import os
import subprocess

import psutil
import pytest

from course.lab.hosts import networks as made
from course.lab.hosts.networks import free_port, networks


def children():
    return [child.pid for child in psutil.Process().children(recursive=True)]


def interfaces(host):
    done = subprocess.run([*host.prefix, "cat", "/proc/net/dev"], capture_output=True,
                          text=True, timeout=60)
    return sorted(line.split(":")[0].strip() for line in done.stdout.splitlines()[2:])


def test_each_host_has_an_address_of_its_own_and_reaches_the_others():
    before = children()
    with networks(3) as hosts:
        if not hosts[0].own_network:
            pytest.skip("this machine does not allow network namespaces")
        assert len({host.address for host in hosts}) == 3
        for host in hosts:
            assert interfaces(host)[:1] == ["eth0"] and "lo" in interfaces(host)
        listen = ("import socket; s = socket.create_server(('', 29400)); print(1, "
                  "flush=True); c, who = s.accept(); print(who[0])")
        server = subprocess.Popen([*hosts[0].prefix, "python3", "-c", listen],
                                  stdout=subprocess.PIPE, text=True)
        assert server.stdout.readline() == "1\n"
        call = f"import socket; socket.create_connection(('{hosts[0].address}', 29400))"
        subprocess.run([*hosts[2].prefix, "python3", "-c", call], check=True, timeout=60)
        assert server.communicate(timeout=60)[0] == f"{hosts[2].address}\n"
    assert children() == before
    assert not any(name.startswith(("switch", "port")) for name in os.listdir(
        "/sys/class/net"))


def test_where_namespaces_are_refused_all_hosts_share_loopback(monkeypatch):
    monkeypatch.setattr(made, "_run", refused)
    before = children()
    with networks(2) as hosts:
        assert [(host.address, host.prefix) for host in hosts] == [("127.0.0.1", [])] * 2
        assert 1024 <= free_port(hosts[0]) < 2**16
    assert children() == before


def refused(*words):
    raise subprocess.CalledProcessError(1, words, stderr=b"Operation not permitted")


def test_loopback_can_be_asked_for(monkeypatch):
    monkeypatch.setattr(made, "_namespaces", lambda *_: pytest.fail("makes networks"))
    with networks(2, own=False) as hosts:
        assert not hosts[0].own_network


@pytest.mark.parametrize("count", [0, 201])
def test_a_number_of_hosts_that_cannot_be_is_refused(count):
    with pytest.raises(ValueError, match=f"from 1 to 200 hosts, got {count}"):
        with networks(count):
            pass
