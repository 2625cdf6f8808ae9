"""`vbuild select --doctor`: whether what is installed was chosen for this machine."""
