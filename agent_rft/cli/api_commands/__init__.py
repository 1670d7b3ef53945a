"""Commands that call the API server or change its database: jobs, keys, traces and the audit log."""
