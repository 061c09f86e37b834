"""`relive serve`: the gateway, the admin API and what a server needs around them."""
