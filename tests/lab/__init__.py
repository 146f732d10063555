"""The laboratory: real parts (engine, model, systemd) for tests, made without a GPU and without a virtual machine."""
