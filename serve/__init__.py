"""The API server: its routes, jobs and stores, the models that it serves, and the console."""
