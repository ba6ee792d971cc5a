"""The ring: whole crawls of several processes on a fake log in virtual time, under every fault a plan names."""
