"""What is remembered: RocksDB tables addressed by partition, their changelogs, recovery and fencing."""
