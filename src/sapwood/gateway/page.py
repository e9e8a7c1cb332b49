"""The page that a browser gets."""

WELCOME = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sapwood</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; margin: 3rem auto; max-width: 40rem }
  a { color: #35612f }
</style>
<h1>Sapwood</h1>
<p>A message broker is running here.
<ul>
  <li><a href="status">status</a> and <a href="brokers">brokers</a>
  <li><a href="topics">topics</a>, <a href="partitions">partitions</a>,
      <a href="raft_status">replicas</a>
  <li><a href="producers">producers</a>, <a href="consumers">consumers</a>
  <li><a href="metrics">metrics</a>, <a href="openapi.json">the API's description</a>
</ul>
</html>
"""
