"""HTTP connections to endpoints: allowed addresses, proxies and transport."""
