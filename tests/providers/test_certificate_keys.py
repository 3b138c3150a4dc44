"""Certificate keys: what one tenant's many large keys cost the other tenants."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from infra.providers.certificates.pem import key_pem, new_key, public_digest, read_key


def test_a_large_key_is_read_quickly() -> None:
    """A listing reads the keys of all tenants; validating one takes a third of a second."""
    key = new_key("RSA-4096")
    pem = key_pem(key)
    started_at = time.process_time()
    keys = [read_key(pem) for _ in range(10)]
    assert time.process_time() - started_at < 0.5
    assert {public_digest(each) for each in keys if each is not None} == {public_digest(key)}


def test_large_keys_are_generated_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each occupies a CPU for seconds, and the process makes the calls for all tenants."""
    running_counts, original = list[int](), rsa.generate_private_key
    running_threads = set[int]()

    def generate(exponent: int, _size: int) -> rsa.RSAPrivateKey:
        running_threads.add(threading.get_ident())
        running_counts.append(len(running_threads))
        key = original(exponent, 1024)  # other threads run meanwhile
        running_threads.remove(threading.get_ident())
        return key

    monkeypatch.setattr(rsa, "generate_private_key", generate)
    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(new_key, "RSA-4096") for _ in range(16)]:
            each.result()
    assert running_counts == [1] * 16
