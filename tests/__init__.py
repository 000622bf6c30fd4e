"""The tests of remoteio, one file per module, and the servers they need."""
