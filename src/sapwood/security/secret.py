"""Two sides prove to each other that they know the cluster's secret, and neither sends it.

    client                                server
      HELLO: its id, a nonce   ------->
                               <-------     its id, a nonce
      PROOF: a proof           ------->
                               <-------     a proof

A proof is an HMAC keyed with the secret over the prover's role, both ids and both nonces. The
other's nonce makes an overheard proof worthless; the role, one that is sent back to where it came
from; the ids, one that was made for somebody else. The client proves itself first, so that a
stranger who connects is given nothing to try guesses of the secret against.
"""

import enum
import hashlib
import hmac
import struct

from sapwood.wire.codec import Struct

NONCE_BYTES = 32

_CONTEXT = b"sapwood authenticate 0"
_IDS = struct.Struct(">ii")


class AuthenticationFailed(Exception):
    """The other side could not show that it belongs to this cluster, or was told that we don't."""


class Step(enum.IntEnum):
    HELLO = 0
    PROOF = 1


class Role(enum.Enum):
    CLIENT = b"client"
    SERVER = b"server"


class ClientSide:
    """The side that connects: hello, then prove, then check."""

    def __init__(self, secret: bytes, node_id: int, nonce: bytes) -> None:
        self._secret = secret
        self._node_id = node_id
        self._nonce = _checked(nonce)
        self._server_id = -1
        self._server_nonce = b""

    def hello(self) -> Struct:
        return Struct(step=int(Step.HELLO), node_id=self._node_id, nonce=self._nonce)

    def prove(self, answer: Struct, expected_id: int | None = None) -> Struct:
        """What to send after the answer to hello; `expected_id` is who should have given it."""
        _check_error(answer)
        if expected_id is not None and answer.node_id != expected_id:
            raise AuthenticationFailed(f"it is node {answer.node_id}, not node {expected_id}")
        self._server_id = answer.node_id
        self._server_nonce = _checked(answer.nonce)
        return Struct(
            step=int(Step.PROOF), node_id=self._node_id, proof=self._proof_of(Role.CLIENT)
        )

    def check(self, answer: Struct) -> int:
        """The server's node id, once its answer to the proof has shown that it is one of us."""
        _check_error(answer)
        if not hmac.compare_digest(answer.proof, self._proof_of(Role.SERVER)):
            raise AuthenticationFailed("it doesn't know the cluster's secret")
        return self._server_id

    def _proof_of(self, role: Role) -> bytes:
        ids = (self._node_id, self._server_id)
        return _proof(self._secret, role, ids, self._nonce, self._server_nonce)


class ServerSide:
    """The side that was connected to. It lives for one attempt: no nonce is used twice."""

    def __init__(self, secret: bytes, node_id: int, nonce: bytes) -> None:
        self.client_id: int | None = None  # set when it has been proved
        self._secret = secret
        self._node_id = node_id
        self._nonce = _checked(nonce)
        self._claimed_id = -1
        self._client_nonce = b""
        self._next: Step | None = Step.HELLO

    def answer(self, request: Struct) -> Struct:
        """The answer to one request; after AuthenticationFailed there is no further one."""
        awaited, self._next = self._next, None
        if request.step != awaited:
            raise AuthenticationFailed("a step of the exchange is out of turn")
        if awaited is Step.HELLO:
            self._claimed_id = request.node_id
            self._client_nonce = _checked(request.nonce)
            self._next = Step.PROOF
            return Struct(node_id=self._node_id, nonce=self._nonce)
        if request.node_id != self._claimed_id or not hmac.compare_digest(
            request.proof, self._proof_of(Role.CLIENT)
        ):
            raise AuthenticationFailed("it doesn't know the cluster's secret")
        self.client_id = self._claimed_id
        return Struct(node_id=self._node_id, proof=self._proof_of(Role.SERVER))

    def _proof_of(self, role: Role) -> bytes:
        ids = (self._claimed_id, self._node_id)
        return _proof(self._secret, role, ids, self._client_nonce, self._nonce)


def _proof(
    secret: bytes, role: Role, ids: tuple[int, int], client_nonce: bytes, server_nonce: bytes
) -> bytes:
    if not secret:
        raise AuthenticationFailed("an empty secret is everybody's: make one")
    # Every part has a fixed length, so no two sets of parts make the same whole.
    said = _CONTEXT + role.value + _IDS.pack(*ids) + client_nonce + server_nonce
    return hmac.digest(secret, said, hashlib.sha256)


def _checked(nonce: bytes) -> bytes:
    if len(nonce) != NONCE_BYTES:
        raise AuthenticationFailed(f"a nonce has {len(nonce)} bytes instead of {NONCE_BYTES}")
    return nonce


def _check_error(answer: Struct) -> None:
    if answer.error_code:
        raise AuthenticationFailed(answer.error_message or f"refused: error {answer.error_code}")
