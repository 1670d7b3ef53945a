"""HTTP connections to endpoints: which addresses are allowed, through which proxy, and the transport."""
