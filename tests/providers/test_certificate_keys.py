"""Keys of certificates: what it costs the others that a tenant has many large ones."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from infra.providers.certificates.pem import key_pem, new_key, public_digest, read_key


def test_a_large_key_is_read_in_no_time() -> None:
    """A listing reads the keys of all tenants; to validate one takes a third of a second."""
    key = new_key("RSA-4096")
    pem = key_pem(key)
    began = time.process_time()
    read = [read_key(pem) for _ in range(10)]
    assert time.process_time() - began < 0.5
    assert {public_digest(each) for each in read if each is not None} == {public_digest(key)}


def test_large_keys_are_made_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a processor for seconds, and the process makes the calls of all tenants."""
    key_sizes, really = list[int](), rsa.generate_private_key
    under_way = set[int]()

    def generate(exponent: int, _size: int) -> rsa.RSAPrivateKey:
        under_way.add(threading.get_ident())
        key_sizes.append(len(under_way))
        key = really(exponent, 1024)  # other threads run meanwhile
        under_way.remove(threading.get_ident())
        return key

    monkeypatch.setattr(rsa, "generate_private_key", generate)
    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(new_key, "RSA-4096") for _ in range(16)]:
            each.result()
    assert key_sizes == [1] * 16
