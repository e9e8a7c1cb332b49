"""Kafka's APIs, one file per family, over replicas and metadata.

In comes a request frame; out goes its response frame, now or when what it waits for has
happened. A handler reads the image and the partitions of this node, and changes the cluster
only by records in the metadata log. Always: what one item of a request did wrong fails that
item with Kafka's code for it; bytes that can't be understood cost the sender its connection;
neither touches anybody else.
"""

from sapwood.broker.broker import Broker
from sapwood.broker.state import BrokerConfig

__all__ = ["Broker", "BrokerConfig"]
