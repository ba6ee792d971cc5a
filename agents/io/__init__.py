"""The only sockets and files: HTTP, address checks, the embedded broker, the output folder."""
