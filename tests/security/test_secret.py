"""The exchange that shows who knows the cluster's secret, and every way to cheat in it."""

import pytest

from sapwood.security import NONCE_BYTES, AuthenticationFailed, ClientSide, ServerSide
from sapwood.wire.apis import Api
from sapwood.wire.codec import (
    Struct,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

SECRET = b"the secret of this cluster"
CLIENT_ID, SERVER_ID = 2, 3


def nonce(number: int) -> bytes:
    return bytes([number]) * NONCE_BYTES


def asked(request: Struct) -> Struct:
    """The request as it comes out of the wire."""
    return decode_request(
        Api.AUTHENTICATE, 0, b"".join(encode_request(Api.AUTHENTICATE, 0, request))
    )


def answered(response: Struct) -> Struct:
    return decode_response(
        Api.AUTHENTICATE, 0, b"".join(encode_response(Api.AUTHENTICATE, 0, response))
    )


class Exchange:
    """Both sides, and all that an eavesdropper hears."""

    def __init__(
        self, *, client_secret: bytes = SECRET, server_secret: bytes = SECRET, number: int = 1
    ) -> None:
        self.client = ClientSide(client_secret, CLIENT_ID, nonce(number))
        self.server = ServerSide(server_secret, SERVER_ID, nonce(number + 100))
        self.heard: list[Struct] = []

    def to_server(self, request: Struct) -> Struct:
        self.heard.append(asked(request))
        self.heard.append(answered(self.server.answer(self.heard[-1])))
        return self.heard[-1]

    def run(self) -> int:
        challenge = self.to_server(self.client.hello())
        return self.client.check(self.to_server(self.client.prove(challenge, SERVER_ID)))


def test_both_sides_learn_who_the_other_is() -> None:
    exchange = Exchange()
    assert exchange.run() == SERVER_ID
    assert exchange.server.client_id == CLIENT_ID


def test_the_secret_is_never_sent_and_a_stranger_is_given_nothing_made_with_it() -> None:
    exchange = Exchange()
    exchange.run()
    assert all(SECRET not in repr(message).encode() for message in exchange.heard)
    challenges = []
    for secret in (SECRET, b"another"):
        stranger = Exchange(server_secret=secret)
        challenges.append(stranger.to_server(stranger.client.hello()))
    assert challenges[0] == challenges[1]


def test_a_client_with_the_wrong_secret_is_found_out() -> None:
    exchange = Exchange(client_secret=b"a guess")
    with pytest.raises(AuthenticationFailed, match="doesn't know"):
        exchange.run()
    assert exchange.server.client_id is None


def test_a_server_with_the_wrong_secret_is_found_out() -> None:
    exchange = Exchange()
    challenge = exchange.to_server(exchange.client.hello())
    exchange.client.prove(challenge)
    impostor = Exchange(client_secret=b"a guess", server_secret=b"a guess")
    impostor.run()
    with pytest.raises(AuthenticationFailed, match="doesn't know"):
        exchange.client.check(impostor.heard[-1])


def test_an_overheard_proof_is_worthless_on_another_connection() -> None:
    overheard = Exchange()
    overheard.run()
    hello, _, proof, _ = overheard.heard
    victim = ServerSide(SECRET, SERVER_ID, nonce(200))
    victim.answer(hello)
    with pytest.raises(AuthenticationFailed):
        victim.answer(proof)
    assert victim.client_id is None


def test_an_overheard_server_cannot_be_played_to_another_client() -> None:
    overheard = Exchange()
    overheard.run()
    _, challenge, _, proof = overheard.heard
    client = ClientSide(SECRET, CLIENT_ID, nonce(50))
    client.hello()
    client.prove(challenge, SERVER_ID)
    with pytest.raises(AuthenticationFailed):
        client.check(proof)


def test_a_client_that_gets_its_own_proof_back_does_not_believe_it() -> None:
    """The one who reflects knows nothing, and takes even the nonce from the client."""
    client = ClientSide(SECRET, CLIENT_ID, nonce(1))
    hello = client.hello()
    proof = client.prove(answered(Struct(node_id=CLIENT_ID, nonce=hello.nonce)))
    with pytest.raises(AuthenticationFailed):
        client.check(answered(Struct(node_id=CLIENT_ID, proof=proof.proof)))


def test_a_servers_proof_sent_back_as_a_clients_is_refused() -> None:
    """Even where ids and nonces are the same, so that only the role tells the two apart."""
    exchange = Exchange()
    exchange.run()
    hello, _, clients, servers = exchange.heard
    for proof, is_accepted in ((clients.proof, True), (servers.proof, False)):
        victim = ServerSide(SECRET, SERVER_ID, nonce(101))
        victim.answer(hello)
        last = asked(Struct(step=1, node_id=CLIENT_ID, proof=proof))
        if is_accepted:
            victim.answer(last)
        else:
            with pytest.raises(AuthenticationFailed):
                victim.answer(last)


def test_a_clients_proof_sent_back_as_a_servers_is_refused() -> None:
    exchange = Exchange()
    proof = exchange.client.prove(exchange.to_server(exchange.client.hello()))
    exchange.to_server(proof)
    with pytest.raises(AuthenticationFailed):
        exchange.client.check(answered(Struct(node_id=SERVER_ID, proof=proof.proof)))


@pytest.mark.parametrize("pretended", [-1, SERVER_ID, 7])
def test_a_proof_holds_for_one_node_id_only(pretended: int) -> None:
    exchange = Exchange()
    challenge = exchange.to_server(exchange.client.hello())
    proof = exchange.client.prove(challenge)
    proof.node_id = pretended
    with pytest.raises(AuthenticationFailed):
        exchange.server.answer(asked(proof))

    victim = ServerSide(SECRET, SERVER_ID, nonce(101))
    victim.answer(asked(Struct(step=0, node_id=pretended, nonce=nonce(1))))
    with pytest.raises(AuthenticationFailed):
        victim.answer(asked(proof))


def test_a_node_that_answers_at_another_ones_address_is_told_apart() -> None:
    exchange = Exchange()
    challenge = exchange.to_server(exchange.client.hello())
    with pytest.raises(AuthenticationFailed, match="it is node 3, not node 4"):
        exchange.client.prove(challenge, 4)


def test_a_server_that_lies_about_its_id_makes_the_clients_proof_useless_elsewhere() -> None:
    exchange = Exchange()
    challenge = exchange.to_server(exchange.client.hello())
    challenge.node_id = 4  # what a middleman says who hands everything on to node 3
    proof = exchange.client.prove(challenge, 4)
    with pytest.raises(AuthenticationFailed):
        exchange.to_server(proof)


@pytest.mark.parametrize("length", [0, 1, NONCE_BYTES - 1, NONCE_BYTES + 1])
def test_a_nonce_of_another_length_is_refused_on_both_sides(length: int) -> None:
    short = bytes(length)
    with pytest.raises(AuthenticationFailed, match=f"{length} bytes"):
        ServerSide(SECRET, SERVER_ID, nonce(1)).answer(
            asked(Struct(step=0, node_id=CLIENT_ID, nonce=short))
        )
    with pytest.raises(AuthenticationFailed, match=f"{length} bytes"):
        ClientSide(SECRET, CLIENT_ID, nonce(1)).prove(
            answered(Struct(node_id=SERVER_ID, nonce=short))
        )
    for side in (ClientSide, ServerSide):
        with pytest.raises(AuthenticationFailed):
            side(SECRET, 1, short)


@pytest.mark.parametrize("kept", [0, 1, 31])
def test_a_truncated_proof_is_refused_on_both_sides(kept: int) -> None:
    exchange = Exchange()
    challenge = exchange.to_server(exchange.client.hello())
    proof = exchange.client.prove(challenge)
    last = exchange.to_server(proof)
    last.proof = last.proof[:kept]
    with pytest.raises(AuthenticationFailed):
        exchange.client.check(last)

    again = Exchange()
    again.to_server(again.client.hello())
    proof.proof = proof.proof[:kept]
    with pytest.raises(AuthenticationFailed):
        again.to_server(proof)


@pytest.mark.parametrize("steps", [[1], [2], [-1], [0, 0], [0, 2], [0, 1, 1], [0, 1, 0]])
def test_a_step_out_of_turn_ends_the_exchange(steps: list[int]) -> None:
    exchange = Exchange()
    *before, last = steps
    proof = Struct()
    for step in before:
        if step == 0:
            proof = exchange.client.prove(exchange.to_server(exchange.client.hello()))
        else:
            exchange.to_server(proof)
    with pytest.raises(AuthenticationFailed, match="out of turn"):
        exchange.server.answer(asked(Struct(step=last, node_id=CLIENT_ID, nonce=nonce(1))))


def test_after_a_wrong_proof_the_right_one_comes_too_late() -> None:
    exchange = Exchange()
    right = exchange.client.prove(exchange.to_server(exchange.client.hello()))
    with pytest.raises(AuthenticationFailed):
        exchange.server.answer(asked(Struct(step=1, node_id=CLIENT_ID, proof=bytes(32))))
    with pytest.raises(AuthenticationFailed):
        exchange.server.answer(asked(right))
    assert exchange.server.client_id is None


def test_a_server_that_refuses_says_why_and_the_client_passes_it_on() -> None:
    client = ClientSide(SECRET, CLIENT_ID, nonce(1))
    refusal = answered(Struct(error_code=58, error_message="no secret is set here"))
    with pytest.raises(AuthenticationFailed, match="no secret is set here"):
        client.prove(refusal)
    with pytest.raises(AuthenticationFailed, match="error 58"):
        client.check(answered(Struct(error_code=58)))


def test_an_empty_secret_proves_nothing() -> None:
    with pytest.raises(AuthenticationFailed, match="empty"):
        Exchange(client_secret=b"", server_secret=b"").run()
