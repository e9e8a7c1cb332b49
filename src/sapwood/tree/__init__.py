"""Who hangs below whom: the rules of the tree that carries the log outwards.

Core nodes are its roots, edges hang below them or below each other. In come requests, answers,
losses and ticks; out go effects; time and chance are arguments. A parent is asked again and again
by each of its children, and answers with news: beacons and ancestors flow down, claims of who
hangs where flow up. A core node's claims reach the supervisor, which the controller is, and become
records of the metadata log. Always: nobody has two parents, and whoever is followed upwards is
ever nearer to the core by `Advert`, so there is no loop at any instant. Healing needs no
supervisor.
"""
