"""What the web side and the GPU hosts have agreed on; both import it, it imports neither."""
