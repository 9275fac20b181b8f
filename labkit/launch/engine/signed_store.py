"""A store on a port of a node, from which only what ranks of the job wrote is believed."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import torch.distributed as dist

from labkit.launch.engine.proof import code

_CODE_BYTES = 32


class SignedStore(dist.Store):
    """`store`, each value with a code that only who has the job's key can make.

    torch's TCPStore answers who reaches its port, and takes from them new values for old keys. Ranks look up
    in it where the others listen: with another address in there, somebody could stand between two of them.
    Numbers that are counted up have no code.
    """

    def __init__(self, store: dist.Store, key: str) -> None:
        super().__init__()
        self._store, self._key = store, key.encode()

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._store.set(key, cast(str, self._code(key, data) + data))  # it takes bytes too

    def get(self, key: str) -> bytes:
        """ConnectionError for what nobody of the job wrote."""
        raw = self._store.get(key)
        told, data = raw[:_CODE_BYTES], raw[_CODE_BYTES:]
        if not hmac.compare_digest(told, self._code(key, data)):
            raise ConnectionError(f"somebody who is not of this job wrote {key!r} into its store")
        return data

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def check(self, keys: Sequence[str]) -> bool:
        return self._store.check(list(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._store.wait(list(keys)) if timeout is None else self._store.wait(list(keys), timeout)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)

    def num_keys(self) -> int:
        return self._store.num_keys()

    def _code(self, key: str, data: bytes) -> bytes:
        return code(self._key, "store", key, data.hex())
