"""Messages that are known to come, however long a busy machine takes over each."""

from sapwood import Client, Message

PATIENCE_S = 30.0
SOON_S = 0.5


def get_all(client: Client, topic: str, count: int) -> list[Message]:
    """So many, and what comes soon after them, which is more than should."""
    found: list[Message] = []
    while message := client.get(topic, PATIENCE_S if len(found) < count else SOON_S):
        found.append(message)
    return found
