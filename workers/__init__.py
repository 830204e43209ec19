"""Everything that runs on a GPU host. Nothing here may import Django or know a database."""
