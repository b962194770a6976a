"""The programs that dsbuild runs on nodes."""
