"""`python -m sapwood.chaos ORDERS`: one client."""

import sys

import msgspec

from sapwood.chaos.orders import Orders
from sapwood.chaos.publisher import Publisher
from sapwood.chaos.subscriber import Subscriber
from sapwood.client import Client


def main() -> None:
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    with Client(orders.bootstrap, orders.name) as client:
        role = Publisher if orders.role == "publisher" else Subscriber
        role(orders, client).run()


if __name__ == "__main__":
    main()
