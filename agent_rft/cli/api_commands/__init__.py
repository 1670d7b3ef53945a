"""Commands that call the API server or open its database: files, jobs, models, traces, keys and the audit log."""
