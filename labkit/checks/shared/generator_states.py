"""Whether bytes are the state of a random generator, or numbers that only have its size."""

from __future__ import annotations

import torch

GPU_STATE_BYTES = 16  # of a generator on a GPU: its seed and how far it is
MOST_BLOCKS = 2000  # of NUMBERS, after which a state is no longer looked for: a million numbers and more
NUMBERS = 624  # that MT19937 makes at once (Matsumoto and Nishimura, ACM TOMACS 1998)
_SEED = slice(0, 8)
_BLOCK = slice(24, 24 + 8 * NUMBERS)  # of at::CPUGeneratorImplStateLegacy, after seed, left, seeded and next


def is_generator_state(storage: torch.UntypedStorage) -> bool:
    """A CPU generator's, which its seed and how often it was asked make and nothing else; or bytes of the
    size of a GPU's, where there is one.
    """
    if storage.nbytes() == GPU_STATE_BYTES:
        return torch.cuda.is_available()
    if storage.nbytes() != torch.get_rng_state().nbytes or storage.device.type != "cpu":
        return False
    return _comes_of_its_seed(bytes(torch.empty(0, dtype=torch.uint8).set_(storage).numpy()))


def has_more_to_give(storage: torch.UntypedStorage) -> bool:
    """Whether a CPU generator's state has numbers beside those that come of its seed: a normal number is made
    with another one, which waits there. No seed says what these bytes are.
    """
    return any(bytes(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())[_BLOCK.stop :])


def _comes_of_its_seed(state: bytes) -> bool:
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(state[_SEED], "little", signed=True))
    for _ in range(MOST_BLOCKS):
        if bytes(generator.get_state().numpy())[_BLOCK] == state[_BLOCK]:
            return True
        torch.rand(NUMBERS, generator=generator)
    return False
