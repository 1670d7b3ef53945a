"""The API server: routes, jobs, stores, served models and the console."""
