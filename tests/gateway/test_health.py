"""What a gateway says of the node that answered it."""

import sapwood
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.health import status
from tests.broker.asking import on_a_loop


@on_a_loop
async def test_each_node_has_a_role_for_a_gateway_that_has_only_just_begun() -> None:
    with sapwood.Cluster(nodes=3) as cluster:
        roles = []
        for address in cluster.bootstrap.split(","):
            gateway = Cluster([address], None, None)
            try:
                roles.append((await status(gateway)).role)
            finally:
                await gateway.close()
        assert sorted(roles) == ["manager copy", "manager copy", "primary manager"]
