"""What differs between vLLM releases, and nothing else: each seam names the release and checks what it relies on."""
